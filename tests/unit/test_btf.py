# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of the kernel's type information: against types written by hand, damaged ones, and this machine's own."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

KERNEL = Path("/sys/kernel/btf/vmlinux")
INT, STRUCT, UNION, ENUM, FUNC, PROTO, VAR, DATASEC, TAG, ENUM64 = 1, 4, 5, 6, 12, 13, 14, 15, 17, 19
BITFIELDS = 1 << 31


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("btf") / "driver"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    folder = ROOT / "native_helpers"
    sources = [ROOT / "tests/unit/btf_driver.c", folder / "btf.c"]
    subprocess.run(["cc", *flags, f"-I{folder}", *sources, "-o", program], check=True)
    return program


def ask(driver: Path, data: bytes, folder: Path, *what: str) -> tuple[int, list[str]]:
    (folder / "btf").write_bytes(data)
    with (folder / "btf").open("rb") as file:
        done = subprocess.run([driver, *what], stdin=file, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout.splitlines()


class Types:
    """BTF under construction."""

    def __init__(self) -> None:
        self.strings, self.types, self.count = b"\0", b"", 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(self, kind: int, name: str, last: int = 0, *, extra: bytes = b"", vlen: int = 0, flag: int = 0) -> int:
        self.types += struct.pack("=III", self.name(name), flag | kind << 24 | vlen, last) + extra
        self.count += 1
        return self.count

    def composite(self, kind: int, name: str, *members: tuple[str, int, int], flag: int = 0) -> int:
        extra = b"".join(struct.pack("=III", self.name(member), of, offset) for member, of, offset in members)
        return self.add(kind, name, 64, extra=extra, vlen=len(members), flag=flag)

    def dump(self) -> bytes:
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings))
        return header + self.types + self.strings


def some() -> Types:
    """Every kind that is longer than its head, so that a wrong length would lose the way."""
    types = Types()
    number = types.add(INT, "int", 4, extra=bytes(4))
    types.add(ENUM, "colour", 4, extra=bytes(16), vlen=2)
    types.add(ENUM64, "large", 8, extra=bytes(24), vlen=2)
    types.add(VAR, "variable", number, extra=bytes(4))
    types.add(DATASEC, ".data", 4, extra=bytes(12), vlen=1)
    types.add(TAG, "tag", number, extra=bytes(4))
    proto = types.add(PROTO, "", number, extra=bytes(8), vlen=1)
    inner = types.composite(STRUCT, "", ("deep", number, 32))
    either = types.composite(UNION, "", ("one", number, 0), ("", inner, 0))
    types.composite(STRUCT, "outer", ("first", number, 0), ("", either, 64), ("named", either, 128))
    types.composite(STRUCT, "packed", ("bits", number, 3 << 24 | 40), flag=BITFIELDS)
    types.add(FUNC, "outer", proto)
    types.add(FUNC, "called", proto)
    return types


def test_members_and_functions(driver: Path, tmp_path: Path) -> None:
    what = ("outer.first", "outer.one", "outer.deep", "outer.named", "packed.bits", "outer", "called")
    assert ask(driver, some().dump(), tmp_path, *what) == (0, ["0", "8", "12", "16", "5", "12", "13"])
    # `two` is not there, `colour` and `int` are no functions, `inner` has no name
    missing = ("outer.two", "none.first", "colour", "int", "")
    assert ask(driver, some().dump(), tmp_path, *missing) == (0, ["-1"] * 5)


def test_a_type_that_contains_itself(driver: Path, tmp_path: Path) -> None:
    types = Types()
    types.composite(STRUCT, "", ("", 1, 8), ("", 2, 0))
    types.composite(STRUCT, "loop", ("", 1, 8), ("", 2, 0))
    assert ask(driver, types.dump(), tmp_path, "loop.any") == (0, ["-1"])


def test_every_way_of_being_cut_off_is_refused(driver: Path, tmp_path: Path) -> None:
    whole = some().dump()
    for length in (0, 1, 23, 24, 30, len(whole) // 2, len(whole) - 1):
        assert ask(driver, whole[:length], tmp_path, "outer.first") == (1, ["Invalid argument"]), length


@pytest.mark.parametrize("at", range(0, 24, 2))
def test_a_damaged_head_does_no_harm(driver: Path, tmp_path: Path, at: int) -> None:
    whole = bytearray(some().dump())
    for value in (0xFFFF, 0x7FFF, 0x0003):
        whole[at : at + 2] = struct.pack("=H", value)
        ask(driver, bytes(whole), tmp_path, "outer.first", "called")


def test_a_kind_of_the_future_is_refused(driver: Path, tmp_path: Path) -> None:
    types = some()
    types.add(25, "strange")
    assert ask(driver, types.dump(), tmp_path, "outer.first") == (1, ["Invalid argument"])


def test_this_kernel(driver: Path, tmp_path: Path) -> None:
    """What the fence needs is there, and lies where it can."""
    if not KERNEL.exists():
        assert not Path("/sys/kernel/btf").exists()
        return
    what = ("file.f_inode", "inode.i_mode", "inode.i_rdev", "task_struct.pid", "vfs_read", "file.no_such_member")
    code, found = ask(driver, KERNEL.read_bytes(), tmp_path, *what)
    assert code == 0
    inode, mode, device, pid, function, missing = map(int, found)
    assert mode == 0 and 0 < inode < 1024 and 0 < device < 1024 and pid > 0 and function > 0
    assert missing == -1
