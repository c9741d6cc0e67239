# SPDX-License-Identifier: GPL-3.0-or-later
"""Guarantees of GPU memory: whatever is asked for, given back or killed, the GPU has what is promised of it, and no less is promised than fits."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctrmgr import state
from ctrmgr.backend import gpu_limits, guarantees, leases, live, record, unfinished
from ctrmgr.errors import ConflictError, SpecError
from ctrmgr.host import cgroup
from ctrmgr.kernel import control

CAPACITY = 10
REGION = "drm/0000:03:00.0/vram0"
IMAGE = ["image", "f" * 64, "x"]
Rows = list[list[str]]


def lease(amount: int, device: str = "gpu") -> list[str]:
    return ["lease", device, f"memory:{REGION}", f"keeps:{amount}:{CAPACITY}"]


def plan(name: str, amount: int) -> Rows:
    """With as many devices of the one GPU as there are amounts."""
    rows = [["ctrmgr-plan", "1"], ["name", name], ["device", "gpu", *("x" for _ in range(8))]]
    limit = ["device-limit", "gpu", "unified", "dmem.min", f"{REGION} {amount}"]
    return [*rows, *([limit, lease(amount)] if amount else [])]


class Machine:
    """What the kernel keeps for which instance that runs, outside of what ctrmgr writes down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kernel"
        self.folder.mkdir()

    def keeps(self) -> dict[str, int]:
        return {path.name: int(path.read_text()) for path in self.folder.iterdir()}

    def keep(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        amount = next((row[4].rpartition(" ")[2] for row in rows if row[0] == "device-limit"), "0")
        (self.folder / f".{name}").write_text(amount)
        os.rename(self.folder / f".{name}", self.folder / name)
        assert sum(self.keeps().values()) <= CAPACITY

    def runs(self, name: str) -> bool:
        return (self.folder / name).exists()

    def command(self, verb: str, name: str, amount: int, crash: str) -> int:
        """In a process that is killed at `crash`: 0 done, 4 refused, below 0 killed."""
        pid = os.fork()
        if pid == 0:
            os.environ["CTRMGR_CRASH_AT"] = crash
            code = 1
            try:
                with state.Lock(record.home(name)):
                    self.do(verb, name, amount, crash)
                code = 0
            except ConflictError:
                code = 4
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 4, -signal.SIGKILL)
        return code

    def do(self, verb: str, name: str, amount: int, crash: str) -> None:
        path, run = record.home(name), record.run_home(name)
        if os.path.exists(f"{path}/config.new") or os.path.exists(f"{path}/plan.new"):
            unfinished._replace(path, run, self.runs(name))
        if not self.runs(name):
            leases.release(name)
        if verb == "stop":
            (self.folder / name).unlink()
            record.crash("kernel")
            leases.release(name)
            return
        new = plan(name, amount)
        if verb == "start":
            state.write_flat(f"{path}/plan", new)
            with killed_between(crash):
                leases.take(name, new)
            record.crash("start-leased")
            self.keep(name, new)
            return
        own = record.Record(name)
        own.config["amount"] = str(amount)
        old = own.plan()
        record.stage(own, new)
        record.crash("config-recorded")
        try:
            with killed_between(crash), guarantees.promised(name, old, new):
                self.keep(name, new)
                record.crash("kernel")
        except ConflictError:
            record.drop(path)
            raise
        record.crash("config-done")
        record.finish(path)


@contextmanager
def killed_between(crash: str) -> Iterator[None]:
    """Killed at the first lease that goes, when that is where."""
    with patch.object(leases, "drop", lambda _: os.kill(os.getpid(), 9)) if crash == "drop" else patch("os.nice"):
        yield


@contextmanager
def machine() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="ctr-"))
    now = Machine(folder)

    def ask(run: str, _op: int, **_: object) -> object:
        there = [SimpleNamespace(name="gpu")] if now.runs(os.path.basename(run)) else []
        return SimpleNamespace(devices=lambda: there)

    def change(name: str, _old: Rows, new: Rows) -> None:
        now.keep(name, new)

    env = {"CTRMGR_RUN_DIR": f"{folder}/run", "CTRMGR_STATE_DIR": f"{folder}/state"}
    try:
        with (
            patch.dict(os.environ, env),
            patch.object(record, "is_running", now.runs),
            patch.object(control, "ask", ask),
            patch.object(live, "change_limits", change),
            patch.object(guarantees, "_strangers", lambda region: iter(())),
            patch.object(guarantees, "_above", lambda region: (float("inf"), "")),
        ):
            for name in "xyz":
                os.makedirs(record.home(name))
                state.write_flat(f"{record.home(name)}/config", [IMAGE])
            yield now
    finally:
        shutil.rmtree(folder)


