# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill -9 between any two steps: the next command mends it, and nothing is left."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctrmgr import state as statefile
from ctrmgr.backend import create, record, repair
from tests.conftest import ROOT, Ctr, same, settle
from tests.rootful import plugins, test_parts

Snapshot = Callable[[], dict[str, object]]
LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")
FUSE = "/dev/fuse"
SCRATCH = ("-d", "s,type=any,function=storage.scratch,path=/dev/s")
PARTS = ("attach-parts",)
"""Not a verb: a device of several parts is attached, by what a driver would have resolved it to."""
STEPS = {
    "create-made": LAUNCH,
    "create-claimed": LAUNCH,
    "create-written": LAUNCH,
    "create-named": LAUNCH,
    "start-directory": LAUNCH,
    "start-done": LAUNCH,
    "stop-asked": ("stop", "c1"),
    "start-leased": LAUNCH,
    "attach-leased": ("attach-device", "c1", FUSE),
    "attach-recorded": ("attach-device", "c1", FUSE),
    "attach-prepared": PARTS,
    "attach-hooked": PARTS,
    "detach-unhooked": PARTS,
    "attach-done": ("attach-device", "c1", FUSE),
    "detach-recorded": ("detach-device", "c1", "fuse"),
    "detach-done": ("detach-device", "c1", "fuse"),
    "delete-renamed": ("delete", "--force", "c1"),
    "delete-released": ("delete", "--force", "c1"),
    "config-recorded": ("config", "set", "c1", "limits.processes=33"),
    "config-done": ("config", "set", "c1", "limits.processes=33"),
    "change-taken": ("config", "device", "set", "c1", "fuse", "mode=0600"),
    "rename-recorded": ("rename", "c1", "c2"),
    "rename-claims": ("rename", "c1", "c2"),
    "rename-moved": ("rename", "c1", "c2"),
    "allocate-recorded": (*LAUNCH, *SCRATCH),
    "allocate-prepared": (*LAUNCH, *SCRATCH),
    "release-done": ("stop", "c1"),
}


def test_every_step_is_tested() -> None:
    text = "".join(path.read_text() for path in (ROOT / "ctrmgr").rglob("*.py"))
    steps = set(re.findall(r'\bcrash\("([\w-]+)"\)', text))
    assert steps >= set(STEPS)
    others = "".join(
        (ROOT / f"tests/{file}.py").read_text()
        for file in (
            "rootful/test_snapshot",
            "rootful/test_gpu_limits",
            "rootful/test_links",
            "rootful/test_placement",
            "rootful/test_cdi_hooks",
            "rootful/test_tpm",
            "unit/test_guarantees",
            "remote/test_faults",
        )
    )
    assert [step for step in steps - set(STEPS) if f'"{step}"' not in others] == []


def parts(ctr: Ctr, step: str) -> None:
    """Attach a device of several parts, and die at a step of it."""
    rows = [
        test_parts.node(FUSE, "/dev/fuse"),
        test_parts.bind(ctr.folder, "/opt/folder"),
        ["device-env", "gpu", "GPU", "1"],
        ["hook", "gpu", "symlink", "x", "/link"],
    ]
    test_parts.attach(ctr, rows, code=-signal.SIGKILL, env={"CTRMGR_CRASH_AT": step})


def crash(ctr: Ctr, step: str, *words: str) -> None:
    result = ctr(*(words or STEPS[step]), code=None, env={"CTRMGR_CRASH_AT": step})
    assert result.code == -signal.SIGKILL, f"{step} was not reached: {result}"


def whole(ctr: Ctr, *, leases: bool = True) -> None:
    """What is on disk is in order: no half-made thing, claims and `leases` only for what exists."""
    state = ctr.folder / "state"
    names = {path.name for path in (state / "instances").iterdir()}
    assert not [name for name in names if name.startswith(".")], names
    for name in names:
        files = {path.name for path in (state / "instances" / name).iterdir()}
        assert not files & {"config.new", "plan.new", "rename", record.ANEW}, files
        assert not any(statefile.has_tail(f"{state}/instances/{name}/{file}") for file in ("config", "plan"))
    assert {os.readlink(path) for path in (state / "ids").iterdir()} <= names
    for lease in (ctr.folder / "run/.leases").glob("* *") if leases else ():
        _, _, name, device = lease.name.split(" ", 3)
        assert f"\t{device}\t" in (state / "instances" / name / "plan").read_text(), f"{lease.name} is nobody's"


@pytest.fixture
def before(ctr: Ctr, host_snapshot: Snapshot) -> dict[str, object]:
    ctr("image", "list")
    ctr(*LAUNCH)
    ctr("delete", "--force", "c1")
    settle()
    return host_snapshot()


