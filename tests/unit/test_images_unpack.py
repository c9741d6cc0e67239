# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostile and odd archives against the unpacker alone, without the sandbox that would save us in the end."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrmgr.errors import SpecError
from ctrmgr.images.unpack import Limits, Unpacker


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, data: bytes = b"", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(data), 0o755 if kind == tarfile.DIRTYPE else 0o644
    info.uid, info.gid = os.getuid(), os.getgid()
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.LNKTYPE, linkname=target)


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpack(tmp: Path, data: bytes, limits: Limits | None = None, packed: int | None = None) -> tuple[Path, Unpacker]:
    root = tmp / "root"
    root.mkdir()
    unpacker = Unpacker(str(root), limits or Limits())
    unpacker.run(io.BytesIO(data), None if packed is None else lambda: packed)
    return root, unpacker


D = tarfile.DIRTYPE
HOSTILE = {
    "absolute": ([entry("/etc/passwd")], "absolute"),
    "absolute through pax": ([entry("x", pax_headers={"path": "/etc/passwd"})], "absolute"),
    "parent": ([entry("../outside")], "upwards"),
    "parent inside": ([entry("a/../../outside")], "upwards"),
    "parent that stays in": ([entry("a/../b")], "upwards"),
    "symlink then through it": ([link("a", "/etc"), entry("a/passwd")], "through `a`"),
    "relative symlink then through it": ([link("a", "../outside"), entry("a/x")], "through `a`"),
    "symlink below a directory": ([entry("d", D), link("d/a", ".."), entry("d/a/x")], "through `d/a`"),
    "symlink replaces a directory": ([entry("d", D), link("d", "/etc"), entry("d/x")], "something else"),
    "directory over symlink": ([link("d", "/etc"), entry("d", D), entry("d/x")], "something else"),
    "mkdir through symlink": ([link("a", "/tmp"), entry("a/b", D)], "through `a`"),
    "through a file": ([entry("a"), entry("a/b")], "through `a`"),
    "hard link outside": ([hard("a", "/etc/passwd")], "absolute"),
    "hard link upwards": ([hard("a", "../outside")], "upwards"),
    "hard link to nothing": ([hard("a", "b")], "does not hold"),
    "hard link through symlink": ([link("a", "/etc"), hard("b", "a/passwd")], "does not hold"),
    "hard link to a directory": ([entry("d", D), hard("a", "d")], "does not hold"),
    "hard link to itself": ([entry("a"), hard("a", "a")], "does not hold"),
    "character device": ([entry("etc/kmem", tarfile.CHRTYPE, devmajor=1, devminor=2)], "device node"),
    "block device": ([entry("sda", tarfile.BLKTYPE, devmajor=8)], "device node"),
    "device that looks like dev": ([entry("devices/x", tarfile.CHRTYPE)], "device node"),
    "owner beyond the range": ([entry("a", uid=65536)], "beyond the 65536"),
    "negative owner": ([entry("a", pax_headers={"gid": "-5"})], "beyond the 65536"),
    "root is a symlink": ([link(".", "/etc")], "root directory"),
    "root is a file": ([entry("./")], "root directory"),
    "too deep": ([entry("d/" * 300 + "f")], "deeper"),
    "name too long": ([entry("n" * 256)], "no possible"),
    "empty symlink": ([link("a", "")], "nowhere"),
    "host's attribute": ([entry("a", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})], "belongs to the host"),
    "unknown type": ([entry("a", b"Z")], "unknown type"),
}


