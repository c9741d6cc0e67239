# SPDX-License-Identifier: GPL-3.0-or-later
"""The few fields of an ELF header that tell whether a program runs here."""

from __future__ import annotations

import os
import struct

MACHINES = {
    3: "i686",
    62: "x86_64",
    40: "armv7l",
    183: "aarch64",
    243: "riscv64",
    21: "ppc64le",
    22: "s390x",
    258: "loongarch64",
}
RUNS_ON = {"x86_64": {"x86_64", "i686"}, "aarch64": {"aarch64", "armv7l"}}
"""Architectures besides its own that a machine's kernel runs."""

PT_INTERP = 3


class Elf:
    """`machine` is as `uname -m` says it, `static` whether it needs no dynamic linker."""

    __slots__ = ("machine", "static")

    def __init__(self, machine: str, static: bool) -> None:
        self.machine, self.static = machine, static


def read(path: str) -> Elf | None:
    """What `path` (followed through symlinks) is; None when it is no ELF program. Raises OSError."""
    # O_NONBLOCK: a fifo of that name in an image must not stop us.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as file:
        head = file.read(4096)
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order = "<" if head[5] == 1 else ">"
    (machine,) = struct.unpack_from(order + "H", head, 18)
    if head[4] == 2:
        (offset,) = struct.unpack_from(order + "Q", head, 32)
        size, count = struct.unpack_from(order + "HH", head, 54)
    else:
        (offset,) = struct.unpack_from(order + "I", head, 28)
        size, count = struct.unpack_from(order + "HH", head, 42)
    static = True
    for index in range(count):
        at = offset + index * size
        if at + 4 > len(head):
            break
        static &= struct.unpack_from(order + "I", head, at)[0] != PT_INTERP
    return Elf(MACHINES.get(machine, f"elf-machine-{machine}"), static)


def runs_here(machine: str) -> bool:
    """Whether this kernel runs programs of the architecture (as `uname -m` or Debian name it)."""
    here = os.uname().machine
    return canonical(machine) in RUNS_ON.get(here, {here})


def canonical(machine: str) -> str:
    """The kernel's word for an architecture that Debian or LXD name otherwise."""
    debian = {
        "amd64": "x86_64",
        "arm64": "aarch64",
        "i386": "i686",
        "armhf": "armv7l",
        "ppc64el": "ppc64le",
        "x86": "i686",
    }
    return debian.get(machine, machine)
