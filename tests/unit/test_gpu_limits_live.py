# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on GPUs that change while an instance runs: all of them or none, and what was there before is what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrmgr.backend import gpu_limits
from ctrmgr.errors import HostError

PLACE = ["cgroup", "ctrmgr/c1"]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(tmp_path / "run"))
    for file, text in (
        ("exec_quantum_ms", "0\n"),
        ("sched_priority", "low [normal] high\n"),
        ("vram_quota", "1048576\n"),
    ):
        (tmp_path / file).write_text(text)
    return tmp_path


def plan(profile: Path, **values: str) -> list[list[str]]:
    return [PLACE, *(["gpu-limit", "g", "x", "sysfs", str(profile / file), value] for file, value in values.items())]


def now(profile: Path) -> list[str]:
    return [(profile / file).read_text().strip() for file in ("exec_quantum_ms", "sched_priority", "vram_quota")]


def test_changed_and_taken_back(profile: Path) -> None:
    first = plan(profile, exec_quantum_ms="25", vram_quota="4194304")
    second = plan(profile, exec_quantum_ms="50", sched_priority="high")
    gpu_limits.change("c1", [PLACE], first)
    assert now(profile) == ["25", "low [normal] high", "4194304"]
    gpu_limits.change("c1", first, second)
    assert now(profile) == ["50", "high", "1048576"]
    gpu_limits.change("c1", second, [PLACE])
    assert now(profile) == ["0", "normal", "1048576"]


def test_all_or_none(profile: Path) -> None:
    first = plan(profile, exec_quantum_ms="25")
    gpu_limits.change("c1", [PLACE], first)
    with pytest.raises(HostError, match="the driver refuses"):
        gpu_limits.change("c1", first, plan(profile, exec_quantum_ms="50", sched_priority="high", absent="1"))
    assert now(profile) == ["25", "normal", "1048576"]
    gpu_limits.restore("c1")
    assert now(profile) == ["0", "normal", "1048576"]
    assert not (profile / "run/.gpu/c1").exists()


def test_a_quota_that_the_driver_has_rounded_holds(profile: Path) -> None:
    wanted = plan(profile, vram_quota="1000000")
    (profile / "vram_quota").write_text("2097152\n")
    assert [limit["state"] for limit in gpu_limits.read(wanted)] == ["enforced"]
    (profile / "vram_quota").write_text("4194304\n")
    assert [limit["state"] for limit in gpu_limits.read(wanted)] == ["not in force"]


@pytest.mark.parametrize("text", ["", "sysfs\n", "x\ty\tz", "sysfs\t/absent\t1\nend\n"])
def test_a_note_that_is_damaged(profile: Path, text: str) -> None:
    """It keeps nobody from going on."""
    note = profile / "run/.gpu/c1"
    note.parent.mkdir(parents=True)
    note.write_text(text)
    gpu_limits.restore("c1")
    assert not note.exists()
