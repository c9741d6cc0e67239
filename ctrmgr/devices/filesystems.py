# SPDX-License-Identifier: GPL-3.0-or-later
"""The file systems that are mounted for an instance, and which of their options are. Cold.

The list of types is that of `native_helpers/priv_filesystem.c`. Options that name a file or another disk, change who owns what, or
switch off what keeps a file system whole are not in here.
"""

from __future__ import annotations

import os

from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNT = frozenset(("ro", "rw", "nosuid", "nodev", "noexec", "exec"))
"""What a mount is, whatever the file system; set-id programs and devices never count in one."""
OPTIONS = {
    "tmpfs": "size nr_inodes nr_blocks mode huge",
    "ext4": "errors commit data barrier nobarrier discard nodiscard noload norecovery stripe delalloc nodelalloc acl noacl "
    "user_xattr nouser_xattr",
    "xfs": "inode32 inode64 logbufs logbsize largeio nolargeio nouuid norecovery swalloc discard nodiscard allocsize",
    "btrfs": "subvol subvolid compress compress-force ssd nossd discard nodiscard autodefrag noautodefrag commit datacow "
    "nodatacow datasum nodatasum space_cache",
    "f2fs": "background_gc discard nodiscard compress_algorithm active_logs",
    "erofs": "cache_strategy user_xattr nouser_xattr acl noacl",
    "squashfs": "errors threads",
    "vfat": "fmask dmask umask codepage iocharset utf8 shortname quiet errors flush discard tz",
    "exfat": "fmask dmask umask iocharset errors discard",
    "iso9660": "iocharset utf8 norock nojoliet mode dmode",
    "udf": "iocharset utf8 umask mode dmode",
}
IDMAPPED = frozenset(("ext4", "xfs", "btrfs", "f2fs", "erofs", "squashfs"))
"""Those whose files have owners: the kernel maps them to the instance's. Of the others everything is the instance's root's."""
READONLY = frozenset(("erofs", "squashfs", "iso9660"))

MAGIC = (
    ("xfs", 0, b"XFSB"),
    ("squashfs", 0, b"hsqs"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("ext4", 0x438, b"\x53\xef"),
    ("erofs", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("f2fs", 0x400, b"\x10\x20\xf5\xf2"),
    ("exfat", 3, b"EXFAT   "),
    ("vfat", 82, b"FAT32   "),
    ("vfat", 54, b"FAT16   "),
    ("vfat", 54, b"FAT12   "),
    ("iso9660", 0x8001, b"CD001"),
    ("udf", 0x8001, b"BEA01"),
    ("ntfs", 3, b"NTFS    "),
    ("swap", 4086, b"SWAPSPACE2"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM", 0x218, b"LVM2 001"),
)
"""Where the kernel looks for a file system, and what has to be there."""


def split(kind: str, words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The options of the mount and those of the file system. Raises UnsupportedError for one that is not given."""
    options: list[str] = []
    data: list[str] = []
    known = OPTIONS[kind].split()
    for word in words:
        key, _, value = word.partition("=")
        if word in MOUNT:
            options.append(word)
        elif word == "noatime" or (key in known and "/" not in value and "," not in value):
            data.append(word)
        else:
            raise UnsupportedError(
                f"the mount option `{word}` is not given to a {kind}", hint=f"there are noatime, {', '.join(known)}"
            )
    if len(",".join(data)) > 255:
        raise UnsupportedError("its mount options are longer than 255 bytes")
    return options, data


def probe(path: str) -> str:
    """What is on a device, "" when that is unknown. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        first, far = file.read(0x9000), b""
        if file.seek(0, os.SEEK_END) > 0x10080:
            file.seek(0x10000)
            far = file.read(0x80)
    data = first.ljust(0x10000, b"\0") + far
    return next((kind for kind, at, text in MAGIC if data[at : at + len(text)] == text), "")
