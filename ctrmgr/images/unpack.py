# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a tar stream out as files. Runs in the sandbox, and does not rely on it.

Every name is made of directories that this very unpacking made: `kinds` knows what each name is, so no entry is ever
written through a symlink, linked to what the archive did not bring, or put outside. The disk is not asked.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib

from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any, NoReturn

# Named by every version of tarfile, documented by none: the only way to tell an end from a broken header.
ARCHIVE_END: type[tarfile.TarError] = tarfile.EOFHeaderError  # type: ignore[attr-defined]
CUT_OFF: tuple[type[tarfile.TarError], ...] = (
    tarfile.EmptyHeaderError,  # type: ignore[attr-defined]
    tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
)

CHUNK = 1 << 20
ZEROS = bytes(CHUNK)
HEADER_MAX = 1 << 20
"""Bytes of one long name or pax header: tarfile reads those whole."""
XATTR = "SCHILY.xattr."
PATH_MAX, NAME_MAX, DEPTH_MAX = 4000, 255, 256


class Limits:
    """What an image may be at most. `ratio` is unpacked to packed bytes and holds once `ratio_from` bytes are out."""

    __slots__ = ("bytes", "files", "ratio", "ratio_from")

    def __init__(
        self, files: int = 2_000_000, bytes: int = 64 << 30, ratio: int = 1000, ratio_from: int = 1 << 30
    ) -> None:
        self.files, self.bytes, self.ratio, self.ratio_from = files, bytes, ratio, ratio_from


