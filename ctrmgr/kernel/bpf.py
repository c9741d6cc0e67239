# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at the device programs on a cgroup, and taking one off. Cold, and root's."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from ctrmgr.kernel.syscalls import _check, _libc

PROG_DETACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 9, 13, 15, 16
CGROUP_DEVICE = 6
SYS_BPF = {"x86_64": 321, "ppc64le": 361, "s390x": 351, "armv7l": 386, "i686": 357}.get(os.uname().machine, 280)
MOST = 64
"""Programs on one cgroup; the kernel's own limit."""


def _bpf(command: int, attributes: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = _libc.syscall(SYS_BPF, command, buffer, 128)
    _check(result)
    return struct.pack("i", result) + buffer.raw


def device_programs(cgroup: str) -> list[tuple[int, str]]:
    """(id, name) of each device program that is attached to a cgroup2 directory itself. Raises OSError."""
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ids = (ctypes.c_uint32 * MOST)()
        asked = struct.pack("=IIIIQI", fd, CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), MOST)
        (count,) = struct.unpack_from("=I", _bpf(PROG_QUERY, asked), 4 + 24)
    finally:
        os.close(fd)
    found = []
    for number in ids[:count]:
        try:
            found.append((number, _name(number)))
        except OSError as error:
            if error.errno != errno.ENOENT:  # gone since it was listed
                raise
    return found


def _open(number: int) -> int:
    (fd,) = struct.unpack_from("i", _bpf(PROG_GET_FD_BY_ID, struct.pack("=I", number)))
    return int(fd)


def _name(number: int) -> str:
    fd = _open(number)
    try:
        info = ctypes.create_string_buffer(256)  # struct bpf_prog_info: the name is at 64
        _bpf(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)))
        return info.raw[64:80].partition(b"\0")[0].decode(errors="replace")
    finally:
        os.close(fd)


def take_off(cgroup: str, number: int) -> None:
    """Detach a device program from a cgroup2 directory. Raises OSError."""
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        program = _open(number)
        try:
            _bpf(PROG_DETACH, struct.pack("=III", fd, program, CGROUP_DEVICE))
        finally:
            os.close(program)
    finally:
        os.close(fd)
