# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of an instance on a server: read and written with their modes and owners, each in one piece and none in memory."""

from __future__ import annotations

import os

from ctrmgr import entries
from ctrmgr.entries import DIRECTORY, FILE, SYMLINK, Entry
from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, HostError, NotFoundError, SpecError
from ctrmgr.remote import instances
from ctrmgr.remote.body import loads
from ctrmgr.remote.server import Server, UnknownError, quoted, shown
from ctrmgr.remote.wire import ANSWER_SECONDS, Answer, GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FORBIDDEN = 403
LINKS_MAX = 40
MADE_UP = ("/proc/", "/sys/", "/dev/")
"""Where in a running instance files say that they are empty, or a page long, whatever is in them; and device nodes are, to a server,
empty files."""
NO_FILE = 65
READ = f'test -f "$0" || exit {NO_FILE}; exec cat "$0"'
"""For a shell inside, with the path as its name."""


class Found(Entry):
    """What a server has at a path; `names` are those in a directory."""

    names: list[str]


def _url(name: str) -> str:
    return f"/instances/{quoted(name)}/files"


def _get(server: Server, name: str, path: str) -> Found:
    """Raises NotFoundError, BackendError."""
    url = server.url(_url(name), {"path": path})
    (status, headers), body = server.connection.begin("GET", url, timeout=ANSWER_SECONDS)
    if status >= 300:
        answer = Answer(status, headers, b"".join(body))
        if status == FORBIDDEN and server.reason(answer) == "Forbidden":  # else it is we who may not
            raise HostError(f"`{path}` in `{instances.label(server, name)}`: Permission denied")
        raise _refusal(server, name, path, server.refusal(answer))
    words = {key.partition("-")[2].partition("-")[2]: value for key, value in headers.items() if key.startswith("x-")}
    kind = words.get("type", FILE)
    found = Found(
        "",
        kind,
        mode=int(words.get("mode", "0644"), 8) & 0o7777,
        uid=int(words.get("uid", "0")),
        gid=int(words.get("gid", "0")),
    )
    found.names = []
    if kind == FILE:
        found.data = body
        found.size = int(headers.get("content-length", "-1"))
    elif kind == DIRECTORY:
        found.names = sorted(loads(b"".join(body))["metadata"] or ())
    else:
        # The target, in LXD's and Incus' words with or without a newline.
        found.target, found.mode = b"".join(body).decode("utf-8", "surrogateescape").rstrip("\n"), -1
    return found


def _refusal(server: Server, name: str, path: str, error: CtrmgrError) -> CtrmgrError:
    if isinstance(error, UnknownError):
        instances.get(server, name)  # which says so, when it is the instance that is not there
        return NotFoundError(f"no file `{path}` in `{instances.label(server, name)}`")
    return instances.translated(server, name, error)


def is_directory(server: Server, name: str, path: str) -> bool:
    try:
        found = _get(server, name, path)
    except NotFoundError:
        instances.get(server, name)
        return False
    if found.kind == FILE:
        server.connection.close()  # its bytes are not wanted
    return found.kind == DIRECTORY


def pull(server: Server, name: str, path: str, *, recursive: bool, say: Callable[[str], None]) -> Iterator[Entry]:
    """What is at a path, followed when it is a symlink. Raises NotFoundError, SpecError, BackendError."""
    for _ in range(LINKS_MAX):
        found = _get(server, name, path)
        if found.kind != SYMLINK:
            break
        path = _followed(path, found.target)
    else:
        raise SpecError(f"`{path}`: too many symlinks")
    if found.kind == DIRECTORY and not recursive:
        raise SpecError(f"`{path}` is a directory", hint="--recursive takes it whole")
    if found.kind not in (DIRECTORY, FILE) or not _seen(server, name, path, found, alone=True):
        raise SpecError(f"`{path}` is neither a file nor a directory")
    yield from _tree(server, name, path, "", found, say)


def _followed(path: str, target: str) -> str:
    parts: list[str] = [] if target.startswith("/") else path.strip("/").split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _seen(server: Server, name: str, path: str, found: Found, *, alone: bool) -> bool:
    """Read from inside what a server tells wrongly; of files elsewhere, an empty one that is asked for `alone` may be such, too.
    False: it is no file. Raises ConflictError, BackendError."""
    sure = path.startswith(MADE_UP)
    if found.kind != FILE or not (sure or (alone and found.size == 0)):
        return True
    if found.size:
        server.connection.close()  # what it sends ends too early, or never
    if instances.get(server, name)["status"] == "Stopped":
        found.data = _get(server, name, path).data  # then it is a file like others
        return True
    try:
        data = _read_inside(server, name, path)
    except CtrmgrError as error:
        if sure or isinstance(error, GoneError):
            raise
        return True
    if data is not None:
        found.data, found.size = [data], len(data)
    return data is not None


