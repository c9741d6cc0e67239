# SPDX-License-Identifier: GPL-3.0-or-later
"""No sequence of starts, stops, deletes, live attaches and detaches, and kills of commands and instances gives a device twice, forgets one, or releases one twice."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctrmgr import state
from ctrmgr.backend import allocations, functions, giving, held, record, repair
from ctrmgr.devices.plugin import Allocation, ContainerEdits, DeviceNode, Found, Holder
from ctrmgr.errors import ConflictError, HelperError, NotFoundError, SpecError
from ctrmgr.plugins import call, registry

POOL = 10
DEVICES = [
    Found("a", nodes=["/dev/null"], shared=2, pools={"cores": POOL}, functions={"npu.infer": {"memory": 8}}),
    Found("b", nodes=["/dev/null"], shared=0, pools={"cores": 4}, functions={"npu.infer": {"memory": 4}}),
]
SOURCE = registry.Source("acme-npu", "a test", path="/nowhere")
STEPS = ("", "", "", "attached", "allocate-recorded", "allocate-prepared", "release-done", "in-prepare", "in-release")


class Firmware:
    """A card that remembers what it was told, and may kill whoever tells it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.touch()
        self.running: set[str] = set()
        self.attached: set[str] = set()
        """What runs, and what of it has a device that it was given live: what monitors know."""

    def told(self) -> list[tuple[str, str]]:
        return [(line.split()[0], line.split()[1]) for line in self.log.read_text().splitlines()]

    def slices(self) -> set[str]:
        """What is set aside."""
        there: set[str] = set()
        for word, token in self.told():
            there = there | {token} if word == "prepare" else there - {token}
        return there

    def tell(self, word: str, token: str) -> None:
        if os.environ.get("CTRMGR_CRASH_AT") == f"in-{word}" and os.urandom(1)[0] < 128:
            os.kill(os.getpid(), signal.SIGKILL)  # before the card has heard it, or after
        with self.log.open("a") as file:
            file.write(f"{word} {token}\n")
        if os.environ.get("CTRMGR_CRASH_AT") == f"in-{word}":
            os.kill(os.getpid(), signal.SIGKILL)

    def prepare(self, _source: object, allocation: Allocation) -> ContainerEdits:
        assert any(each.token == allocation.id for each in held.everything()), "prepared before it is recorded"
        self.tell("prepare", allocation.id)
        return ContainerEdits(device_nodes=[DeviceNode("/dev/null")])

    def release(self, _source: object, allocation: Allocation) -> None:
        self.tell("release", allocation.id)


def allocate(
    source: object, values: dict[str, str], found: list[Found], holders: list[Holder]
) -> tuple[Allocation, bool]:
    """Any that is offered: that there is enough is for ctrmgr to see."""
    chosen = min(found, key=lambda each: (sum(holder.found == each.id for holder in holders), each.id))
    return Allocation(chosen, takes={"cores": int(values["cores"])}), values["kept"] == "yes"


@contextmanager
def machine() -> Iterator[Firmware]:
    folder = Path(tempfile.mkdtemp(prefix="ctr-"))
    firmware = Firmware(folder / "firmware")
    try:
        with (
            patch.dict(os.environ, {"CTRMGR_STATE_DIR": str(folder), "CTRMGR_RUN_DIR": f"{folder}/run"}),
            patch.object(registry, "sources", lambda: {"acme-npu": SOURCE}),
            patch.object(call, "identify", lambda source, root: DEVICES),
            patch.object(call, "allocate", allocate),
            patch.object(call, "prepare", firmware.prepare),
            patch.object(call, "release", firmware.release),
            patch.object(allocations, "_attached", lambda name, device: device == "more" and name in firmware.attached),
            patch.object(record, "is_running", lambda name: name in firmware.running),
        ):
            yield firmware
    finally:
        shutil.rmtree(folder)


def request(device: str, cores: int, kept: str, **more: str) -> list[list[str]]:
    values = {"type": "acme-npu", "cores": str(cores), "kept": kept, **more}
    return [["request", device, "acme-npu", "instance" if kept == "yes" else "run", *item] for item in values.items()]


def plan_of(name: str, cores: int, kept: str, **more: str) -> list[list[str]]:
    return [["ctrmgr-plan", "1"], ["name", name], *request("npu", cores, kept, **more)]


