# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table, for tests: its requests as `native_helpers/priv.h` has them, and a program that makes one call."""

from __future__ import annotations

import os
import subprocess
from ctypes import Structure, c_char, c_uint8, c_uint32, c_uint64
from pathlib import Path

from tests.rootful.double import SOURCES, WARNINGS
from tests.rootful.sanitized import FLAGS, programs

OWNER = 1_800_000_000
NOBODY = 2**32 - 1
CHAR, BLOCK = 0o020000, 0o060000


class IdMap(Structure):
    _fields_ = (("inside", c_uint32), ("outside", c_uint32), ("count", c_uint32))


def numbers(*names: str) -> list[tuple[str, type[c_uint32]]]:
    return [(name, c_uint32) for name in names]


class CgroupCreate(Structure):
    number = 1
    _fields_ = (("name", c_char * 64), *numbers("uid", "gid"))


class CgroupWrite(Structure):
    number = 2
    _fields_ = (("file", c_char * 64), ("value", c_char * 256))


class CgroupRemove(Structure):
    number = 3
    _fields_ = (("name", c_char * 64),)


class Idmap(Structure):
    number = 4
    _fields_ = (*numbers("uids", "gids"), ("uid", IdMap * 32), ("gid", IdMap * 32))


class Layer(Structure):
    number = 5
    _fields_ = (*numbers("read_only"),)


class Overlay(Structure):
    number = 6
    _fields_ = (*numbers("uid", "gid"),)


class Dev(Structure):
    number = 7
    _fields_ = (*numbers("uid", "gid", "tty_gid"),)


class Node(Structure):
    number = 8
    _fields_ = (("aside", c_char * 64), *numbers("type", "major", "minor", "mode", "uid", "gid"))


class Revoke(Structure):
    number = 9
    _fields_ = (("path", c_char * 256), *numbers("uid", "gid", "keep"))


class Place(Structure):
    number = 19
    _fields_ = (("aside", c_char * 64), ("path", c_char * 256), *numbers("root_uid", "root_gid"))


class Grant(Structure):
    number = 20
    _fields_ = (*numbers("mode", "uid", "gid"),)


class Clone(Structure):
    number = 21
    _fields_ = (*numbers("writable", "executable", "recursive"),)


class Filesystem(Structure):
    number = 32
    _fields_ = (
        ("type", c_char * 64), ("data", c_char * 256), ("name", c_char * 64), *numbers("writable", "executable", "uid", "gid"),
    )  # fmt: skip


class Shift(Structure):
    number = 33
    _fields_ = (*numbers("recursive"),)


class Bind(Structure):
    number = 22
    _fields_ = (("path", c_char * 256), *numbers("uid", "gid"))


class Unbind(Bind):
    number = 23


class Program(Structure):
    number = 10
    _fields_ = (*numbers("v1"),)


class Allow(Structure):
    number = 11
    _fields_ = (*numbers("v1", "type", "major", "minor", "access"),)


class Deny(Allow):
    number = 12


class KernelMounts(Structure):
    number = 13
    _fields_ = (*numbers("host_network", "cgroup", "uid", "gid", "tty_gid"),)


class Mask(Structure):
    number = 14
    _fields_ = (("path", c_char * 256), *numbers("read_only"))


class Console(Structure):
    number = 15
    _fields_ = (*numbers("uid", "gid"),)


class Link(Structure):
    number = 16
    _fields_ = (
        ("bridge", c_char * 16), ("host", c_char * 16), ("inside", c_char * 16), ("mac", c_uint8 * 6), *numbers("mtu"),
    )  # fmt: skip


class Address(Structure):
    _fields_ = (("family", c_uint8), ("prefix", c_uint8), ("bytes", c_uint8 * 16))


class Inside(Structure):
    number = 17
    _fields_ = (("address", Address * 4), ("gateway", Address * 2), *numbers("addresses", "gateways", "link"))


class Sysctl(Structure):
    number = 24
    _fields_ = (("name", c_char * 256), ("value", c_char * 256), *numbers("uid", "gid"))


class Shape(Structure):
    number = 18
    _fields_ = (
        ("link", c_char * 16), ("ingress", c_uint64), ("egress", c_uint64), *numbers("priority", "prioritized"),
    )  # fmt: skip


class Fence(Structure):
    number = 28
    _fields_ = (*numbers("flags"),)


class FenceSet(Structure):
    number = 29
    _fields_ = (*numbers("type", "major", "minor", "closed"),)


class Uevent(Structure):
    number = 30
    _fields_ = (*numbers("uid", "gid", "size"), ("text", c_char * 1968))


