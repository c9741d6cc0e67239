# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to files, as the kernel tells it (inotify). Cold: loads ctypes."""

from __future__ import annotations

import ctypes
import os
import struct

MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED = 0x4000, 0x8000
EVENT = struct.Struct("=iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """One queue. `fd` is readable when there is something in it."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error("inotify")

    def watch(self, path: str, mask: int) -> int:
        """The number of the watch; the one that it has already, if the file is watched. Raises OSError."""
        number = int(_libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)))
        if number < 0:
            raise _error(path)
        return number

    def forget(self, number: int) -> None:
        _libc.inotify_rm_watch(self.fd, number)  # one that is gone is forgotten already

    def read(self) -> list[tuple[int, int, str]]:
        """(watch, what, name) of all that has happened; a watch of -1 means that events were lost."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            number, mask, _, length = EVENT.unpack_from(data, at)
            at += EVENT.size
            found.append((number, mask, os.fsdecode(data[at : at + length].partition(b"\0")[0])))
            at += length
        return found

    def close(self) -> None:
        os.close(self.fd)


def _error(path: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)
