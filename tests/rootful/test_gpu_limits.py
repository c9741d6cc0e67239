# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on GPUs over the life of an instance: they hold before its init runs, and what was changed of the host is put back.

The driver's files are ordinary ones and NVIDIA's library is tests/nvml.c; that the plan asks for them is tested on recorded machines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ctrmgr import state
from ctrmgr.backend import machine_lock
from tests import nvml
from tests.conftest import Ctr

MIB = 1 << 20
GPU = "0000:18:00.0"
NONE = str((1 << 64) - 1)


class Gpu:
    """The instance `c1` with a plan that limits it on two GPUs: a function's profile, and one of NVIDIA's."""

    def __init__(self, ctr: Ctr, folder: Path) -> None:
        self.ctr, self.quantum, self.level, self.state = ctr, folder / "quantum", folder / "level", folder / "state"
        ctr.env = {**ctr.env, **{key: value for key, value in nvml.build(folder).items() if key not in ctr.env}}
        self.quantum.write_text("7")
        self.level.write_text("low [normal] high\n")
        ctr("create", "builtin:busybox", "c1", "-p", "no-network")
        self.plan(
            ["memory", "nvml", GPU, str(64 * MIB)], ["memory.reserve", "nvml", GPU, str(16 * MIB)],
            ["shares", "sysfs", str(self.quantum), "25"], ["priority", "slice", "x/gi1/ci0", "1"],
            ["shares", "environment", "HSA_CU_MASK", "0:0-3"], ["priority", "none", "", "there is none"],
        )  # fmt: skip

    def plan(self, *rows: list[str]) -> None:
        path = self.ctr.folder / "state/instances/c1/plan"
        kept = [line for line in path.read_text().splitlines() if not line.startswith("gpu-limit") and line != "end"]
        path.write_text("\n".join([*kept, *("\t".join(["gpu-limit", "g", *row]) for row in rows), "end", ""]))

    def calls(self) -> list[list[str]]:
        """(address, soft, hard) of each call; the cgroup is always the instance's own."""
        found = [line.split() for line in self.state.read_text().splitlines()]
        assert {cgroup for _, cgroup, _, _ in found} <= {self.cgroup()}
        return [[address, soft, hard] for address, _, soft, hard in found]

    def cgroup(self) -> str:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        top = next(words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2")
        return f"{top}/{self.ctr.env['CTRMGR_CGROUP_PARENT']}/c1"

    def noted(self) -> bool:
        return (self.ctr.folder / "run/.gpu/c1").exists()

    def limits(self) -> dict[str, tuple[object, ...]]:
        found = json.loads(self.ctr("info", "c1", "--format", "json").stdout)["limits"]
        return {
            f"{each['key']} {each['mechanism']}": (each["value"], each["state"], each["enforced"]) for each in found
        }


@pytest.fixture
def gpu(ctr: Ctr, tmp_path: Path) -> Gpu:
    return Gpu(ctr, tmp_path)


SET = [GPU, str(16 * MIB), str(64 * MIB)]
ZEROED = [GPU, "0", str(64 * MIB)]


def test_set_before_init_and_given_back(gpu: Gpu) -> None:
    gpu.ctr("start", "c1")
    assert gpu.calls() == [SET] and gpu.quantum.read_text() == "25" and gpu.noted()
    assert gpu.limits() == {
        "g.memory nvml": (str(64 * MIB), "enforced", True),
        "g.memory.reserve nvml": (str(16 * MIB), "enforced", True),
        "g.shares sysfs": ("25", "enforced", True),
        "g.priority slice": ("1", "enforced", True),
        "g.shares environment": ("0:0-3", "advisory", False),
        "g.priority none": ("there is none", "unsupported", False),
    }
    gpu.ctr.env["NVML_USED"] = str(5 * MIB)
    (used,) = json.loads(gpu.ctr("info", "c1", "--format", "json").stdout)["gpus"]
    assert used == {"gpu": GPU, "memory": 5 * MIB, "memory-limit": 64 * MIB}
    (line,) = gpu.ctr("top", "--once", "--format", "json").stdout.splitlines()
    assert json.loads(line)["instances"][0]["gpus"] == [{**used, "use": None}]
    gpu.quantum.write_text("99")
    assert gpu.limits()["g.shares sysfs"] == ("99", "not in force", False)
    gpu.ctr("stop", "c1", "--force")
    # the driver does not hear of a cgroup that goes: what it keeps is zeroed before
    assert gpu.calls() == [SET, ZEROED] and gpu.quantum.read_text() == "7" and not gpu.noted()
    assert not os.path.exists(gpu.cgroup())


def test_the_limits_hold_before_init_runs(gpu: Gpu) -> None:
    """A driver that takes no limit stops the start, and nothing has begun or is left."""
    gpu.state.unlink()
    gpu.state.mkdir()
    failed = gpu.ctr("start", "c1", code=5)
    assert "NVIDIA's driver refuses the limits" in failed.stderr
    assert gpu.quantum.read_text() == "7" and not gpu.noted() and not os.path.exists(gpu.cgroup())
    gpu.plan(["shares", "sysfs", str(gpu.quantum.parent / "absent"), "25"])
    assert "the driver refuses" in gpu.ctr("start", "c1", code=5).stderr
    gpu.plan(["priority", "sysfs", str(gpu.level), "high"])
    gpu.ctr("start", "c1")
    gpu.ctr("stop", "c1", "--force")
    assert gpu.level.read_text() == "normal"  # the word that was chosen


def test_a_run_that_ends_by_itself_or_is_killed(gpu: Gpu) -> None:
    for end in ("init", "monitor"):
        gpu.ctr("start", "c1")
        assert gpu.quantum.read_text() == "25"
        info = json.loads(gpu.ctr("info", "c1", "--format", "json").stdout)
        os.kill(info["pid" if end == "init" else "monitor-pid"], signal.SIGKILL)
        for _ in range(200):
            if "STOPPED" in gpu.ctr("list").stdout:
                break
            time.sleep(0.05)
        gpu.ctr("config", "set", "c1", "user.x=1")  # any command on it
        assert gpu.quantum.read_text() == "7" and not gpu.noted()
        gpu.plan(["shares", "sysfs", str(gpu.quantum), "25"])
    gpu.ctr("delete", "c1")


def test_a_start_that_is_killed(gpu: Gpu) -> None:
    """Once the limits are set, and before there is a monitor that could remove the cgroup that they were set on."""
    gpu.ctr("start", "c1", code=-signal.SIGKILL, env={"CTRMGR_CRASH_AT": "start-limited"})
    assert gpu.quantum.read_text() == "25" and gpu.noted() and os.path.isdir(gpu.cgroup())
    gpu.ctr("config", "set", "c1", "user.x=1")
    assert gpu.calls() == [SET, ZEROED]
    assert gpu.quantum.read_text() == "7" and not gpu.noted() and not os.path.exists(gpu.cgroup())


def test_below_what_is_in_use(gpu: Gpu) -> None:
    """The library has the limits of the run before: as it would for one that is lowered live."""
    gpu.ctr("start", "c1")
    gpu.ctr("stop", "c1", "--force")
    gpu.ctr.env["NVML_USED"] = str(65 * MIB)
    failed = gpu.ctr("start", "c1", code=5)
    assert f"below what is in use now: {65 * MIB} bytes" in failed.stderr
    assert gpu.calls() == [SET, ZEROED, ZEROED] and not os.path.exists(gpu.cgroup())


def test_what_is_promised_to_another_is_not_there(gpu: Gpu) -> None:
    """Refused before the GPU hears of it; who dies, and who is killed before its instance runs, gives its part back."""
    ctr = gpu.ctr
    ctr("create", "builtin:busybox", "c2", "-p", "no-network")
    for name, amount in (("c1", 40), ("c2", 25)):
        path = ctr.folder / f"state/instances/{name}/plan"
        kept = [line for line in path.read_text().splitlines() if not line.startswith("gpu-limit") and line != "end"]
        rows = [["gpu-limit", "g", "memory.reserve", "nvml", GPU, str(amount * MIB)],
                ["lease", "g", f"memory:{GPU}", f"keeps:{amount * MIB}:{64 * MIB}"]]  # fmt: skip
        path.write_text("\n".join([*kept, *("\t".join(row) for row in rows), "end", ""]))
    ctr("start", "c1", code=-signal.SIGKILL, env={"CTRMGR_CRASH_AT": "start-leased"})
    ctr("start", "c2")
    ctr("stop", "c2", "--force")
    ctr("start", "c1")
    other = f"{os.path.dirname(os.path.dirname(gpu.cgroup()))}/{os.path.basename(ctr.folder)}-other"
    os.mkdir(other)
    try:  # what is kept for another program's cgroup counts, too
        with gpu.state.open("a") as file:
            file.write(f"{GPU} {other} {9 * MIB} {NONE}\n")
        refused = ctr("start", "c2", code=4).stderr
    finally:
        os.rmdir(other)
    assert "15MiB are promised to nobody" in refused
    assert f"`{other}` has 9MiB, `c1` has 40MiB" in refused
    before = gpu.state.read_text()
    refused = ctr("start", "c2", code=4).stderr
    assert f"25MiB of `{GPU}` cannot be kept for `c2`: of 64MiB of memory 24MiB are promised to nobody" in refused
    assert "`c1` has 40MiB" in refused
    assert gpu.state.read_text() == before and not os.path.exists(f"{os.path.dirname(gpu.cgroup())}/c2")
    os.kill(json.loads(ctr("info", "c1", "--format", "json").stdout)["monitor-pid"], signal.SIGKILL)
    ctr("start", "c2")
    assert gpu.state.read_text().splitlines()[-1].endswith(f"/c2 {25 * MIB} {NONE}")
    assert "`c2` has 25MiB" in ctr("start", "c1", code=4).stderr
    ctr("stop", "c2", "--force")
    with state.Lock(machine_lock.LOCK):  # another user counts, whose instance is not seen yet
        waiting = ctr.popen("start", "c2")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.4)
    assert waiting.wait(60) == 0
