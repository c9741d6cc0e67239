# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances and images from one place to another, as a stream: never in memory, nothing left of what was only on the way."""

from __future__ import annotations

import hashlib

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError, UnsupportedError
from ctrmgr.remote import instances, passing, snapshots
from ctrmgr.remote.server import OperationError, Server, quoted
from ctrmgr.remote.wire import Answer, GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ctrmgr.remote.passing import Passage

NOT_COPIED = ("volatile.", "image.")
BACKUP_SECONDS = 86400
"""After which a server itself deletes a backup that nobody comes for."""


def chunked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """A body whose size nobody knows beforehand."""
    for block in blocks:
        if block:
            yield b"%x\r\n%b\r\n" % (len(block), block)
    yield b"0\r\n\r\n"


def download(server: Server, path: str) -> Iterator[bytes]:
    """The bytes of a GET. Raises GoneError when they end too early."""
    (status, headers), body = server.connection.begin("GET", server.url(path), timeout=None)
    if status >= 300:
        raise server.refusal(Answer(status, headers, b"".join(body)))
    if headers.get("content-type", "").startswith("multipart/"):
        raise UnsupportedError(f"`{server.name}` has it in several files", hint="`ctrmgr image export` takes them")
    yield from body


def upload(server: Server, path: str, blocks: Iterable[bytes], headers: Mapping[str, str] | None = None) -> Any:
    """A POST of bytes; returns the operation when it is done."""
    fields = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked", **(headers or {})}
    # A connection of its own: one that broke off in the middle of a body is of no use, and neither is one that waited for it.
    with Server(server.name, server.target, server.project) as other:
        answer = other.connection.request("POST", other.url(path), chunked(blocks), fields, timeout=None)
        other.connection.close()
        if answer.status >= 300:
            raise server.refusal(answer)
    operation = str(server.decoded(answer)["id"])
    try:
        return server.wait(operation)
    except (KeyboardInterrupt, GoneError):
        if path == "/images":
            _unmade(server, operation)
        raise


class Hashed:
    """Blocks on their way, and their SHA-256: what a server says that it has got must be this."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.blocks, self.hash = blocks, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks:
            self.hash.update(block)
            yield block


def send_image(server: Server, blocks: Iterable[bytes], passage: Passage | None = None) -> str:
    """Give a server a unified image; returns its fingerprint, which is the hash of what was sent. Raises BackendError.

    In `passage` it is noted, until somebody says that it is gone or stays.
    """
    hashed = Hashed(blocks)
    if passage:
        passage.note(passing.IMAGE, server)
    try:
        done = upload(server, "/images", hashed)
    except CtrmgrError as error:
        if passage and not isinstance(error, GoneError):
            passage.gone(passing.IMAGE, server)
        raise
    fingerprint = str(done["metadata"]["fingerprint"])
    if fingerprint != hashed.hash.hexdigest():
        forget_image(server, fingerprint)
        raise BackendError(f"`{server.name}` has got something else than was sent", hint="it was deleted again")
    return fingerprint


def publish(
    server: Server,
    name: str,
    *,
    aliases: Iterable[str] = (),
    description: str = "",
    passage: Passage | None = None,
) -> str:
    """Make an image of a stopped instance; returns its fingerprint. Raises NotFoundError, ConflictError, BackendError.

    In `passage` it is on the way only, and never the same as one that is to stay, whatever is in it.
    """
    found = instances.get(server, name)
    refuse_if_running(server, name, found)
    data = {
        "source": {"type": "instance", "name": name},
        "public": False,
        "properties": properties(description, passage.note(passing.IMAGE, server) if passage else ""),
        "aliases": [{"name": alias, "description": ""} for alias in aliases],
    }
    operation = ""
    try:
        operation = str(server.decoded(server.send("POST", "/images", data))["id"])
        return str(server.wait(operation)["metadata"]["fingerprint"])
    except BaseException as error:
        taken_back = not operation or isinstance(error, OperationError) or _unmade(server, operation)
        if passage and operation and taken_back:
            passage.gone(passing.IMAGE, server)
        if not isinstance(error, CtrmgrError):
            raise
        if isinstance(error, GoneError) and not (operation and taken_back):
            error.hint = f"whether there is an image of it is not known: `ctrmgr image list {server.name}:`"
        raise instances.translated(server, name, error) from None


def properties(description: str, mark: str = "") -> dict[str, str]:
    """Of an image that is made now."""
    found = {"description": description} if description else {}
    return {**found, passing.KEY: mark} if mark else found


def _unmade(server: Server, operation: str) -> bool:
    """Wait, over another connection, for an image that nobody wants any more, and delete it. False: who knows."""
    try:
        with Server(server.name, server.target, server.project) as other:
            url = f"/operations/{operation}/wait"
            done = other.decoded(other.send("GET", url, query={"timeout": "60"}, timeout=65))
        return done["status_code"] != 200 or not forget_image(server, str(done["metadata"]["fingerprint"]))
    except CtrmgrError:
        return False


def refuse_if_running(server: Server, name: str, found: Mapping[str, Any]) -> None:
    if not instances.rests(server, name, found):
        label = instances.label(server, name)
        raise ConflictError(f"`{label}` is running", hint=f"ctrmgr stop {label}")


def forget_image(server: Server, fingerprint: str) -> str:
    """Delete an image that was only on the way; returns why that failed."""
    return _drop(server, f"/images/{quoted(fingerprint)}")


class Passing:
    """An image of `passage` that goes when the block ends; what could not be removed is told, and left to the next command."""

    def __init__(self, server: Server, fingerprint: str, passage: Passage, say: Callable[[str], None]) -> None:
        self.server, self.fingerprint, self.passage, self.say = server, fingerprint, passage, say

    def __enter__(self) -> str:
        return self.fingerprint

    def __exit__(self, *_: object) -> None:
        if left := forget_image(self.server, self.fingerprint):
            self.say(f"image `{self.fingerprint[:12]}` is left on `{self.server.name}`: {left}")
        else:
            self.passage.gone(passing.IMAGE, self.server)


def refuse_if_there(server: Server, name: str) -> None:
    """Raises ConflictError."""
    try:
        instances.get(server, name)
    except NotFoundError:
        return
    raise instances.exists(server, name)


def own_keys(found: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What an instance was told itself; not where its root lies, which is the other server's affair."""
    config = {key: str(value) for key, value in found["config"].items() if not key.startswith(NOT_COPIED)}
    devices = {
        name: dict(keys)
        for name, keys in found["devices"].items()
        if not (keys.get("type") == "disk" and keys.get("path") == "/")
    }
    return config, devices