class Instance:
    """The commands of one instance, each as far as devices go."""

    def __init__(self, name: str, cores: int, kept: str, firmware: Firmware) -> None:
        self.name, self.kept, self.plan, self.firmware = name, kept, plan_of(name, cores, kept), firmware
        self.cores, self.exists = cores, False

    @property
    def running(self) -> bool:
        return self.name in self.firmware.running

    def run(self, verb: str) -> None:
        """What one command does; the caller may be killed in it."""
        path = record.home(self.name)
        if verb != "create":
            with state.Lock(path):
                self.with_lock(verb, path)
            return
        rows = giving.settle(self.name, self.plan, repair.instance, starts=False)
        os.makedirs(path)
        state.write_flat(f"{path}/plan", rows)

    def with_lock(self, verb: str, path: str) -> None:
        allocations.mend(self.name, running=self.running)
        if verb == "start":
            state.write_flat(
                f"{path}/plan", giving.settle(self.name, record.read_plan(path), repair.instance, starts=True)
            )
        elif verb == "stop":
            allocations.stopped(self.name)
            assert not any(row[0] == "device" for row in record.read_plan(path)) or self.kept == "yes"
        elif verb == "attach":
            giving.attach(self.name, request("more", self.cores, "no"), repair.instance, running=True, volatile=True)
            record.crash("attached")
        elif verb == "detach":
            allocations.detach(self.name, "more")
        else:
            shutil.rmtree(path)
            allocations.forget(self.name)

    def command(self, verb: str, crash: str) -> int:
        """The same in a process that is killed at `crash`: 0 done, 1 refused, below 0 killed."""
        if verb == "detach":
            self.firmware.attached.discard(self.name)  # the monitor has taken it away
        code = killed(self, verb, crash)
        if code == 0 and verb in ("start", "attach"):
            (self.firmware.running if verb == "start" else self.firmware.attached).add(self.name)
        elif verb == "stop":
            self.dies()
        self.exists = os.path.exists(record.home(self.name))
        if not self.exists:
            allocations.sweep()
        elif crash != "attached":  # that is left for whoever needs it
            allocations.mend(self.name, running=self.running)
        return code

    def dies(self) -> None:
        self.firmware.running.discard(self.name)
        self.firmware.attached.discard(self.name)


def killed(instance: Instance, verb: str, crash: str) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ["CTRMGR_CRASH_AT"] = crash
        code = 1
        try:
            instance.run(verb)
            code = 0
        except ConflictError:
            pass
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            code = 2
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1, -signal.SIGKILL), status
    return code


def in_order(firmware: Firmware, kills: int) -> None:
    taken = held.everything()
    tokens = {each.token for each in taken}
    # who was killed while releasing what somebody had left has left the note of it
    assert firmware.slices() <= tokens if kills else firmware.slices() == tokens
    for found in DEVICES:
        holding = [each for each in taken if each.found_id == found.id]
        assert sum(each.takes["cores"] for each in holding) <= found.pools["cores"]
        assert not found.shared or len(holding) <= found.shared
    told = Counter(firmware.told())
    assert max([number for (word, _), number in told.items() if word == "prepare"], default=0) <= 1
    twice = sum(number - 1 for (word, _), number in told.items() if word == "release")
    assert twice <= kills  # only who was killed between the release and the note of it


def room(firmware: Firmware, cores: int) -> bool:
    """Whether a device has so many cores left beside what instances keep, and those that run have."""
    runs = {"npu": firmware.running, "more": firmware.attached}
    having = [each for each in held.everything() if each.life == "instance" or each.instance in runs[each.device]]
    for found in DEVICES:
        there = [each for each in having if each.found_id == found.id]
        left = found.pools["cores"] - sum(each.takes["cores"] for each in there)
        if cores <= left and (not found.shared or len(there) < found.shared):
            return True
    return False


VERBS = ["create", "start", "stop", "delete", "attach", "detach", "die"]
COMMANDS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(VERBS), st.sampled_from(STEPS)), max_size=18)


BIG = dict.fromkeys("xyz", (10, "no"))