@pytest.mark.parametrize(("entries", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, entries: Any, reason: str) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises(SpecError, match=reason):
        unpack(tmp_path, archive(*entries))
    assert list((tmp_path / "outside").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "root"}


def test_device_nodes_below_dev_are_left_out(tmp_path: Path) -> None:
    root, unpacker = unpack(tmp_path, archive(entry("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3), entry("a")))
    assert unpacker.nodes_left_out == 1
    assert not (root / "dev/null").exists()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_content_links_times_and_long_names(tmp_path: Path, form: int) -> None:
    long = "/".join(["d" * 100] * 5) + "/file"
    data = archive(
        entry("./", D, mode=0o750, mtime=5),
        entry("./a", data=b"hello", mode=0o4751, mtime=1234567890),
        hard("./b", "./a"),
        link("./c", "/etc/passwd"),
        hard("./c2", "c"),
        entry(long, data=b"deep"),
        entry("fifo", tarfile.FIFOTYPE),
        form=form,
    )
    root, unpacker = unpack(tmp_path, data)
    assert (root / "a").read_bytes() == b"hello"
    assert (root / "a").stat().st_mode & 0o7777 == 0o4751
    assert (root / "a").stat().st_mtime == 1234567890
    assert (root / "a").samefile(root / "b")
    assert os.readlink(root / "c2") == "/etc/passwd"
    assert (root / long).read_bytes() == b"deep"
    assert (root / "fifo").is_fifo()
    assert root.stat().st_mtime == 5
    assert root.stat().st_mode & 0o777 == 0o750
    assert unpacker.bytes == 9


def test_the_last_of_two_entries_counts(tmp_path: Path) -> None:
    root, _ = unpack(
        tmp_path, archive(entry("a", data=b"old"), hard("b", "a"), entry("a", data=b"new"), link("c", "a"), entry("c"))
    )
    assert (root / "a").read_bytes() == b"new"
    assert (root / "b").read_bytes() == b"old"
    assert not (root / "c").is_symlink()


def test_holes_stay_holes(tmp_path: Path) -> None:
    size = 8 << 20
    root, _ = unpack(tmp_path, archive(entry("a", data=bytes(size) + b"end")))
    status = (root / "a").stat()
    assert status.st_size == size + 3
    assert status.st_blocks * 512 < 1 << 20


def test_gnu_sparse(tmp_path: Path) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.seek(3 << 20)
        file.write(b"middle")
        file.truncate(9 << 20)
    for form in ("gnu", "pax"):
        target = tmp_path / f"{form}.tar"
        assert os.system(f"tar -C {tmp_path} --owner={os.getuid()} -S --format={form} -cf {target} sparse") == 0
        out = tmp_path / form
        out.mkdir()
        root, _ = unpack(out, target.read_bytes())
        assert (root / "sparse").read_bytes() == source.read_bytes()


def test_sparse_bomb(tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "0", "GNU.sparse.size": str(1 << 50), "GNU.sparse.map": f"0,1,{(1 << 50) - 1},1"}
    headers |= {"GNU.sparse.numblocks": "2", "GNU.sparse.name": "bomb"}
    with pytest.raises(SpecError, match="larger than"):
        unpack(tmp_path, archive(entry("a", data=b"xy", pax_headers=headers)))


def test_too_many_files_and_too_many_bytes(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="more than 10 files"):
        unpack(tmp_path, archive(*(entry(str(n)) for n in range(20))), Limits(files=10))
    (tmp_path / "2").mkdir()
    with pytest.raises(SpecError, match="larger than"):
        unpack(tmp_path / "2", archive(entry("a", data=bytes(3000))), Limits(bytes=2000))


def test_ratio_bomb(tmp_path: Path) -> None:
    data = archive(entry("a", data=bytes(80 << 20)))
    with pytest.raises(SpecError, match="more than 10 times"):
        unpack(tmp_path, data, Limits(ratio=10, ratio_from=1 << 20), packed=1 << 20)


def test_huge_header(tmp_path: Path) -> None:
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    with pytest.raises(SpecError, match="header of"):
        unpack(tmp_path, head.tobuf(tarfile.GNU_FORMAT) + bytes(4096))


GOOD = archive(entry("a", data=b"x" * 3000), entry("b", data=b"y" * 100))


@pytest.mark.parametrize("length", [100, 512, 600, 3000, 3584, 4000, 4608])
def test_truncated(tmp_path: Path, length: int) -> None:
    with pytest.raises(SpecError, match="ends in the middle"):
        unpack(tmp_path, GOOD[:length])


@pytest.mark.parametrize("at", [0, 110, 150, 3584, 3600])
def test_flipped_header_is_not_the_end(tmp_path: Path, at: int) -> None:
    data = bytearray(GOOD)
    data[at] ^= 0x55
    with pytest.raises(SpecError, match="corrupt"):
        unpack(tmp_path, bytes(data))


def test_empty_archive(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="empty"):
        unpack(tmp_path, bytes(10240))


PARTS = st.sampled_from(["", ".", "..", "a", "b", "dev", "\udcff", "é"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
KINDS = st.sampled_from([tarfile.REGTYPE, D, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
ENTRIES = st.lists(st.tuples(NAMES, KINDS, NAMES), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(entries=ENTRIES)
def test_no_archive_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, bytes, str]]
) -> None:
    top = tmp_path_factory.mktemp("fuzz")
    for name in ("a", "b"):
        (top / name).mkdir()
        (top / name / "canary").write_text("alive")
    before = sorted(str(path) for path in top.rglob("*"))
    data = archive(*(entry(name, kind, linkname=target) for name, kind, target in entries))
    try:
        root, unpacker = unpack(top, data)
    except SpecError:
        root = top / "root"
    else:
        assert {str(path.relative_to(root)) for path in root.rglob("*")} == set(unpacker.kinds) - {""}
    after = sorted(str(path) for path in top.rglob("*") if path != root and root not in path.parents)
    assert after == before
    assert all((top / name / "canary").stat().st_nlink == 1 for name in ("a", "b"))


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_any_flipped_byte_is_an_error_or_data(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    data = bytearray(GOOD)
    data[at] = value
    try:
        unpack(tmp_path_factory.mktemp("flip"), bytes(data))
    except SpecError:
        pass
