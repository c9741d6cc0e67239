# SPDX-License-Identifier: GPL-3.0-or-later
"""`intelRdt`: what of it a machine can do, the plan's row that it becomes, and whether a class that is there is the one that is meant.

What the files of resctrl have is as in the kernel's Documentation/filesystems/resctrl.rst.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrmgr.devices import resctrl, rows
from ctrmgr.devices.driver import Resolved
from ctrmgr.edits import ContainerEdits, IntelRdt
from ctrmgr.errors import SpecError, UnsupportedError
from ctrmgr.host import resctrl as reader
from tests.conftest import ROOT

SCHEMATA = "    L3:0=fffff;1=fffff\n    MB:0=100;1=100\n"


def tree(
    root: Path, schemata: str = SCHEMATA, features: str = "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"
) -> str:
    """A machine that has resctrl mounted, on a place with a blank in its name."""
    top = root / "sys/fs/res ctrl"
    (top / "info/L3").mkdir(parents=True)
    (top / "tasks").touch()
    if schemata:
        (top / "schemata").write_text(schemata)
    if features:
        (top / "info/L3_MON").mkdir()
        (top / "info/L3_MON/mon_features").write_text(features)
    (root / "proc/self").mkdir(parents=True)
    lines = (
        "22 27 0:21 / /proc rw - proc proc rw\n" * 100 + "30 23 0:26 / /sys/fs/res\\040ctrl rw - resctrl resctrl rw\n"
    )
    (root / "proc/self/mountinfo").write_text(lines)
    return str(root)


@pytest.mark.parametrize(
    ("rdt", "row"),
    [
        (IntelRdt(), [".", ""]),
        (IntelRdt("gold"), ["gold", ""]),
        (IntelRdt("/", enable_monitoring=True), ["/", "monitored"]),
        (IntelRdt(enable_cmt=True), [".", "monitored"]),
        (IntelRdt("a b", enable_mbm=True), ["a b", "monitored"]),
        (
            IntelRdt("", "L3:0=f\nL3:1=ff0\n", "MB:0=20;1=70", ["L3:0=7"]),
            [".", "", "L3:0=f", "L3:1=ff0", "MB:0=20;1=70", "L3:0=7"],
        ),
    ],
)
def test_the_row(tmp_path: Path, rdt: IntelRdt, row: list[str]) -> None:
    """Lines in OCI's order: `l3CacheSchema`, `memBwSchema`, `schemata`."""
    place, (name, *rest) = "/sys/fs/res ctrl", row
    made = rows.rows_of("d", "cdi", Resolved(ContainerEdits(intel_rdt=rdt)), {}, tree(tmp_path))
    assert made == [["resctrl", "d", name, place, *rest]]