class Stream:
    """Forward-only reader with the three methods that tarfile needs, which counts, and refuses bombs."""

    def __init__(self, source: IO[bytes], limits: Limits, packed: Callable[[], int] | None) -> None:
        self._read, self._limits, self._packed = source.read, limits, packed
        self._position = 0

    def read(self, size: int) -> bytes:
        if size > HEADER_MAX and size > CHUNK:
            raise SpecError(f"the archive has a header of {size} bytes")
        parts, left = [], size
        while left:
            part = self._part(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        before = self._position >> 26
        self._position += size - left
        if self._position >> 26 != before:
            self._check()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, size: int) -> bytes:
        try:
            return self._read(size)
        except EOFError as error:
            raise truncated() from error
        except (zlib.error, lzma.LZMAError) as error:
            raise SpecError(f"the archive is corrupt: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            # gzip and bz2 say it so.
            raise SpecError(f"the archive is corrupt: {error}") from error

    def seek(self, position: int) -> int:
        if position < self._position:
            raise SpecError("the archive points back into itself")
        while self._position < position:
            if not self.read(min(CHUNK, position - self._position)):
                raise truncated()
        return position

    def tell(self) -> int:
        return self._position

    def _check(self) -> None:
        limits, out = self._limits, self._position
        # Headers and padding count as well: twice the limit is never reached by honest ones.
        if out > 2 * limits.bytes:
            raise SpecError(f"the archive is larger than {limits.bytes >> 30} GiB")
        if self._packed and out > limits.ratio_from and out > limits.ratio * max(self._packed(), 1):
            raise SpecError(f"the archive unpacks to more than {limits.ratio} times its size", hint="is it a bomb?")


def truncated() -> SpecError:
    return SpecError("the archive ends in the middle", hint="was it copied or downloaded completely?")


def refuse(name: str, reason: str) -> NoReturn:
    raise SpecError(f"the archive is refused: `{name}` {reason}")


class Unpacker:
    """Unpacks one archive into the directory `root` (which exists and is empty)."""

    def __init__(self, root: str, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self.kinds: dict[str, str] = {"": "d"}
        self.bytes = 0
        self.nodes_left_out = 0
        self._directories: dict[str, tarfile.TarInfo] = {}

    def run(self, source: IO[bytes], packed: Callable[[], int] | None = None) -> None:
        """Raises SpecError for hostile or corrupt archives, OSError from the disk."""
        stream = Stream(source, self.limits, packed)
        try:
            # It only holds the reader's state: in mode `r` its constructor would read, and swallow errors.
            archive = tarfile.TarFile(fileobj=stream, mode="w", errors="surrogateescape")  # type: ignore[arg-type]
            while (member := self._next(archive, stream)) is not None:
                self.entry(member, stream)
            while stream.read(CHUNK):
                pass  # the decompressor checks its sums at the end only
        except CUT_OFF as error:
            raise truncated() from error
        except MemoryError:
            raise SpecError("the archive needs more memory than an honest one would") from None
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise SpecError(f"the archive is corrupt: {error}") from error
        if len(self.kinds) == 1:
            raise SpecError("the archive is empty")
        self._finish_directories()

    @staticmethod
    def _next(archive: tarfile.TarFile, stream: Stream) -> tarfile.TarInfo | None:
        # TarFile.next() takes a broken header for the end of the archive; that would be half an image.
        stream.seek(archive.offset)
        try:
            return tarfile.TarInfo.fromtarfile(archive)
        except ARCHIVE_END:
            return None

    def entry(self, member: tarfile.TarInfo, stream: Stream) -> None:
        """One entry of the archive. Raises SpecError, OSError."""
        name = self.clean(member.name)
        if len(self.kinds) > self.limits.files:
            raise SpecError(f"the archive has more than {self.limits.files} files")
        if not 0 <= member.uid < 65536 or not 0 <= member.gid < 65536:
            refuse(name, f"belongs to {member.uid}:{member.gid}, beyond the 65536 ids of an instance")
        if member.isdir():
            self._directory(name, member)
            return
        if member.ischr() or member.isblk():
            if not name.startswith(("dev/", "rootfs/dev/")):
                refuse(name, "is a device node outside /dev")
            self.nodes_left_out += 1
            return
        self._clear_way(name)
        path = f"{self.root}/{name}"
        if member.isreg():
            self._file(path, member, stream)
            self.kinds[name] = "f"
        elif member.issym():
            if not member.linkname or "\0" in member.linkname or len(os.fsencode(member.linkname)) > PATH_MAX:
                refuse(name, "is a symlink to nowhere")
            os.symlink(member.linkname, path)
            self.kinds[name] = "l"
        elif member.islnk():
            self._hard_link(name, path, member)
            return
        elif member.isfifo():
            os.mkfifo(path, 0o600)
            self.kinds[name] = "p"
        else:
            refuse(name, f"is of the unknown type {member.type!r}")
        self._attributes(path, member)

    def clean(self, name: str) -> str:
        """`./a//b/` as `a/b`. Raises SpecError for names that could lead elsewhere."""
        if name.startswith("/"):
            refuse(name, "is an absolute name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            refuse(name, "leads upwards")
        if len(parts) > DEPTH_MAX:
            refuse(name[:60] + "…", f"is deeper than {DEPTH_MAX} directories")
        # Most names are plain and short, and this is run for every file.
        if "\0" in name or not (name.isascii() and len(name) <= NAME_MAX):
            sizes = [len(os.fsencode(part)) for part in parts]
            if "\0" in name or sum(sizes) + len(sizes) > PATH_MAX or max(sizes, default=0) > NAME_MAX:
                refuse(name[:60], "is no possible file name")
        return "/".join(parts)

    def _parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        missing = []
        while (kind := self.kinds.get(parent)) is None:
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        if kind != "d":
            refuse(name, f"would be written through `{parent}`, which is no directory")
        for parent in reversed(missing):
            os.mkdir(f"{self.root}/{parent}", 0o755)
            self.kinds[parent] = "d"

    def _clear_way(self, name: str) -> None:
        """Archives that were appended to hold a name twice: the last one counts, as with tar."""
        if not name:
            refuse("./", "is the root directory and no directory")
        self._parents(name)
        kind = self.kinds.get(name)
        if kind == "d":
            refuse(name, "is a directory and something else")
        if kind is not None:
            os.unlink(f"{self.root}/{name}")
            del self.kinds[name]

    def _directory(self, name: str, member: tarfile.TarInfo) -> None:
        kind = self.kinds.get(name)
        if kind is None:
            self._parents(name)
            os.mkdir(f"{self.root}/{name}", 0o700)
            self.kinds[name] = "d"
        elif kind != "d":
            refuse(name, "is a directory and something else")
        self._directories[name] = member

    def _file(self, path: str, member: tarfile.TarInfo, stream: Stream) -> None:
        self.bytes += member.size
        sparse: Any = member.sparse
        pieces = [(0, member.size)] if sparse is None else [(int(at), int(size)) for at, size in sparse]
        if self.bytes > self.limits.bytes or any(at < 0 or size < 0 or at + size > member.size for at, size in pieces):
            raise SpecError(f"the archive's files are larger than {self.limits.bytes >> 30} GiB")
        stream.seek(member.offset_data)
        end = 0
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for offset, left in pieces:
                while left:
                    data = stream.read(min(left, CHUNK))
                    if not data:
                        raise truncated()
                    # A hole instead of a block of zeros: what was sparse stays sparse, however it came.
                    if data[0] or data != ZEROS[: len(data)]:
                        self._write(fd, data, offset)
                        end = offset + len(data)
                    offset += len(data)
                    left -= len(data)
            if end != member.size:
                os.ftruncate(fd, member.size)
        finally:
            os.close(fd)

    @staticmethod
    def _write(fd: int, data: bytes, offset: int) -> None:
        while data:
            count = os.pwrite(fd, data, offset)
            data, offset = data[count:], offset + count

    def _hard_link(self, name: str, path: str, member: tarfile.TarInfo) -> None:
        target = self.clean(member.linkname)
        if self.kinds.get(target) not in ("f", "l", "p"):
            refuse(name, f"is a hard link to `{member.linkname}`, which the archive does not hold before it")
        os.link(f"{self.root}/{target}", path, follow_symlinks=False)
        self.kinds[name] = self.kinds[target]

    def _attributes(self, path: str, member: tarfile.TarInfo) -> None:
        # In this order: chown takes setuid bits and capabilities away.
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
        if not member.issym():
            os.chmod(path, member.mode & 0o7777)
        for key, text in member.pax_headers.items():
            if key.startswith(XATTR):
                self._xattr(path, key[len(XATTR) :], text)
        seconds = int(member.mtime)
        when = seconds * 1_000_000_000 + int((member.mtime - seconds) * 1_000_000_000)
        os.utime(path, ns=(when, when), follow_symlinks=False)

    def _xattr(self, path: str, name: str, text: str) -> None:
        if name.startswith("trusted."):
            refuse(path.removeprefix(self.root + "/"), f"has the attribute {name}, which belongs to the host")
        if name.startswith("user.overlay.") or not name.startswith(
            ("user.", "security.capability", "system.posix_acl")
        ):
            # overlay's own marks would hide files; labels (SELinux) are those of the host that made the archive.
            return
        os.setxattr(path, name, text.encode("utf-8", "surrogateescape"), follow_symlinks=False)

    def _finish_directories(self) -> None:
        # Deepest first: setting a child's attributes would change its parent's time.
        for name in sorted(self._directories, reverse=True):
            self._attributes(f"{self.root}/{name}", self._directories[name])
