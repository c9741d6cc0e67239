# SPDX-License-Identifier: GPL-3.0-or-later
"""ctrmgr-exec where the instance's cgroup takes no processes itself, and where its root keeps out what enters."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .double import BASE, Double, build, cgroup2
from .test_exec import Runner, wait_for

SOURCES = ["exec.c", "join.c", "enter.c", "identity.c", "pty.c", "flat.c", "confine.c"]


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    instance = Double()
    yield instance
    instance.close()


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, double: Double) -> Runner:
    return Runner(build(tmp_path_factory.mktemp("bin") / "ctrmgr-exec", SOURCES, "-static"), double)


@pytest.fixture
def crowded(double: Double) -> Iterator[Path]:
    """Where commands go: a systemd inside has enabled a controller, and its cgroup takes no processes any more."""
    top = cgroup2()
    for name in (top / "cgroup.controllers").read_text().split()[:1]:
        (top / "cgroup.subtree_control").write_text(f"+{name}")  # as monitors do for a limit
    available = (double.cgroup / "cgroup.controllers").read_text().split()
    assert available, "this kernel has no controller of cgroup2"
    (double.cgroup / "cgroup.subtree_control").write_text(f"+{available[0]}")
    yield double.cgroup / "ctrmgr.exec"
    for folder in double.cgroup.glob("*/"):
        (folder / "cgroup.freeze").write_text("0")
        wait_for(lambda folder=folder: not (folder / "cgroup.procs").read_text())  # type: ignore[misc]
        folder.rmdir()
    (double.cgroup / "cgroup.subtree_control").write_text(f"-{available[0]}")


def test_cgroup_with_controllers(run: Runner, crowded: Path) -> None:
    assert run.sh("cat /proc/self/cgroup").rstrip().endswith("/ctrmgr.exec")
    assert [folder.name for folder in crowded.parent.glob("*/")] == ["ctrmgr.exec"]


def test_cgroup_that_the_instance_freezes(run: Runner, crowded: Path) -> None:
    """Its root was there first: what it has made it may freeze, and what it has not it may only remove."""
    crowded.mkdir()
    os.chown(crowded, BASE, BASE)
    (crowded / "cgroup.freeze").write_text("1")
    assert "/ctrmgr.exec." in run.sh("cat /proc/self/cgroup")
    assert [folder.name for folder in crowded.parent.glob("*/")] == ["ctrmgr.exec"]


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_who_is_held_up_on_the_way_in_gives_up(run: Runner, double: Double, crowded: Path, name: str) -> None:
    """As root inside can let it wait: it stops what enters, or moves it to a frozen cgroup."""
    crowded.mkdir()
    (crowded / "cgroup.freeze").write_text("1")
    child = run.popen("sleep", "60")
    wait_for(double.pids)
    child.send_signal(signal.SIGUSR1)  # which only the command may decide on
    child.send_signal(getattr(signal, f"SIG{name}"))
    assert child.wait(5) == 128 + getattr(signal, f"SIG{name}")
    assert not double.pids()


def test_who_is_killed_on_the_way_in(run: Runner, double: Double, crowded: Path) -> None:
    """Nothing runs once it is let in."""
    crowded.mkdir()
    (crowded / "cgroup.freeze").write_text("1")
    child = run.popen("sh", "-c", "touch /root/entered")
    wait_for(double.pids)
    child.kill()
    child.wait(5)
    (crowded / "cgroup.freeze").write_text("0")
    wait_for(lambda: not double.pids())
    assert run("test", "-e", "/root/entered").returncode == 1