@pytest.mark.parametrize(
    ("rdt", "error", "said"),
    [
        (IntelRdt(schemata=["L2:0=f"]), UnsupportedError, "does not share out `L2`; it does L3, MB"),
        (IntelRdt(l3_cache_schema="L3CODE:0=f"), UnsupportedError, "`L3CODE`"),
        (IntelRdt(mem_bw_schema="L3:0=f"), ValueError, "does not begin with `MB:`"),
        (IntelRdt(mem_bw_schema="MB:0=1\nL3:0=f"), ValueError, "is no line"),
        (IntelRdt(schemata=["L3"]), ValueError, "is no line"),
        (IntelRdt(schemata=["L3:\t0=f"]), ValueError, "is no line"),
        (IntelRdt(schemata=[f"L3:0=f{'0' * 1100}"]), ValueError, "is no line"),
        (IntelRdt(schemata=["L3:0=f"] * 41), ValueError, "more than 40"),
        (IntelRdt("."), ValueError, "name of a class"),
        (IntelRdt(".."), ValueError, "name of a class"),
        (IntelRdt("a/b"), ValueError, "name of a class"),
        (IntelRdt("a\tb"), ValueError, "name of a class"),
        (IntelRdt("a\\b"), ValueError, "name of a class"),
        (IntelRdt("ä" * 128), ValueError, "name of a class"),
    ],
)
def test_what_is_refused(tmp_path: Path, rdt: IntelRdt, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        resctrl.row("d", rdt, tree(tmp_path))


def test_a_machine_that_does_half(tmp_path: Path) -> None:
    """Counting and sharing out are features of their own."""
    shares, counts = tree(tmp_path / "shares", features=""), tree(tmp_path / "counts", "", "llc_occupancy\n")
    with pytest.raises(UnsupportedError, match=r"`enableMonitoring`: .* it counts nothing"):
        resctrl.row("d", IntelRdt(enable_monitoring=True), shares)
    with pytest.raises(UnsupportedError, match=r"`enableMBM`: .* it counts llc_occupancy"):
        resctrl.row("d", IntelRdt("/", enable_mbm=True), counts)
    with pytest.raises(UnsupportedError, match="has no classes"):
        resctrl.row("d", IntelRdt(enable_cmt=True), counts)
    assert resctrl.row("d", IntelRdt("/", enable_cmt=True), counts)[2:] == ["/", "/sys/fs/res ctrl", "monitored"]
    reader.check(f"{counts}/sys/fs/res ctrl")


@pytest.mark.parametrize(
    ("filesystems", "flags", "said"),
    [
        ("nodev\tresctrl\n", "fpu rdt_a", "no resctrl is mounted on this host"),
        ("nodev\tsysfs\n", "fpu cat_l3 rdt_a", "this kernel has no resctrl"),
        ("nodev\tsysfs\n", "fpu cqm", "this kernel has no resctrl"),
        ("nodev\tsysfs\n", "fpu", "whose CPU cannot"),
    ],
)
def test_a_host_without(tmp_path: Path, filesystems: str, flags: str, said: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/filesystems").write_text(filesystems)
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    with pytest.raises(UnsupportedError, match=f"`intelRdt`, and .*{said}"):
        resctrl.row("d", IntelRdt(), str(tmp_path))
    with pytest.raises(UnsupportedError, match="any more"):
        reader.check(str(tmp_path))


def test_one_class_for_all_devices() -> None:
    one, two = ([["resctrl", name, "gold", "/r", "", "L3:0=f"]] for name in "ab")
    assert rows.shared([*one, *two]) == [*one, *two]
    two[0][2] = "silver"
    with pytest.raises(SpecError, match="`a` and `b` put the instance into different classes"):
        rows.shared([*one, *two])
    assert rows.without([*one, *two], "a") == two


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, folder = tmp_path_factory.mktemp("schemata") / "driver", ROOT / "native_helpers"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]  # fmt: skip
    sources = [ROOT / "tests/unit/schemata_driver.c", folder / "schemata.c"]
    subprocess.run(["cc", *flags, f"-I{folder}", *sources, "-o", program], check=True)
    return program


HAS = "    L2:0=0f;1=ff;10=3\nL3CODE:0=3\n    L3:0=00ff;1=f0\n    MB:0= 30;1=100\n"


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ("L3:0=ff;1=f0", True),
        ("L3:1=00F0;0=ff", True),
        ("L3: 0 = ff ; 1 = f0", True),
        ("L3:0=ff", True),  # of the rest nothing is asked
        ("L3:0=fe", False),
        ("L3:0=ff;1=ff", False),
        ("L3:2=ff", False),
        ("L2:1=ff", True),
        ("L2:10=3", True),
        ("L2:0=f;10=7", False),
        ("L3CODE:0=3", True),
        ("L3DATA:0=3", False),
        ("L:0=3", False),
        ("MB:0=30", True),
        ("MB:0=25;1=91", True),  # the kernel rounds up to what the CPU can do
        ("MB:0=31", False),
        ("MB:0=20", False),
        ("MB:0=", False),
        ("MB:", False),
        ("MB", False),
        ("MB:0=30;", False),
        ("MB:0=30x", False),
        ("MB:0=30 1=100", False),
        ("", False),
    ],
)
def test_a_class_that_is_there(driver: Path, wanted: str, holds: bool) -> None:
    assert subprocess.run([driver, HAS, wanted, "10"]).returncode == int(not holds)


def test_a_class_that_is_read_wrong(driver: Path) -> None:
    for has in ("", "\n", "L3", "L3:", "L3:0", "L3:0=", "L3:0=g", "L3:;0=ff", "MB:0=ff\n"):
        assert subprocess.run([driver, has, "L3:0=ff", "0"]).returncode == 1, has
    assert subprocess.run([driver, "MB:0=2048", "MB:0=2048", "0"]).returncode == 0
