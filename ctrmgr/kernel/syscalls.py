# SPDX-License-Identifier: GPL-3.0-or-later
"""System calls that Python has no function for: one each, by the kernel's name, raising OSError(errno, text, path).

Cold paths only: loading ctypes costs more than a launch may.
"""

from __future__ import annotations

import ctypes
import errno
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SYS_CHROOT, CAP_SETFCAP = 0, 1, 3, 4, 18, 31
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, path: str = "") -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path or None)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones (`CLONE_NEW…`)."""
    _check(_libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    _check(
        _libc.mount(
            os.fsencode(source) or None,
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        target,
    )


def umount2(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), target)


def pivot_root(new_root: str, put_old: str) -> None:
    """glibc has no wrapper; the number differs between architectures, and libc's own table is not to be had."""
    numbers = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217, "i686": 217, "armv7l": 218}
    number = numbers.get(os.uname().machine, 41)
    _check(_libc.syscall(ctypes.c_long(number), os.fsencode(new_root), os.fsencode(put_old)), new_root)


def open_tree(path: str) -> int:
    """A descriptor of a copy of the mount at `path` and of all below it, which is mounted nowhere yet. Linux 5.2."""
    number, clone = ctypes.c_long(428), 1
    fd: int = _libc.syscall(number, AT_FDCWD, os.fsencode(path), clone | AT_RECURSIVE | os.O_CLOEXEC)
    _check(fd, path)
    return fd


def move_mount(tree: int, target: str) -> None:
    """Mount what `open_tree` gave. Linux 5.2."""
    number, empty_path = ctypes.c_long(429), 4
    _check(_libc.syscall(number, tree, b"", AT_FDCWD, os.fsencode(target), empty_path), target)


def mount_setattr(path: str, attributes: int, cleared: int = 0) -> None:
    """Set `MOUNT_ATTR_…` on the mount at `path` and on all below it, and clear others. Linux 5.12."""
    request = (ctypes.c_uint64 * 4)(attributes, cleared, 0, 0)
    number = ctypes.c_long(442)  # the same on every architecture
    _check(
        _libc.syscall(number, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, request, ctypes.c_size_t(32)),
        path,
    )


def capset(capabilities: int) -> None:
    """Make `capabilities` (a mask) the calling thread's effective and permitted set; nothing is inheritable."""
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(header, data))


def pidfd_open(pid: int) -> int:
    """A descriptor of a process, which stays its own whoever gets the number next."""
    fd: int = _libc.syscall(ctypes.c_long(434), pid, 0)
    _check(fd)
    return fd


def setns(fd: int, kinds: int) -> None:
    """Join namespaces (`CLONE_NEW…`) of the process behind a pidfd. Linux 5.8."""
    _check(_libc.setns(fd, kinds))


def join_session_keyring() -> None:
    """Have an empty keyring for a session's, and none of the caller's keys."""
    numbers = {"x86_64": 250, "i686": 288, "armv7l": 311, "ppc64le": 271, "s390x": 280}
    number, join = numbers.get(os.uname().machine, 219), 1
    result = _libc.syscall(ctypes.c_long(number), join, None)
    if result < 0 and ctypes.get_errno() != errno.ENOSYS:  # a kernel without keys has none to give away
        _check(result)


def rename_exchange(one: str, other: str) -> None:
    """Let two names change places, at once."""
    _check(_libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), 2), one)
