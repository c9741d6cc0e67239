# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds evict.c for a kernel of which there is the image alone: neither headers nor source, in a second.

What C must know of the kernel's structures is in the BTF that the image carries: where the few members are that evict.c names.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("evict.c")
FLAGS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-strict-aliasing", "-fno-pic", "-mcmodel=kernel",
    "-mno-red-zone", "-mgeneral-regs-only", "-mpreferred-stack-boundary=3", "-fno-stack-protector", "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables", "-fno-jump-tables",
)  # fmt: skip
UNPACK = {
    b"\x1f\x8b": ("gzip", "-dc"),
    b"\xfd7zXZ": ("xz", "-dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dcq"),
    b"\x02\x21\x4c\x18": ("lz4", "-dc"),
}
NEEDED = "dmem_cgroup_state_evict_valuable"
MEMBERS = {
    "module": ("char name[56]", "int (*init)(void)", "void (*exit)(void)"),
    "file_operations": (
        "struct module *owner",
        "ssize_t (*read)(struct file *, char *, size_t, loff_t *)",
        "ssize_t (*write)(struct file *, const char *, size_t, loff_t *)",
        "int (*release)(struct inode *, struct file *)",
    ),
    "miscdevice": ("int minor", "const char *name", "const struct file_operations *fops"),
    "kernel_param": (
        "const char *name",
        "struct module *mod",
        "const struct kernel_param_ops *ops",
        "void *arg",
    ),
    "rw_semaphore": (),
}
"""Of each structure what evict.c names, in C."""
TYPES = """\
typedef unsigned long long u64;
typedef long long loff_t;
typedef unsigned long size_t;
typedef long ssize_t;
typedef _Bool bool;
#define true  1
#define false 0
#define NULL  ((void *)0)
"""
INT, ARRAY, STRUCT, UNION, ENUM, FUNC, PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 1, 3, 4, 5, 6, 12, 13, 14, 15, 17, 19
FIXED = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
EACH = {STRUCT: 12, UNION: 12, ENUM: 8, PROTO: 8, DATASEC: 12, ENUM64: 12}


def unpacked(image: Path) -> bytes:
    """The ELF file in a bzImage; the header of the boot protocol says where it is."""
    packed = image.read_bytes()
    at, size = struct.unpack_from("<II", packed, 0x248)
    at += (packed[0x1F1] + 1) * 512
    payload = packed[at : at + size]
    command = next(command for magic, command in UNPACK.items() if payload.startswith(magic))
    if command[0] != "gzip":
        payload = payload[:-4]  # its size, which gzip has in it
    return subprocess.run(command, input=payload, stdout=subprocess.PIPE, check=True).stdout


def section(elf: bytes, name: str) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    _, count, strings = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + 64 * number) for number in range(count)]
    for start, _, _, _, at, size in sections:
        begin = sections[strings][4] + start
        if elf[begin : begin + len(name) + 1] == name.encode() + b"\0":
            return elf[at : at + size]
    raise LookupError(name)


class Btf:
    """A kernel's types, by their numbers."""

    def __init__(self, data: bytes) -> None:
        length, types, types_size, strings, strings_size = struct.unpack_from("<IIIII", data, 4)
        self.types = data[length + types : length + types + types_size]
        self.strings = data[length + strings : length + strings + strings_size]
        self.at = [0]
        place = 0
        while place < len(self.types):
            (info,) = struct.unpack_from("<I", self.types, place + 4)
            self.at.append(place)
            kind = info >> 24 & 0x1F
            place += 12 + FIXED.get(kind, 0) + EACH.get(kind, 0) * (info & 0xFFFF)

    def named(self, name: str, kind: int) -> int:
        """The number of a type; 0 when there is none."""
        offset = self.strings.find(b"\0" + name.encode() + b"\0") + 1
        for number, place in enumerate(self.at[1:], 1):
            start, info = struct.unpack_from("<II", self.types, place)
            if start == offset and info >> 24 & 0x1F == kind:
                return number
        return 0

    def size(self, number: int) -> int:
        (size,) = struct.unpack_from("<I", self.types, self.at[number] + 8)
        return int(size)

    def members(self, number: int, base: int = 0) -> Iterator[tuple[str, int]]:
        """Names and offsets in bytes; of what has no name its own members."""
        place = self.at[number]
        (info,) = struct.unpack_from("<I", self.types, place + 4)
        for index in range(info & 0xFFFF):
            start, below, bits = struct.unpack_from("<III", self.types, place + 12 + 12 * index)
            offset = base + (bits & 0xFFFFFF if info >> 31 else bits) // 8
            name = self.strings[start : self.strings.index(b"\0", start)].decode()
            if name:
                yield name, offset
            elif struct.unpack_from("<I", self.types, self.at[below] + 4)[0] >> 24 & 0x1F in (STRUCT, UNION):
                yield from self.members(below, offset)


def header(btf: Btf, version: str) -> str:
    """kernel.h: the structures, each with nothing but what is named of it, where the kernel has it."""
    names = [f"struct {name};\n" for name in ("file", "inode", "kernel_param_ops", *MEMBERS)]
    found = [TYPES, f'#define VERMAGIC "{version}"\n', *names]
    for name, wanted in MEMBERS.items():
        number = btf.named(name, STRUCT)
        offsets = dict(btf.members(number))
        at, lines = 0, []
        for member in sorted(wanted, key=lambda member: offsets[_name(member)]):
            offset = offsets[_name(member)]
            lines.append(f"\tchar before_{_name(member)}[{offset - at}];\n\t{member};\n")
            at = offset + _length(member)
        lines.append(f"\tchar rest[{btf.size(number) - at}];\n")
        found.append(f"struct {name} {{\n{''.join(lines)}}} __attribute__((packed, aligned(8)));\n")
    return "".join(found)


def _name(member: str) -> str:
    name: str = re.findall(r"\w+", member.partition(")")[0].partition("[")[0])[-1]
    return name


def _length(member: str) -> int:
    array = re.search(r"\[(\d+)\]", member)
    return 8 if "*" in member else int(array[1]) if array else 4


def build(image: Path, module: Path) -> bool:
    """Whether this kernel has what the module is about; then the module is there."""
    elf = unpacked(image)
    btf = Btf(section(elf, ".BTF"))
    if not btf.named(NEEDED, FUNC):
        return False
    version = re.search(rb"\0([^\0 ]+ (?:\w+ )*mod_unload [^\0]*)\0", elf)
    assert version, "the kernel unloads no modules"
    folder = module.parent
    (folder / "kernel.h").write_text(header(btf, version[1].decode()))
    subprocess.run(["gcc", *FLAGS, f"-I{folder}", "-c", "-o", module, SOURCE], check=True)
    return True