@pytest.mark.parametrize("step", [step for step, words in STEPS.items() if words == LAUNCH])
def test_launch(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    crash(ctr, step)
    ctr("list")
    if step in ("create-made", "create-claimed", "create-written"):
        whole(ctr)
        assert ctr("list", "--format", "csv").stdout == "name,status,ipv4,image\n"
        ctr(*LAUNCH)  # the name and its ids are free again
    elif step in ("create-named", "start-leased", "start-directory"):
        ctr("start", "c1")
    assert "RUNNING" in ctr("list").stdout
    assert ctr("exec", "c1", "echo", "ok").stdout == "ok\n"
    ctr("delete", "--force", "c1")
    whole(ctr)
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize("step", ["attach-leased", "attach-recorded", "attach-done", "detach-recorded", "detach-done"])
def test_devices(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    ctr(*LAUNCH)
    if step.startswith("detach"):
        ctr("attach-device", "c1", FUSE)
    crash(ctr, step)
    ctr("attach-device", "c1", "/dev/net/tun")  # any other change finds and mends it
    whole(ctr)
    there = ctr("exec", "c1", "test", "-c", FUSE, code=None).code == 0
    assert there == (step in ("attach-done", "detach-recorded"))
    assert (f"source={FUSE}" in ctr("info", "c1").stdout) == there
    ctr("restart", "c1")
    assert (ctr("exec", "c1", "test", "-c", FUSE, code=None).code == 0) == there
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize(
    "step",
    [
        "attach-recorded",
        "attach-prepared",
        "attach-done",
        "attach-hooked",
        "detach-recorded",
        "detach-done",
        "detach-unhooked",
    ],
)
def test_devices_of_several_parts(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    ctr(*LAUNCH)
    if step.startswith("attach"):
        parts(ctr, step)
    else:
        parts(ctr, "attach-done")
        ctr("attach-device", "c1", "again", "type=unix-char", f"source={FUSE}", "path=/dev/again")
        result = ctr("detach-device", "c1", "gpu", code=None, env={"CTRMGR_CRASH_AT": step})
        assert result.code == -signal.SIGKILL
    ctr("attach-device", "c1", "/dev/net/tun")
    whole(ctr)
    there = "/dev/fuse\n/opt/folder\nlink\n1\n" if step in ("attach-done", "attach-hooked", "detach-recorded") else "\n"
    look = (
        "exec",
        "c1",
        "sh",
        "-c",
        "ls -d /dev/fuse /opt/folder 2>/dev/null; [ -L /link ] && echo link; echo $GPU",
    )
    assert ctr(*look).stdout == there
    assert ("name: gpu" in ctr("info", "c1", "--format", "yaml").stdout) == (there != "\n")
    ctr("restart", "c1")
    assert ctr(*look).stdout == there
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    ("config", "plan", "there"),
    [
        (b"", b"end\n", True),  # killed before the last word
        (b"", b"", None),  # or before either: as the monitor has it
        (b"device\t", b"", False),
        (bytes(30), b"end\n", False),  # the disk did not get it
        (bytes(30), bytes(30), False),
    ],
)
def test_the_end_of_an_attach(ctr: Ctr, running: bool, config: bytes, plan: bytes, there: bool | None) -> None:
    """Killed between the last two words of it, or without power."""
    ctr(*LAUNCH)
    if not running:
        ctr("stop", "c1")
    ctr("attach-device", "c1", FUSE)
    home = ctr.folder / "state/instances/c1"
    for name, tail in (("config", config), ("plan", plan)):
        data = (home / name).read_bytes().removesuffix(b"end\n")
        if tail.strip(b"\0") != tail or tail == b"device\t":
            data = data[: data.rindex(b"end\n") + 4]
        (home / name).write_bytes(data + tail)
    if there is None:
        there = running
    ctr("config", "set", "c1", "user.any=thing")
    whole(ctr, leases=there or not running)  # without power, nothing would run and have one
    assert (f"source={FUSE}" in ctr("info", "c1").stdout) == there
    ctr("restart" if running else "start", "c1")
    assert (ctr("exec", "c1", "test", "-c", FUSE, code=None).code == 0) == there


@pytest.mark.parametrize("step", ["config-recorded", "config-done"])
def test_configuration(ctr: Ctr, step: str) -> None:
    ctr(*LAUNCH, "-c", "limits.processes=500")
    crash(ctr, step)
    ctr("config", "set", "c1", "user.any=thing")
    whole(ctr)
    assert "limits.processes: '33'" in ctr("config", "show", "c1").stdout
    assert "pids.max value=33 " in ctr("info", "c1").stdout


@pytest.mark.parametrize("step", ["change-taken", "detach-recorded", "detach-done", "attach-recorded", "attach-done"])
def test_a_device_with_other_keys(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    ctr(*LAUNCH)
    ctr("attach-device", "c1", FUSE, "mode=0640")
    crash(ctr, step, *STEPS["change-taken"])
    ctr("config", "set", "c1", "user.any=thing")
    whole(ctr)
    mode = "600" if step == "attach-done" else "640"
    assert ctr("exec", "c1", "stat", "-c", "%a", FUSE).stdout == f"{mode}\n"
    assert f"mode: '0{mode}'" in ctr("config", "show", "c1").stdout
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize("step", ["stop-asked", "delete-renamed", "delete-released"])
def test_the_end(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    ctr(*LAUNCH)
    crash(ctr, step)
    if step == "stop-asked":
        ctr("start", "c1")
        assert "RUNNING" in ctr("list").stdout
        ctr("delete", "--force", "c1")
    ctr("list")
    whole(ctr)
    assert not list((ctr.folder / "state/ids").iterdir())
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize("step", ["rename-recorded", "rename-claims", "rename-moved"])
def test_rename(ctr: Ctr, step: str) -> None:
    ctr("create", "builtin:busybox", "c1", "-p", "no-network")
    crash(ctr, step)
    name = "c2" if step == "rename-moved" else "c1"
    ctr("start", name, code=None)  # mends; the name may change under it
    names = ctr("list", "--format", "csv").stdout.split()[1:]
    assert [line.split(",")[0] for line in names] == ["c2"]
    ctr("start", "c2", code=None)
    assert ctr("exec", "c2", "hostname").stdout == "c2\n"
    whole(ctr)


@pytest.mark.parametrize("step", ["allocate-recorded", "allocate-prepared", "release-done"])
def test_plugin(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot, step: str) -> None:
    plugins.install_scratch(ctr)
    if step == "release-done":
        ctr(*LAUNCH, *SCRATCH)
    crash(ctr, step)
    (record,) = (ctr.folder / "state/allocations").iterdir()
    assert len(plugins.slices()) == (1 if step == "allocate-prepared" else 0)
    ctr("start", "c1")  # releases what was left, and gets another
    ((token, _),) = plugins.slices().items()
    assert token in record.read_text()
    assert ctr("exec", "c1", "test", "-b", "/dev/s").code == 0
    crash(ctr, "release-done")
    ctr("delete", "c1")
    assert plugins.slices() == {}
    assert not list((ctr.folder / "state/allocations").iterdir())
    settle()
    same(before, host_snapshot())


@pytest.mark.parametrize(
    ("step", "there"),
    [
        ("allocate-recorded", False),
        ("allocate-prepared", False),
        ("attach-leased", False),
        ("attach-recorded", False),
        ("attach-done", True),
        ("detach-recorded", True),
        ("detach-done", False),
        ("release-done", False),
    ],
)
def test_plugin_live(ctr: Ctr, step: str, there: bool) -> None:
    """What was set aside for the device is there exactly when the device is."""
    plugins.install_scratch(ctr)
    ctr(*LAUNCH)
    attach = ("attach-device", "c1", "s", "type=demo-scratch", "path=/dev/s")
    if step.startswith(("detach", "release")):
        ctr(*attach)
        crash(ctr, step, "detach-device", "c1", "s")
    else:
        crash(ctr, step, *attach)
    ctr("attach-device", "c1", "/dev/net/tun")  # any other change finds and mends it
    whole(ctr)
    assert (ctr("exec", "c1", "test", "-b", "/dev/s", code=None).code == 0) == there
    assert len(plugins.slices()) == there
    ctr("restart", "c1")
    assert (ctr("exec", "c1", "test", "-b", "/dev/s", code=None).code == 0) == there
    ctr("delete", "--force", "c1")
    assert plugins.slices() == {}
    assert not list((ctr.folder / "state/allocations").iterdir())


def monitor_pid(ctr: Ctr) -> int:
    rows = dict(line.split("\t") for line in (ctr.folder / "run/c1/state").read_text().splitlines())
    return int(rows["monitor"])


def test_the_monitor_is_killed(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot) -> None:
    ctr(*LAUNCH)
    ctr("attach-device", "c1", FUSE)
    os.kill(monitor_pid(ctr), signal.SIGKILL)
    time.sleep(0.1)
    assert "STOPPED" in ctr("list").stdout
    assert "is not running" in ctr("exec", "c1", "true", code=4).stderr
    ctr("start", "c1")
    assert ctr("exec", "c1", "test", "-c", FUSE).code == 0
    os.kill(monitor_pid(ctr), signal.SIGKILL)
    ctr("delete", "--force", "c1")
    settle()
    same(before, host_snapshot())


def test_killed_at_random(ctr: Ctr, before: dict[str, object], host_snapshot: Snapshot) -> None:
    chance = random.Random(7)
    for _ in range(25):
        command = ctr.popen(*LAUNCH)
        time.sleep(chance.uniform(0.01, 0.06))
        command.kill()
        command.wait()
        ctr("list")
        deadline = time.monotonic() + 5
        while ctr("delete", "--force", "c1", code=None).code not in (0, 3) and time.monotonic() < deadline:
            time.sleep(0.02)  # a monitor that had been spawned may still be starting
    ctr("list")
    whole(ctr)
    settle()
    same(before, host_snapshot())
    assert not list(Path(ctr.folder / "run").iterdir())


def test_a_new_instance_is_not_taken_for_a_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its mkdir and its lock anybody's sweep may come along."""
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path))
    (tmp_path / "instances").mkdir()

    def make(number: int) -> bool:
        path = f"{record.instances_dir()}/.new-c{number}"
        with create.NewDirectory(path):
            repair.sweep()
            return os.path.isdir(path)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(100)))
    repair.sweep()
    assert os.listdir(tmp_path / "instances") == []