def profile_names(server: Server) -> set[str]:
    return {str(url).rpartition("/")[2].partition("?")[0] for url in server.get("/profiles")}


def check_profiles(server: Server, names: Iterable[str]) -> None:
    """Raises NotFoundError for profiles that a server does not have."""
    missing = [name for name in names if name not in profile_names(server)]
    if missing:
        raise NotFoundError(
            f"`{server.name}` has no profile `{missing[0]}`", hint="-p PROFILE names others, --no-profiles none"
        )


def verify(server: Server, name: str, image: str = "", kept: Iterable[str] = ()) -> None:
    """Raises BackendError unless there is a stopped instance (made of this image), with these snapshots."""
    found = instances.get(server, name)
    if found["status"] != "Stopped":
        raise BackendError(f"`{instances.label(server, name)}` is {found['status']} after it was copied")
    if missing := set(kept) - {row["name"] for row in snapshots.listing(server, name)}:
        raise BackendError(f"`{instances.label(server, name)}` came without {', '.join(sorted(missing))}")
    if image and found["config"].get("volatile.base_image") != image:
        raise BackendError(f"`{instances.label(server, name)}` is made of another image than was sent")


def on_the_server(
    source: Server, name: str, server: Server, new: str, *, alone: bool, profiles: list[str] | None = None
) -> None:
    """A copy by the server itself, with its snapshots unless `alone`. The two may be members of one cluster, or projects of one server."""
    found = instances.get(source, name)
    origin = {"type": "copy", "source": name, "instance_only": alone, "container_only": alone}
    data = {
        "name": new,
        "source": {**origin, "project": source.project or "default"},
        "profiles": found["profiles"] if profiles is None else profiles,
        "devices": found["devices"],
        "config": {key: value for key, value in found["config"].items() if not key.startswith("volatile.")},
        "ephemeral": found["ephemeral"],
    }
    try:
        server.change("POST", "/instances", data, doubt=instances.doubt(server, new, "made"))
    except KeyboardInterrupt:
        instances.removed(server, new)
        raise
    except CtrmgrError as error:
        raise instances.translated(server, new, error) from None


def by_backup(source: Server, name: str, target: Server, new: str, passage: Passage, *, alone: bool) -> None:
    """Between servers of one kind: all of it, with its snapshots unless `alone`. The backup goes when it has arrived."""
    url = f"{instances.path(name)}/backups"
    backup = passing.backup_name(passage.note(passing.BACKUP, source, name))
    data = {"name": backup, "instance_only": alone, "container_only": alone, "compression_algorithm": "none"}
    data |= {"expires_at": _later(source.date)} if source.date else {}
    try:
        source.change("POST", url, data)
        with Server(source.name, source.target, source.project) as stream:
            names = {f"X-{kind}-name": new for kind in ("LXD", "Incus")}
            upload(target, "/instances", download(stream, f"{url}/{backup}/export"), names)
    except BaseException as error:
        left = _drop(source, f"{url}/{backup}")
        if not left:
            passage.gone(passing.BACKUP, source, name)
        if not isinstance(error, CtrmgrError):
            instances.removed(target, new)
            raise
        if isinstance(error, GoneError):
            error.hint = instances.doubt(target, new, "made")
        if left:
            error.hint = f"{error.hint or ''}; backup `{backup}` may be left on `{source.name}`: {left}".removeprefix(
                "; "
            )
        raise instances.translated(target, new, error) from None
    if left := _drop(source, f"{url}/{backup}"):
        raise BackendError(
            f"backup `{backup}` is left on `{source.name}`: {left}",
            hint=f"`{instances.label(target, new)}` is there and whole",
        )
    passage.gone(passing.BACKUP, source, name)


def _later(date: str) -> str:
    """A day after a moment of a server's clock."""
    from datetime import timedelta
    from email.utils import parsedate_to_datetime

    return (parsedate_to_datetime(date) + timedelta(seconds=BACKUP_SECONDS)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _drop(server: Server, path: str) -> str:
    """Delete what was on the way; returns why that failed."""
    try:
        with Server(server.name, server.target, server.project) as other:
            other.change("DELETE", path)
    except NotFoundError:
        return ""
    except CtrmgrError as error:
        return error.message
    return ""


def export_image(server: Server, fingerprint: str) -> Iterator[bytes]:
    """A unified image's bytes, over a connection of their own."""
    with Server(server.name, server.target, server.project) as stream:
        yield from download(stream, f"/images/{quoted(fingerprint)}/export")