class Netdev(Structure):
    number = 34
    _fields_ = (
        *numbers("index"), ("name", c_char * 16), ("address", c_uint8 * 32), *numbers("address_size", "mtu", "up"),
    )  # fmt: skip


class Rdma(Structure):
    number = 35
    _fields_ = (*numbers("index"),)


class Class(Structure):
    number = 36
    _fields_ = (("name", c_char * 64),)


class ClassLink(Structure):
    number = 37
    _fields_ = (("name", c_char * 64), ("target", c_char * 256))


class GroupCreate(Structure):
    number = 38
    _fields_ = (("name", c_char * 256),)


class GroupSet(Structure):
    number = 39
    _fields_ = (("line", c_char * 1024),)


class GroupJoin(Structure):
    number = 40
    _fields_ = (*numbers("flags"),)


class GroupRemove(Structure):
    number = 41
    _fields_ = (("name", c_char * 256),)


class Guids(Structure):
    number = 42
    _fields_ = (
        ("node", c_uint64),
        ("port", c_uint64),
        ("link", c_uint32),
        ("function", c_uint32),
        ("address", c_char * 16),
        ("driver", c_char * 64),
    )


OPERATIONS: dict[type[Structure], tuple[int, int]] = {
    CgroupCreate: (1, 1), CgroupWrite: (1, 1), CgroupRemove: (1, 1), Idmap: (1, 1), Layer: (1, 2), Overlay: (3, 40),
    Dev: (0, 0), Node: (2, 2), Revoke: (2, 3), Place: (1, 1), Grant: (2, 2), Clone: (1, 3), Bind: (2, 2), Unbind: (2, 2), Program: (1, 2), Allow: (1, 1), Deny: (1, 1), KernelMounts: (1, 1),
    Mask: (2, 2), Console: (2, 2), Link: (1, 1), Inside: (0, 0), Fence: (2, 2),
    FenceSet: (1, 1), Filesystem: (0, 1), Shift: (2, 2), Shape: (0, 0), Sysctl: (1, 1), Uevent: (2, 2),
    Netdev: (3, 3), Rdma: (3, 3), Class: (1, 1), ClassLink: (1, 1),
    GroupCreate: (1, 1), GroupSet: (1, 1), GroupJoin: (2, 2), GroupRemove: (1, 1), Guids: (1, 1),
}  # fmt: skip
"""How many descriptors each takes."""


class Table:
    """The operations in a program of their own, with sanitizers: the monitor's objects."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "priv-driver"
        names = (
            "priv", "priv_bind", "priv_cgroup", "priv_class", "priv_device", "priv_fence", "priv_filesystem", "priv_guids", "priv_mount", "priv_net", "priv_netdev", "priv_program", "priv_resctrl", "btf", "netlink", "priv_sysctl", "priv_uevent", "shape",
        )  # fmt: skip
        built = programs() / "ctrmgr-monitor.p"
        driver = Path(__file__).with_name("priv_driver.c")
        words = ["cc", *WARNINGS, *FLAGS, f"-I{SOURCES}", "-o", self.program, driver]
        subprocess.run([*words, *(built / f"{name}.c.o" for name in names)], check=True)

    def raw(self, number: int, request: bytes, *fds: int, apart: bool = True) -> tuple[int, int]:
        """The errno, and how many descriptors came out.

        Apart: in a mount and network namespace of its own, so that a call that should be refused and is not does no harm.
        """
        words = [self.program, str(number), *map(str, fds)]
        done = subprocess.run(
            [*(["unshare", "--mount", "--net"] if apart else []), *words],
            input=request, capture_output=True, pass_fds=[fd for fd in {*fds} if fd >= 0],
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        code, out, said = done.stdout.decode().rstrip("\n").split("\t", 2)
        assert (code == "0") == (said == ": "), said
        return int(code), int(out)

    def __call__(self, request: Structure, *fds: int) -> tuple[int, int]:
        return self.raw(request.number, bytes(request), *fds)  # type: ignore[attr-defined]

    def refuses(self, request: Structure, *fds: int) -> int:
        code, out = self(request, *fds)
        assert out == 0
        return code


class Opened:
    """Descriptors of every kind, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fds = folder, list[int]()

    def __call__(self, path: str | Path, flags: int = os.O_RDONLY) -> int:
        self.fds.append(os.open(path, flags))
        return self.fds[-1]

    def kinds(self) -> dict[str, int]:
        (self.folder / "file").touch()
        self.fds += os.pipe()
        return {
            "pipe": self.fds[-1],
            "file": self(self.folder / "file"),
            "directory": self(self.folder),
            "device": self("/dev/null"),
            "namespace": self("/proc/self/ns/mnt"),
        }