STEPS = (
    "",
    "",
    "",
    "start-leased",
    "config-recorded",
    "config-promised",
    "kernel",
    "config-kept",
    "drop",
    "config-done",
)
COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "set", "set", "stop", "die"]),
        st.sampled_from("xy"),
        st.sampled_from((0, 2, 5, 8, CAPACITY)),
        st.sampled_from(STEPS),
    ),
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(COMMANDS)
@example([("start", "x", 8, "start-leased"), ("start", "y", 10, "")])
@example([("start", "x", 8, ""), ("set", "x", 2, "config-promised"), ("start", "y", 8, "")])
@example(
    [
        ("start", "x", 2, ""),
        ("set", "x", 8, "kernel"),
        ("start", "y", 5, ""),
        ("set", "x", 2, ""),
        ("start", "y", 8, ""),
    ]
)
@example([("start", "x", 2, ""), ("set", "x", 8, "config-recorded"), ("start", "y", 8, ""), ("set", "x", 2, "")])
def test_any_sequence(commands: list[tuple[str, str, int, str]]) -> None:
    with machine() as now:
        for verb, name, amount, crash in commands:
            if (verb == "start") == now.runs(name):
                continue
            if verb == "die":
                (now.folder / name).unlink()
                continue
            before = now.keeps()
            between = [each for each in "xyz" if each != name and os.path.exists(f"{record.home(each)}/plan.new")]
            code = now.command(verb, name, amount, crash)
            kept = now.keeps()
            assert sum(kept.values()) <= CAPACITY
            others = sum(value for each, value in before.items() if each != name)
            if code == 4:
                # whoever was killed between two amounts has the larger one until the next command on it
                assert others + amount > CAPACITY or between
                assert kept.get(name) in (before.get(name), *_planned(name))
            elif code == 0 and verb != "stop":
                assert kept[name] == amount
        for name in "xyz":
            if now.runs(name):
                assert now.command("stop", name, 0, "") == 0
        assert now.command("start", "z", CAPACITY, "") == 0


def _planned(name: str) -> list[int]:
    rows = record.read_plan(record.home(name))
    return [int(row[4].rpartition(" ")[2]) for row in rows if row[0] == "device-limit"] or [0]


def test_who_has_the_rest() -> None:
    """Refused with what is free and who has the other part; two devices of one instance are one guarantee; other users' count."""
    with machine() as now:
        assert now.command("start", "x", 3, "") == 0
        leases.take("x", [lease(3, "again")])
        with patch.object(guarantees, "_strangers", lambda region: iter([("/sys/fs/cgroup/machine.slice", 2)])):
            with pytest.raises(ConflictError) as refused:
                leases.take("y", [lease(6), ["lease", "gpu", "pci:0000:03:00.0", "shared"]])
            assert refused.value.message == (
                f"device `gpu`: 6 bytes of `{REGION}` cannot be kept for `y`: of 10 bytes of memory 5 bytes are promised to nobody"
            )
            assert refused.value.hint == "`/sys/fs/cgroup/machine.slice` has 2 bytes, `x` has 3 bytes"
            assert all(each.instance == "x" for each in leases.held())  # all or nothing
            leases.take("y", [lease(5)])
        assert leases.stale() != []  # `y` does not run


def test_one_for_this_run_only() -> None:
    """It is in no plan: that it is attached is what counts."""
    with machine() as now:
        assert now.command("start", "x", 2, "") == 0
        leases.take("x", [lease(4, "more")])
        both = [SimpleNamespace(name="gpu"), SimpleNamespace(name="more")]
        with (
            patch.object(control, "ask", lambda *_, **__: SimpleNamespace(devices=lambda: both)),
            pytest.raises(ConflictError, match="6 bytes are promised to nobody"),
        ):
            leases.take("y", [lease(7)])
        leases.take("y", [lease(7)])  # it is gone, and was not given back
        assert [each.device for each in leases.held() if each.instance == "x"] == ["gpu"]


def test_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cgroups beside ours have, as long as somebody is in them."""
    for name, kept, populated in (("ctrmgr", 1, 1), ("a.slice", 2, 1), ("empty", 4, 0), ("none", 0, 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dmem.min").write_text(f"drm/other 9\n{REGION} {kept}\n")
        (tmp_path / name / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    (tmp_path / "max").mkdir()
    monkeypatch.setattr(cgroup, "read", lambda: cgroup.Cgroups(str(tmp_path), frozenset(), {}))
    monkeypatch.delenv("CTRMGR_CGROUP_PARENT", raising=False)
    assert dict(guarantees._strangers(REGION)) == {f"{tmp_path}/a.slice": 2}
    (tmp_path / "max/dmem.min").write_text(f"{REGION} max\n")
    (tmp_path / "max/cgroup.events").write_text("populated 1\n")
    assert sum(dict(guarantees._strangers(REGION)).values()) > 1 << 60
    assert not dict(guarantees._strangers("0000:18:00.0"))


def test_together_no_more_than_the_cgroup_above_keeps(tmp_path: Path) -> None:
    above = guarantees._above
    (tmp_path / "a.slice").mkdir()
    (tmp_path / "a.slice/dmem.min").write_text(f"{REGION} 8\n")
    with (
        machine() as now,
        patch.object(guarantees, "_above", above),
        patch.object(cgroup, "read", lambda: cgroup.Cgroups(str(tmp_path), frozenset(), {})),
        patch.dict(os.environ, {"CTRMGR_CGROUP_PARENT": "a.slice/ctrmgr"}),
    ):
        assert now.command("start", "x", 3, "") == 0
        said = f"of 8 bytes of memory that `{tmp_path}/a.slice` keeps 5 bytes are promised to nobody"
        with pytest.raises(ConflictError, match=said):
            leases.take("y", [lease(6)])
        leases.take("y", [lease(5)])
        os.environ["CTRMGR_CGROUP_PARENT"] = "ctrmgr"
        leases.take("y", [lease(7)])


def test_another_limit_on_a_gpu_that_has_one() -> None:
    rows = [["device", "b", "char", "/dev/null", "/dev/null", "0", "0", "666", "rw", "required"]]
    limit = ["device-limit", "b", "unified", "dmem.min", f"{REGION} 2"]
    with patch("ctrmgr.plan.gpu_limits.resolve", lambda *_, **__: [*rows, limit]):
        asked = [*rows, ["@gpu", "b", "memory.reserve", "2"]]
        with pytest.raises(SpecError, match="`gpu` and `b` are one GPU with two limits"):
            gpu_limits.resolved(asked, plan("x", 3))
        assert gpu_limits.resolved(asked, plan("x", 2)) == [*rows, limit]