@settings(max_examples=60, deadline=None)
@example([("x", "create", ""), ("x", "start", ""), ("x", "die", ""), ("y", "create", ""), ("y", "start", "")], BIG)
@example(
    [("x", "create", ""), ("x", "start", ""), ("x", "attach", "attached"), ("y", "create", ""), ("y", "start", "")],
    {**BIG, "x": (5, "no"), "y": (5, "no")},
)
@given(
    COMMANDS,
    st.fixed_dictionaries({name: st.tuples(st.integers(0, 12), st.sampled_from(["yes", "no"])) for name in "xyz"}),
)
def test_any_sequence(commands: list[tuple[str, str, str]], sizes: dict[str, tuple[int, str]]) -> None:
    with machine() as firmware:
        there = {name: Instance(name, *size, firmware) for name, size in sizes.items()}
        kills, tokens = 0, dict[str, str]()
        for name, verb, crash in commands:
            one = there[name]
            live = name in firmware.attached
            possible = {
                "create": not one.exists,
                "stop": one.running,
                "attach": one.running and not live,
                "detach": live,
            }
            if verb == "die":
                one.dies()
            elif possible.get(verb, one.exists and not one.running):
                code = one.command(verb, crash)
                if code == 1 and verb in ("create", "start", "attach"):
                    assert not room(firmware, one.cores)
                kills += crash != ""
                in_order(firmware, kills)
                for each in held.everything():
                    if each.life == "instance":
                        assert tokens.get(each.instance, each.token) == each.token
                tokens = {each.instance: each.token for each in held.everything() if each.device == "npu"}
                if one.exists and sizes[name][1] == "yes":
                    assert name in tokens  # whatever was killed: it is kept until it is deleted
        for one in there.values():
            if one.running:
                one.command("stop", "")
            if one.exists:
                one.command("delete", "")
        assert held.everything() == []
        assert firmware.slices() == set()
        in_order(firmware, kills)


def test_the_pool() -> None:
    with machine():
        giving.settle("x", plan_of("x", 10, "no", id="a"), repair.instance, starts=True)
        with pytest.raises(ConflictError, match="`a` has 0 of 10 cores left, and 1 are asked for") as error:
            giving.settle("y", plan_of("y", 1, "no", id="a"), repair.instance, starts=True)
        assert error.value.hint == "x/npu has 10"
        with pytest.raises(ConflictError, match="`b` has 4 of 4 cores left, and 7 are asked for"):
            giving.settle("y", plan_of("y", 7, "no", vendor=""), repair.instance, starts=True)
        giving.settle("y", plan_of("y", 4, "no"), repair.instance, starts=True)
        giving.settle("z", plan_of("z", 0, "no"), repair.instance, starts=True)
        assert {each.instance: each.found_id for each in held.everything()} == {"x": "a", "y": "b", "z": "a"}


def test_how_many_may_have_one() -> None:
    with machine():
        for name in "xy":
            giving.settle(name, plan_of(name, 1, "no", id="a"), repair.instance, starts=True)
        with pytest.raises(ConflictError, match="no device for `a` is free") as error:
            giving.settle("z", plan_of("z", 1, "no", id="a"), repair.instance, starts=True)
        assert "a: 2 have it, and no more may" in str(error.value.hint)


def test_all_at_once() -> None:
    """Of many commands at one time only as many get it as may."""
    with machine() as firmware:
        pids = []
        for name in "pqrstuvw":
            pids.append(os.fork())
            if pids[-1] == 0:
                code = 1
                try:
                    giving.settle(name, plan_of(name, 5, "no", id="a"), repair.instance, starts=True)
                    code = 0
                except ConflictError:
                    code = 4
                finally:
                    os._exit(code)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        assert sorted(ends) == [0, 0, *[4] * 6]
        assert len(firmware.slices()) == 2


def test_nothing_fits() -> None:
    with machine():
        with pytest.raises(NotFoundError, match="device `npu`: no device fits") as error:
            giving.settle(
                "x", plan_of("x", 1, "no", **{"function": "npu.infer", "min-memory": "9"}), repair.instance, starts=True
            )
        assert error.value.hint == "a: its memory is 8; b: its memory is 4"
        optional = plan_of("x", 1, "no", id="c", required="false")
        assert giving.settle("x", optional, repair.instance, starts=True) == optional
        assert held.everything() == []