def _read_inside(server: Server, name: str, path: str) -> bytes | None:
    """By the instance's own shell and `cat`; None for what is no file. Raises ConflictError, BackendError."""
    from ctrmgr.remote import execute

    execute.refuse_if_stopped(server, name)
    out: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}

    def write(fd: int, data: bytes) -> None:
        out[fd] += data
        if len(out[fd]) > entries.ENDLESS:
            raise BackendError(f"`{path}` has no end")

    reason = ""
    nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        streams = execute.Streams(nothing, write)
        code = execute.run(server, name, ["sh", "-c", READ, path], env={}, streams=streams)
    except execute.NotRunError as error:
        code, reason = error.exit_code, error.message
    finally:
        os.close(nothing)
    if code == NO_FILE:
        return None
    if code:
        reason = reason or out[2].decode(errors="replace").strip().rpartition(": ")[2] or f"`cat` ended with {code}"
        raise BackendError(
            f"`{path}` in `{instances.label(server, name)}` cannot be read: {shown(reason)}",
            hint="servers cannot read such files; a shell and `cat` in the instance do it",
        )
    return bytes(out[1])


def _tree(server: Server, name: str, top: str, below: str, found: Found, say: Callable[[str], None]) -> Iterator[Entry]:
    found.name = below
    if found.kind == FILE and found.size < 0:
        found.data = [b"".join(found.data)]  # it did not say how large it is
        found.size = len(found.data[0])
    yield found
    for short in found.names:
        inner = entries.check(f"{below}/{short}" if below else str(short))
        path = entries.join(top, inner)
        try:
            each = _get(server, name, path)
            known = each.kind in (FILE, DIRECTORY, SYMLINK) and _seen(server, name, path, each, alone=False)
        except NotFoundError:
            say(f"`{path}` went away while it was read")
            continue
        except (BackendError, HostError) as error:
            if isinstance(error, GoneError):
                raise
            # A socket, a fifo, a device node: servers have no name for them and say no.
            say(f"`{path}` was left out: {error.message}")
            continue
        if each.kind == SYMLINK:
            each.target = _relative(each.target, path, top)
        if known:
            yield from _tree(server, name, top, inner, each, say)
        else:
            say(f"`{path}` was left out: it is neither a file, a directory nor a symlink")


def _relative(target: str, path: str, top: str) -> str:
    """Servers tell a relative target as the absolute path that it leads to. One inside the tree stays inside, wherever that goes."""
    above = "/" + top.strip("/")
    if target.startswith(above.rstrip("/") + "/"):
        return os.path.relpath(target, os.path.dirname(path))
    return target


def push(server: Server, name: str, path: str, found: Iterable[Entry], *, parents: bool) -> None:
    """Write files to a path. Raises NotFoundError, ConflictError, BackendError; what was written before stays."""
    if parents:
        _make_parents(server, name, path)
    count = 0
    try:
        for each in found:
            _put(server, name, entries.join(path, entries.check(each.name)), each)
            count += 1
    except GoneError as error:
        error.hint = f"{count} files and directories are there; whether more of `{path}` is, is not known"
        raise


def _make_parents(server: Server, name: str, path: str) -> None:
    parts = path.strip("/").split("/")[:-1]
    for number in range(1, len(parts) + 1):
        above = "/" + "/".join(parts[:number])
        if not is_directory(server, name, above):
            _put(server, name, above, Entry("", DIRECTORY, mode=0o755, uid=0, gid=0))


def _put(server: Server, name: str, path: str, each: Entry) -> None:
    if each.kind == DIRECTORY and is_directory(server, name, path):
        return
    words = {"type": each.kind, "write": "overwrite"}
    words |= {
        key: text
        for key, value, text in (
            ("uid", each.uid, str(each.uid)),
            ("gid", each.gid, str(each.gid)),
            ("mode", each.mode, f"{each.mode:04o}"),
        )
        if value >= 0
    }
    # Each kind of server reads the headers of its own name.
    headers = {f"X-{kind}-{key}": value for kind in ("LXD", "Incus") for key, value in words.items()}
    body: bytes | Iterable[bytes] = each.data
    if each.kind == FILE:
        headers |= {"Content-Length": str(each.size), "Content-Type": "application/octet-stream"}
    else:
        body = each.target.encode("utf-8", "surrogateescape")
    answer = server.connection.request("POST", server.url(_url(name), {"path": path}), body, headers, timeout=None)
    if answer.status >= 300:
        error = server.refusal(answer)
        if isinstance(error, UnknownError) or "no such file" in error.message.lower():
            instances.get(server, name)
            raise NotFoundError(f"no directory for `{path}`", hint="--create-dirs makes it")
        if "is a directory" in error.message or "file exists" in error.message.lower():
            raise ConflictError(f"`{path}` is there and is something else")
        raise instances.translated(server, name, error)
