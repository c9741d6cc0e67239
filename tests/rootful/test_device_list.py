# SPDX-License-Identifier: GPL-3.0-or-later
"""`device list` says which instances have a device: now, or with their next start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same, settle


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "disk"
    file.write_bytes(bytes(1 << 20))
    device = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    yield device
    subprocess.run(["losetup", "-d", device], check=True)


def held(ctr: Ctr, word: str) -> list[tuple[str, str, bool]]:
    shown = json.loads(ctr("device", "show", word, "--format", "json").stdout)
    return [(each["instance"], each["device"], each["live"]) for each in shown["holders"]]


def test_holders(ctr: Ctr, loop: str, host_snapshot: Callable[[], dict[str, object]]) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("create", "builtin:busybox", "c2", "-p", "no-network", "-d", "f,type=unix-char,source=/dev/fuse")
    settle()
    before = host_snapshot()
    assert held(ctr, "fuse") == [("c2", "f", False)]
    ctr("device", "list")
    ctr("device", "tree")
    same(before, host_snapshot())
    ctr("attach-device", "c1", "mine", "type=unix-char", "source=/dev/fuse", "path=/dev/other", "--volatile")
    ctr("attach-device", "c1", loop)
    assert held(ctr, "/dev/fuse") == [("c1", "mine", True), ("c2", "f", False)]
    assert held(ctr, loop) == [("c1", loop.removeprefix("/dev/"), True)]
    (line,) = (line for line in ctr("device", "list").stdout.splitlines() if " /dev/fuse " in line)
    assert line.endswith("c1, (c2)")
    ctr("detach-device", "c1", "mine", "--volatile")
    ctr("stop", "--force", "c1")
    assert held(ctr, "/dev/fuse") == [("c2", "f", False)]
    assert held(ctr, loop) == [("c1", loop.removeprefix("/dev/"), False)]
    ctr("delete", "c1", "c2")
    assert held(ctr, loop) == held(ctr, "/dev/fuse") == []


def test_a_damaged_instance_hides_nothing(ctr: Ctr) -> None:
    ctr("create", "builtin:busybox", "c1", "-p", "no-network", "-d", "f,type=unix-char,source=/dev/fuse")
    ctr("create", "builtin:busybox", "c2", "-p", "no-network", "-d", "f,type=unix-char,source=/dev/fuse")
    plan = ctr.folder / "state/instances/c1/plan"
    plan.write_bytes(b"garbage\0")
    assert held(ctr, "/dev/fuse") == [("c2", "f", False)]
    plan.unlink()
    assert held(ctr, "/dev/fuse") == [("c2", "f", False)]


def test_a_monitor_that_is_stuck(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", "f,type=unix-char,source=/dev/fuse")
    state = (ctr.folder / "run/c1/state").read_text().split()
    monitor = int(state[state.index("monitor") + 1])
    os.kill(monitor, signal.SIGSTOP)
    try:
        assert held(ctr, "/dev/fuse") == [("c1", "f", True)]
    finally:
        os.kill(monitor, signal.SIGCONT)
