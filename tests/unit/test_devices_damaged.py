# SPDX-License-Identifier: GPL-3.0-or-later
"""Any keys on any machine, and machines whose kernel says strange things: rows that hold, or an error that can be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.devices import driver, rows
from ctrmgr.errors import CtrmgrError
from ctrmgr.spec import device
from tests import trees

KINDS = ("gpu", "accel", "infiniband", "usb", "unix-hotplug", "unix-block")
WORDS = ("0", "1", "10", "all", "true", "false", "card1", "0000:18:00.0", "0000:05:00.0/xcp3", "10de", "1a86", "mig", "sriov",
         "exclusive", "shared:2", "/dev/sdb", "/dev/x", "none", "full", "tty", "mlx5_0", "\u2028", "..", "-1", "a b")  # fmt: skip


def given(chance: random.Random, kind: str) -> dict[str, str]:
    """Up to two keys; seven times of eight with a value that could be meant."""
    fields = {key: field for key, field in driver.load(kind).FIELDS.items() if not field.refused}
    found = {}
    for key in chance.sample(sorted(fields), chance.randrange(3)):
        words = [word for word in WORDS if parses(fields[key], word)]
        found[key] = chance.choice(words if words and chance.random() < 0.88 else WORDS)
    return found


def parses(field: driver.Field, word: str) -> bool:
    try:
        return bool(field.parse(word))
    except ValueError:
        return False


def check(kind: str, keys: dict[str, str], root: str) -> int:
    """Rows that the plan can hold, or an error that names the device; how many rows."""
    wrong: CtrmgrError | None = None
    found: list[list[str]] = []
    try:
        found = rows.rows("d", device.check("d", {"type": kind, **keys}), root)
    except CtrmgrError as error:
        wrong = error
    assert wrong is None or ("`d`" in wrong.message and "\n" not in wrong.message)
    places = [row[4] for row in found if row[0] == "device"]
    assert len(places) == len(set(places)), keys
    for row in found:
        assert row[0] in (*rows.WORDS, "@io", "@gpu") and row[1] == "d" and "\0" not in "".join(row)
        if row[0] == "device":
            assert len(row) == 10 and row[3].startswith("/dev/") and ".." not in row[3].split("/")
    return len(found)


@pytest.mark.parametrize("tree", trees.NAMES)
def test_any_keys(machine: Callable[..., str], tree: str) -> None:
    root, chance = machine(tree), random.Random(tree)
    made = sum(check(kind, given(chance, kind), root) > 0 for _ in range(40) for kind in KINDS)
    assert made or tree == "nothing"


PLAIN = {"nvidia": ("gpu", {"driver.capabilities": "none"}), "mi300x": ("gpu", {}), "xe": ("gpu", {"gputype": "sriov"}),
         "mlx5": ("infiniband", {"parent": "mlx5_0"}), "aic100": ("accel", {"id": "1"}), "usb": ("usb", {"vendorid": "1a86"}),
         "disks": ("unix-block", {"source": "/dev/sdb"})}  # fmt: skip


@pytest.mark.parametrize("tree", PLAIN)
def test_a_kernel_that_says_strange_things(machine: Callable[..., str], tree: str) -> None:
    kind, keys = PLAIN[tree]
    root, chance = machine(tree), random.Random(tree)
    assert check(kind, keys, root)
    files = [path for path in Path(root).rglob("*") if path.is_file() and not path.is_symlink()]
    for _ in range(60):
        path = chance.choice(files)
        whole = path.read_bytes()
        path.write_bytes(
            chance.choice(
                (b"", b"-1\n", b"\xff" * 9, b"9" * 40, whole[: len(whole) // 2], whole[::-1], b"../../etc:0\n\0x")
            )
        )
        check(kind, keys, root)
        if chance.random() < 0.7:
            path.write_bytes(whole)
