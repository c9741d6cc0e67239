# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and directories on their way between machines: one form for what is read here, inside an instance, and on a server.

A tree comes as its top (with the name "") and then what is below, every directory before what is in it. Names are relative, and
nothing is written but below directories that the same stream has brought: a name cannot lead elsewhere, through a symlink or not.
"""

from __future__ import annotations

import json
import os
import stat

from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BLOCK = 1 << 20
FILE, DIRECTORY, SYMLINK = "file", "directory", "symlink"
HEAD_MAX = 1 << 16
MADE_UP_MAX = 1 << 16
"""The size that a file may claim whose bytes are made when they are read."""
ENDLESS = 64 << 20
"""Nothing that is made when it is read is larger."""


class Entry:
    """One file (`data` are its `size` bytes, to be taken before the next entry), directory, or symlink (to `target`).

    A `mode`, `uid` or `gid` of -1 is none: whoever writes it chooses.
    """

    __slots__ = ("data", "gid", "kind", "mode", "name", "size", "target", "uid")

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        mode: int = -1,
        uid: int = -1,
        gid: int = -1,
        size: int = 0,
        target: str = "",
        data: Iterable[bytes] = (),
    ) -> None:
        self.name, self.kind, self.mode, self.uid, self.gid = name, kind, mode, uid, gid
        self.size, self.target, self.data = size, target, data


def check(name: str) -> str:
    """Raises SpecError for a name that is not plainly below the top."""
    if name and any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
        raise SpecError(f"`{name}` is refused as the name of a file")
    return name


def join(top: str, name: str) -> str:
    return f"{top.rstrip('/')}/{name}" if name else top


# This machine's files, or (in a process that sees nothing else) an instance's


def read(top: str, *, recursive: bool, say: Callable[[str], None]) -> Iterator[Entry]:
    """What is at `top`, which may be a symlink itself. `say` hears what is left out. Raises NotFoundError, SpecError, OSError."""
    try:
        status = os.stat(top)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"no file `{top}`") from None
    if stat.S_ISDIR(status.st_mode):
        if not recursive:
            raise SpecError(f"`{top}` is a directory", hint="--recursive takes it whole")
        yield _entry("", DIRECTORY, status)
        yield from _below(os.path.realpath(top), "", say)
    elif stat.S_ISREG(status.st_mode):
        yield from _file(top, "", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    else:
        raise SpecError(f"`{top}` is neither a file nor a directory")


def _entry(name: str, kind: str, status: os.stat_result) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    return Entry(name, kind, mode=mode, uid=status.st_uid, gid=status.st_gid, size=status.st_size)


def _below(top: str, prefix: str, say: Callable[[str], None]) -> Iterator[Entry]:
    for short in sorted(os.listdir(join(top, prefix))):
        name = join(prefix, short) if prefix else short
        path = join(top, name)
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                yield _entry(name, DIRECTORY, status)
                yield from _below(top, name, say)
            elif stat.S_ISREG(status.st_mode):
                yield from _file(path, name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            elif stat.S_ISLNK(status.st_mode):
                found = _entry(name, SYMLINK, status)
                found.mode, found.target = -1, os.readlink(path)
                yield found
            else:
                say(f"`{path}` was left out: it is neither a file, a directory nor a symlink")
        except FileNotFoundError:
            say(f"`{path}` went away while it was read")


def _file(path: str, name: str, flags: int) -> Iterator[Entry]:
    fd = os.open(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(f"`{path}` is no file")
        found = _entry(name, FILE, status)
        if status.st_blocks or status.st_size > MADE_UP_MAX:
            found.data = _blocks(fd, status.st_size, path)
        else:
            found.data = [_all(fd, path)]
            found.size = len(found.data[0])
        yield found
    finally:
        os.close(fd)


def _all(fd: int, path: str) -> bytes:
    """Of what lies on no disk: files of the kernel's (/proc, /sys) have a size of nothing, or of a page, whatever is in them."""
    blocks: list[bytes] = []
    while block := os.read(fd, BLOCK):
        blocks.append(block)
        if len(blocks) * BLOCK > ENDLESS and sum(map(len, blocks)) > ENDLESS:
            raise HostError(f"`{path}` has no end")
    return b"".join(blocks)


def _blocks(fd: int, left: int, path: str) -> Iterator[bytes]:
    while left:
        block = os.read(fd, min(left, BLOCK))
        if not block:
            raise HostError(f"`{path}` became shorter while it was read")
        left -= len(block)
        yield block