def test_other_keys_are_another_device() -> None:
    with machine() as firmware:
        giving.settle("x", plan_of("x", 1, "yes"), repair.instance, starts=True)
        (first,) = firmware.slices()
        giving.settle("x", plan_of("x", 1, "yes"), repair.instance, starts=True)
        assert firmware.slices() == {first}
        giving.settle("x", plan_of("x", 2, "yes"), repair.instance, starts=True)
        assert len(firmware.slices() - {first}) == 1
        giving.settle("x", [["ctrmgr-plan", "1"]], repair.instance, starts=True)
        assert firmware.slices() == set()


def test_other_hardware_is_another_device(tmp_path: Path) -> None:
    file = tmp_path / "dev"
    file.write_text("1:3\n")
    found = [DEVICES[0].replace(identity=((str(file), "1:3"),))]
    with machine() as firmware, patch.object(call, "identify", lambda source, root: found):
        giving.settle("x", plan_of("x", 1, "yes"), repair.instance, starts=True)
        first = firmware.slices()
        file.write_text("1:5\n")
        giving.settle("x", plan_of("x", 1, "yes"), repair.instance, starts=True)
        assert len(firmware.slices()) == 1
        assert firmware.slices() != first


def test_one_that_does_not_let_go() -> None:
    def refuse(source: object, allocation: Allocation) -> None:
        raise SpecError("no")

    with machine() as firmware:
        giving.settle("x", plan_of("x", 5, "no", id="a"), repair.instance, starts=True)
        with patch.object(call, "release", refuse):
            with pytest.raises(HelperError, match="device `npu` of `x` is not released: no"):
                allocations.stopped("x")
            allocations.mend("x", running=False)
            with pytest.raises(ConflictError, match="`a` has 5 of 10 cores left, and 6 are asked for"):
                giving.settle("y", plan_of("y", 6, "no", id="a"), repair.instance, starts=True)
        (left,) = allocations.left_over()
        assert left.failed == "no"
        allocations.release(left)
        assert firmware.slices() == set()


@pytest.mark.parametrize("there", ["x", ".new-x", ".del-x", "other/rename"])
def test_a_sweep_leaves_what_others_are_at(there: str) -> None:
    with machine() as firmware:
        giving.settle("x", plan_of("x", 1, "yes"), repair.instance, starts=True)
        os.makedirs(f"{record.instances_dir()}/{there}")
        allocations.sweep()
        assert len(firmware.slices()) == 1
        shutil.rmtree(record.instances_dir())
        pids = []
        for _ in range(6):
            pids.append(os.fork())
            if pids[-1] == 0:
                try:
                    allocations.sweep()
                finally:
                    os._exit(0)
        for pid in pids:
            os.waitpid(pid, 0)
        assert [word for word, _ in firmware.told()] == ["prepare", "release"]


def test_two_devices_in_one_place() -> None:
    with machine() as firmware:
        plan = [
            *plan_of("x", 1, "no"),
            ["device", "null", "char", "/dev/zero", "/dev/null", "0", "0", "0660", "rwm", "required"],
        ]
        with pytest.raises(SpecError, match="have the same path `/dev/null`"):
            giving.settle("x", plan, repair.instance, starts=True)
        assert firmware.slices() == set()


def test_what_is_written_comes_back() -> None:
    with machine():
        found = Found("tab\there", model="m\\n", vendor="v", nodes=["/dev/null"], functions={"f.x": {"n": 1, "w": "y"}, "f.y": {}},
                      shared=0, pools={"cores": 4}, identity=[("/sys/x", "1:2")], numa=1)  # fmt: skip
        one = held.Held("x", "dev.with.dots")
        one.type, one.token, one.life, one.values = "acme-npu", "t", "run", {"type": "acme-npu"}
        one.text = [["by", "plugin"], *held.lines(Allocation(found, takes={"cores": 2}, state={"slot": "a b"}))]
        os.makedirs(held.folder())
        one.write()
        (again,) = held.of("x").values()
        assert again.flat() == one.flat()
        assert again.allocation == Allocation(
            found, takes={"cores": 2}, state={"slot": "a b"}, id="t", values={"type": "acme-npu"}
        )


def test_candidates_of_the_machine() -> None:
    seen = functions.Seen.__new__(functions.Seen)
    seen.root, seen.devices, seen.sources, seen.found, seen.wrong = "/", [], {}, {"acme-npu": DEVICES}, []
    assert [each.id for each in functions.candidates(seen, [])] == ["a", "b"]
