# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory as a tar stream that is the same whenever the directory is: sorted, no names of users, no clock."""

from __future__ import annotations

import os
import stat
import struct
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CHUNK = 1 << 20
KEPT_XATTRS = ("user.", "security.capability", "system.posix_acl")
TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}
"""Sockets are left out: they are nothing without the process that listens."""


class TreeTar:
    """Writes one stream. Raises OSError of the tree, and what `write` raises."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._links: dict[tuple[int, int], str] = {}
        self._size = 0

    def text(self, name: str, content: str, mtime: int) -> None:
        """A small file that is not on the disk."""
        data = content.encode()
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), mtime, 0o644
        self._header(info)
        self._out(data)
        self._pad(len(data))

    def tree(self, top: str, prefix: str, skip: Sequence[str] = ()) -> None:
        """Everything at and below `top`, named below `prefix` (`rootfs`, or `.`); nothing of other filesystems."""
        device = os.lstat(top).st_dev
        for directory, name, fd in walk(top, device):
            relative = os.path.relpath(directory, top)
            path = "/".join(part for part in (prefix, relative if relative != "." else "", name) if part)
            if path not in skip:
                self._entry(path, name or ".", fd)

    def end(self) -> None:
        self._out(bytes(1024))
        self._out(bytes(-self._size % tarfile.RECORDSIZE))

    def _entry(self, path: str, name: str, directory: int) -> None:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = TYPES.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            return
        info = tarfile.TarInfo(path)
        info.type, info.mode = kind, stat.S_IMODE(status.st_mode)
        info.uid, info.gid, info.mtime = status.st_uid, status.st_gid, int(status.st_mtime)
        if status.st_nlink > 1 and kind != tarfile.DIRTYPE:
            first = self._links.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                info.type, info.linkname = tarfile.LNKTYPE, first
                self._header(info)
                return
        if kind == tarfile.SYMTYPE:
            info.linkname = os.readlink(name, dir_fd=directory)
        if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
        info.pax_headers = dict(_xattrs(f"/proc/self/fd/{directory}/{name}"))
        if kind != tarfile.REGTYPE:
            self._header(info)
            return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
        with open(fd, "rb", buffering=0) as file:
            info.size = os.fstat(fd).st_size
            self._header(info)
            self._content(file.read, info.size, path)

    def _content(self, read: Callable[[int], bytes | None], size: int, path: str) -> None:
        left = size
        while left:
            data = read(min(left, CHUNK))
            if not data:
                raise OSError(5, "it became shorter while it was read", path)
            self._out(data)
            left -= len(data)
        self._pad(size)

    def _header(self, info: tarfile.TarInfo) -> None:
        self._out(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _pad(self, size: int) -> None:
        self._out(bytes(-size % tarfile.BLOCKSIZE))

    def _out(self, data: bytes) -> None:
        self._size += len(data)
        self._write(data)


def walk(top: str, device: int) -> Iterator[tuple[str, str, int]]:
    """(directory, name in it, fd of the directory), sorted; a directory comes as the empty name before its content."""
    for directory, names, files, fd in os.fwalk(top, follow_symlinks=False):
        if os.fstat(fd).st_dev != device:
            names.clear()
            continue
        names.sort()
        yield directory, "", fd
        links = [name for name in names if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)]
        for name in sorted(files + links):
            yield directory, name, fd


def _xattrs(path: str) -> Iterator[tuple[str, str]]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return  # a filesystem without them
    for name in sorted(names):
        if name.startswith(KEPT_XATTRS) and not name.startswith("user.overlay."):
            value = os.getxattr(path, name, follow_symlinks=False)
            yield "SCHILY.xattr." + name, plain_capability(name, value).decode("utf-8", "surrogateescape")


def plain_capability(name: str, value: bytes) -> bytes:
    """File capabilities without the namespace's root id: the kernel adds that where they are written."""
    if name != "security.capability" or len(value) != 24:
        return value
    (magic,) = struct.unpack_from("<I", value)
    return struct.pack("<I", (magic & 0x00FFFFFF) | 0x02000000) + value[4:20]
