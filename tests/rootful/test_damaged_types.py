# SPDX-License-Identifier: GPL-3.0-or-later
"""Descriptions of the kernel's types that are damaged, cut off or made up: the fence's parser survives them."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rootful.double import cgroup2
from tests.rootful.table import Fence, Table

STRUCTURE, FUNCTION = 4, 12
FIELDS = {"io_uring_cmd": ("file",), "file": ("f_inode",), "inode": ("i_mode", "i_rdev")}
FUNCTIONS = ("bpf_lsm_file_permission", "bpf_lsm_file_ioctl", "bpf_lsm_mmap_file", "bpf_lsm_file_receive")
HEADER = 24


def types() -> bytes:
    """As the kernel's, with no more than what a fence looks for."""
    strings, rows = bytearray(1), bytearray()

    def named(name: str) -> int:
        at = len(strings)
        strings.extend(name.encode() + b"\0")
        return at

    for name, fields in FIELDS.items():
        rows += struct.pack("=III", named(name), STRUCTURE << 24 | len(fields), 64)
        for index, field in enumerate(fields):
            rows += struct.pack("=III", named(field), 0, 64 * index)
    for name in FUNCTIONS:
        rows += struct.pack("=III", named(name), FUNCTION << 24, 0)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, HEADER, 0, len(rows), len(rows), len(strings))
    return header + rows + strings


def damaged(chance: random.Random) -> bytes:
    made = bytearray(types())
    for _ in range(chance.randrange(1, 6)):
        at = chance.choice((chance.randrange(HEADER), chance.randrange(len(made))))
        made[at] = chance.choice((0, 1, 4, 0x7F, 0xFF, chance.randrange(256)))
    if chance.random() < 0.25:
        del made[chance.randrange(len(made)) :]
    return bytes(made)


@pytest.fixture
def cgroup() -> Iterator[int]:
    folder = cgroup2() / f"ctrmgr-test-types-{os.getpid()}"
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    yield fd
    os.close(fd)
    folder.rmdir()


def test_damage_is_survived(table: Table, tmp_path: Path, cgroup: int) -> None:
    """Refused by us, or by the kernel, in which there are no such functions: nothing is attached."""
    file = tmp_path / "types"
    chance, codes = random.Random(1), set()
    for number in range(200):
        file.write_bytes(damaged(chance) if number else types())
        fd = os.open(file, os.O_RDONLY)
        codes.add(table.refuses(Fence(), cgroup, fd))
        os.close(fd)
    assert 0 not in codes
    assert len(codes) > 1 and errno.EINVAL in codes, codes