def write(top: str, found: Iterable[Entry], *, owners: bool, parents: bool = False) -> None:
    """Write a tree at `top`. A directory that is there already is filled, a file replaced when it is complete; a device, a
    pipe or a socket is not.

    `owners`: they become those of the entries, in the tree that is theirs: if `top` is a symlink there, a file goes to where that leads.
    Else they are whoever's this process is. Raises ConflictError, SpecError, OSError.
    """
    if parents:
        os.makedirs(os.path.dirname(top) or ".", exist_ok=True)
    known: set[str] = set()
    later: list[tuple[str, Entry]] = []
    for each in found:
        path = join(top, check(each.name))
        if each.name and each.name.rpartition("/")[0] not in known:
            raise SpecError(f"`{each.name}` is refused: it came before its directory")
        if each.kind == DIRECTORY:
            _directory(path, each, top=not each.name)
            known.add(each.name)
            later.append((path, each))
            continue
        if owners and not each.name and each.kind == FILE:
            path = os.path.realpath(path)
        if is_special(path):
            raise ConflictError(f"`{path}` is there and is no file", hint="a device or a pipe is not replaced")
        aside = join(os.path.dirname(path) or ".", f".ctrmgr-{os.getpid()}.part")
        try:
            if each.kind == SYMLINK:
                os.symlink(each.target, aside)
            else:
                _content(aside, each)
            _own(aside, each, owners)
            os.rename(aside, path)
        except IsADirectoryError:
            raise ConflictError(f"`{path}` is a directory") from None
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"no directory for `{path}`", hint="--create-dirs makes it") from None
        except OSError as error:
            if error.filename == aside:
                error.filename = path
            raise
        finally:
            if os.path.lexists(aside):
                os.unlink(aside)
    for path, each in reversed(later):  # a directory may be one that not even its owner can write to
        _own(path, each, owners)


def is_special(path: str, *, follow: bool = False) -> bool:
    """Whether a device, a pipe or a socket is there, or (`follow`) what leads to one: nothing takes its place."""
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def _directory(path: str, each: Entry, *, top: bool) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not (os.path.isdir(path) if top else stat.S_ISDIR(os.lstat(path).st_mode)):
            raise ConflictError(f"`{path}` is there and is no directory") from None
        each.mode = each.uid = each.gid = -1  # it keeps its own
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"no directory for `{path}`", hint="--create-dirs makes it") from None


def _content(path: str, each: Entry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        for block in each.data:
            view = memoryview(block)
            while view:
                view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _own(path: str, each: Entry, owners: bool) -> None:
    if owners and (each.uid >= 0 or each.gid >= 0):
        os.chown(path, each.uid, each.gid, follow_symlinks=False)
    if each.kind != SYMLINK and each.mode >= 0:
        # Set-id bits only where the owner they speak of comes with them.
        os.chmod(path, each.mode if owners else each.mode & 0o1777)


# Through a pipe


def send(write_all: Callable[[bytes], object], found: Iterable[Entry]) -> None:
    """As a stream: a line of JSON for each entry, then its bytes; an empty line at the end."""
    for each in found:
        head = [each.name, each.kind, each.mode, each.uid, each.gid, each.size, each.target]
        write_all(json.dumps(head).encode("utf-8", "surrogateescape") + b"\n")
        for block in each.data:
            write_all(block)
    write_all(b"\n")


def send_error(write_all: Callable[[bytes], object], error: CtrmgrError) -> None:
    write_all(
        json.dumps({"error": type(error).__name__, "message": error.message, "hint": error.hint}).encode() + b"\n"
    )


class Receiver:
    """The other end. Raises what `send_error` was given; HostError when the stream breaks off."""

    def __init__(self, fd: int) -> None:
        self.fd, self.rest = fd, b""

    def _fill(self) -> None:
        block = os.read(self.fd, BLOCK)
        if not block:
            raise HostError("the process that reads files in the instance died")
        self.rest += block

    def line(self) -> bytes:
        while b"\n" not in self.rest:
            if len(self.rest) > HEAD_MAX:
                raise HostError("a name is too long")
            self._fill()
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def entries(self) -> Iterator[Entry]:
        while line := self.line():
            head = json.loads(line)
            if isinstance(head, dict):
                raise failure(head)
            name, kind, mode, uid, gid, size, target = head
            data = self._data(size if kind == FILE else 0)
            yield Entry(name, kind, mode=mode, uid=uid, gid=gid, size=size, target=target, data=data)
            for _ in data:  # what nobody took
                pass

    def _data(self, left: int) -> Iterator[bytes]:
        while left:
            if not self.rest:
                self._fill()
            block, self.rest = self.rest[:left], self.rest[left:]
            left -= len(block)
            yield block


def failure(found: dict[str, str]) -> CtrmgrError:
    """The error that a process has told in JSON."""
    from ctrmgr import errors

    kind = getattr(errors, str(found["error"]), CtrmgrError)
    error: CtrmgrError = kind(found["message"], hint=found.get("hint"))
    return error
