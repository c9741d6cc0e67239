# SPDX-License-Identifier: GPL-3.0-or-later
"""Two ways to a device that are not the common system calls: io_uring's own commands, and the calls of 32-bit programs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

BLKFLSBUF = 0x1261
_libc = ctypes.CDLL(None, use_errno=True)


def _called(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def uring_command(fd: int) -> None:
    """Hand the driver of `fd` a command of its own through io_uring. Raises OSError with its answer, ENOSYS without io_uring."""
    large_entries, command, get_events = 1 << 10, 46, 1
    parameters = ctypes.create_string_buffer(struct.pack("=III", 0, 0, large_entries), 120)
    ring = _called(_libc.syscall(425, 1, parameters))
    try:
        tail, array = (struct.unpack_from("=I", parameters.raw, 40 + offset)[0] for offset in (4, 24))
        (completions,) = struct.unpack_from("=I", parameters.raw, 80 + 20)
        with mmap.mmap(ring, mmap.PAGESIZE) as queue, mmap.mmap(ring, 128, offset=0x10000000) as entries:
            entries[:12] = struct.pack("=BBHiI", command, 0, 0, fd, 0)
            queue[array : array + 4] = struct.pack("=I", 0)
            queue[tail : tail + 4] = struct.pack("=I", 1)
            _called(_libc.syscall(426, ring, 1, 1, get_events, None, 0))
            (result,) = struct.unpack_from("=i", queue, completions + 8)
    finally:
        os.close(ring)
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def has_32_bit_calls() -> bool:
    """Whether the kernel has them; to ask by trying would be the end of us."""
    with open("/proc/kallsyms", encoding="ascii") as file:
        return any(line.rstrip().endswith("ia32_sys_ioctl") for line in file)


def ioctl_of_32_bits(fd: int) -> None:
    """BLKFLSBUF, which has no argument, as a 32-bit program calls it. Raises OSError."""
    # push rbx; mov eax, 54; mov ebx, edi; mov ecx, esi; int 0x80; pop rbx; ret
    code = bytes.fromhex("53 b836000000 89fb 89f1 cd80 5b c3")
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory[: len(code)] = code
        place = ctypes.c_char.from_buffer(memory)
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(ctypes.addressof(place))
        result = call(fd, BLKFLSBUF)
        del place, call
    if result < 0:
        raise OSError(-result, errno.errorcode.get(-result, ""))
