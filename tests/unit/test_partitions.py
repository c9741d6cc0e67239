# SPDX-License-Identifier: GPL-3.0-or-later
"""No sequence of starts, stops, live attaches and detaches, named partitions that come, are used and go, other users, kills of commands and of
instances, and restarts of the machine gives more of a device than there is, or less than there could
be, leaves a partition that nobody has, or ends one that somebody has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctrmgr import partition as back_ends
from ctrmgr import state
from ctrmgr.backend import (
    allocations,
    dividing,
    giving,
    held,
    machine_lock,
    named_partitions,
    partitions,
    record,
    repair,
)
from ctrmgr.devices import partition
from ctrmgr.devices.partition import Asked
from ctrmgr.devices.plugin import Allocation, ContainerEdits, DeviceNode, Found, Partition
from ctrmgr.errors import ConflictError, HostError, NotFoundError
from ctrmgr.plugins import call, registry

DEVICES = [
    Found("a", pools={"cores": 10, "memory": 16}, partitions=3),
    Found("b", pools={"cores": 4}, partitions=2, profiles={"half": {"cores": 2}, "whole": {"cores": 4}}),
]
SOURCE = registry.Source("acme-npu", "a test", path="/nowhere")
STEPS = ("", "", "", "allocate-recorded", "allocate-prepared", "release-done", "in-prepare", "in-release", "attached")


class Card:
    """What the hardware has set aside: a file for each partition, by device and id. It refuses nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def there(self, found: str) -> dict[str, dict[str, int]]:
        paths = [path for path in self.folder.iterdir() if path.name.startswith(f"{found}.")]
        return {path.name.partition(".")[2]: json.loads(path.read_text()) for path in paths}

    def put(self, found: str, id: str, takes: Mapping[str, int]) -> None:
        (self.folder / f".{found}.{id}").write_text(json.dumps(dict(takes)))
        os.rename(self.folder / f".{found}.{id}", self.folder / f"{found}.{id}")

    def partitions(self, _source: object, found: Sequence[Found]) -> list[Partition]:
        return [Partition(each.id, id, takes) for each in found for id, takes in self.there(each.id).items()]

    def prepare(self, _source: object, allocation: Allocation) -> ContainerEdits:
        die("in-prepare", early=True)
        assert allocation.id not in self.there(allocation.found.id), "made twice"
        self.put(allocation.found.id, allocation.id, allocation.takes)
        die("in-prepare")
        return ContainerEdits(device_nodes=[DeviceNode("/dev/null")])

    def release(self, _source: object, allocation: Allocation) -> None:
        die("in-release", early=True)
        (self.folder / f"{allocation.found.id}.{allocation.id}").unlink(missing_ok=True)
        die("in-release")


def die(step: str, *, early: bool = False) -> None:
    """Before the card has heard it, or after."""
    if os.environ.get("CTRMGR_CRASH_AT") == step and (not early or os.urandom(1)[0] < 128):
        os.kill(os.getpid(), signal.SIGKILL)


def divide(
    _source: object, found: Found, takes: Mapping[str, int], _profile: str, _taken: Sequence[Partition]
) -> tuple[Allocation, bool]:
    """Cores come in pairs."""
    rounded = {pool: -(-amount // 2) * 2 if pool == "cores" else amount for pool, amount in takes.items()}
    return Allocation(found, takes=rounded), False


@contextmanager
def machine() -> Iterator[tuple[Card, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="ctr-"))
    card = Card(folder / "card")
    (folder / "lock").mkdir()
    try:
        with (
            patch.dict(os.environ, {"CTRMGR_RUN_DIR": f"{folder}/run"}),
            patch.object(registry, "sources", lambda: {"acme-npu": SOURCE}),
            patch.object(back_ends, "every", list),
            patch.object(call, "identify", lambda source, root="/": DEVICES),
            patch.object(call, "divide", divide),
            patch.object(call, "partitions", card.partitions),
            patch.object(call, "prepare", card.prepare),
            patch.object(call, "release", card.release),
            patch.object(machine_lock, "LOCK", f"{folder}/lock"),
            patch.object(
                partitions, "boot", lambda: str((folder / "boot").exists() and (folder / "boot").stat().st_size)
            ),
        ):
            yield card, folder
    finally:
        shutil.rmtree(folder)


def request(device: str, sizes: str) -> list[list[str]]:
    values = {"type": "acme-npu", "partition": partition.parse(sizes)}
    return [["request", device, "acme-npu", "run", *item] for item in values.items()]


def plan_of(name: str, sizes: str) -> list[list[str]]:
    return [["ctrmgr-plan", "1"], ["name", name], *request("npu", sizes)]


class User:
    """One of the machine's users: books of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, str] = {}
        """Instance → what it has, by device and id."""
        self.attached: dict[str, str] = {}
        """The same of the device that it was given live."""

    @contextmanager
    def books(self) -> Iterator[None]:
        running = lambda name: name in self.running  # noqa: E731
        with (
            patch.dict(os.environ, {"CTRMGR_STATE_DIR": str(self.folder)}),
            patch.object(record, "is_running", running),
            patch.object(allocations, "_attached", lambda name, device: device == "more" and name in self.attached),
        ):
            yield

    def do(self, verb: str, name: str, sizes: str) -> None:
        if verb in ("start", "borrow"):
            os.makedirs(record.home(name), exist_ok=True)
            state.write_flat(f"{record.home(name)}/plan", plan_of(name, sizes))
            with state.Lock(record.home(name)):
                allocations.mend(name, running=False)
                rows = giving.settle(name, plan_of(name, sizes), repair.instance, starts=True)
            assert any(row[0] == "device" for row in rows)
        elif verb == "stop":
            with state.Lock(record.home(name)):
                allocations.stopped(name)
        elif verb == "attach":
            with state.Lock(record.home(name)):
                allocations.mend(name, running=True)
                held_ = giving.attach(name, request("more", sizes), repair.instance, running=True, volatile=name == "x")
                assert held_ is not None and any(row[0] == "device" for row in held_.rows)
                die("attached")
                if name != "x":
                    state.write_flat(
                        f"{record.home(name)}/plan",
                        [*record.read_plan(record.home(name)), *request("more", sizes), *held_.rows],
                    )
        elif verb == "detach":
            with state.Lock(record.home(name)):
                plan = [row for row in record.read_plan(record.home(name)) if row[1:2] != ["more"]]
                state.write_flat(f"{record.home(name)}/plan", plan)
                allocations.mend(name, running=True)
                allocations.detach(name, "more")
        elif verb == "create":
            named_partitions.create(f"n{name}", "a", partition.sizes(sizes))
        else:
            named_partitions.delete(f"n{name}")

    def command(self, verb: str, name: str, sizes: str, crash: str) -> int:
        """In a process that is killed at `crash`: 0 done, 4 refused, below 0 killed."""
        with self.books():
            pid = os.fork()
            if pid == 0:
                os.environ["CTRMGR_CRASH_AT"] = crash
                code = 1
                try:
                    self.do(verb, name, sizes)
                    code = 0
                except (ConflictError, NotFoundError):
                    code = 4
                except BaseException as error:
                    os.write(2, f"{type(error).__name__}: {error}\n".encode())
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code in (0, 4, -signal.SIGKILL)
            if verb in ("start", "borrow") and code == 0:
                self.running[name] = self.part(held.of(name)["npu"])
            elif verb == "attach" and code == 0:
                self.attached[name] = self.part(held.of(name)["more"])
            elif verb == "stop":
                self.died(name)
            return code

    def died(self, name: str) -> None:
        """Nothing runs any more; what it had is in the books."""
        self.running.pop(name, None)
        self.attached.pop(name, None)

    @staticmethod
    def part(each: held.Held) -> str:
        """Of a partition with a name that it uses, that one."""
        made = held.of(held.NAMED)[each.uses] if each.uses else each
        return f"{made.found_id}.{made.part}"

    def has(self) -> dict[str, held.Held]:
        with self.books():
            return {self.part(each): each for each in held.everything() if not each.uses}

    def left(self, each: held.Held) -> bool:
        """Whether a command that was killed left it."""
        return not each.rows or (each.device == "more" and each.instance not in self.attached)

    def free(self, name: str) -> bool:
        """Whether there is a partition with this name that nobody who runs has."""
        with self.books():
            named = held.of(held.NAMED).get(name)
            return (
                named is not None
                and bool(named.rows)
                and self.part(named) not in {*self.running.values(), *self.attached.values()}
            )


def in_order(card: Card, users: Sequence[User]) -> None:
    """Nothing is given twice, and what runs has what it was given. What is in books alone was given back by whoever was killed then."""
    for found in DEVICES:
        there = {f"{found.id}.{id}": takes for id, takes in card.there(found.id).items()}
        assert len(there) <= found.partitions
        for pool, size in found.pools.items():
            assert sum(takes.get(pool, 0) for takes in there.values()) <= size
        for user in users:
            in_use = [*user.running.values(), *user.attached.values()]
            assert len(set(in_use)) == len(in_use)  # never two that have one
            assert {part for part in in_use if part.startswith(f"{found.id}.")} <= set(there)


def room(card: Card, users: Sequence[User], user: User, sizes: str, only: str = "") -> bool:
    """Whether a device has so much left, counting what somebody really has: nothing that was left by whoever was killed, as far as this
    user can know."""
    asked = Asked(partition.parse(sizes))
    mine = {part for part, each in user.has().items()}
    for found in DEVICES:
        if only not in ("", found.id):
            continue
        there = {id: takes for id, takes in card.there(found.id).items() if f"{found.id}.{id}" not in mine}
        there |= {
            each.part: each.takes for each in user.has().values() if each.found_id == found.id and not user.left(each)
        }
        wanted = {pool: -(-amount // 2) * 2 if pool == "cores" else amount for pool, amount in asked.amounts.items()}
        left = {pool: size - sum(takes.get(pool, 0) for takes in there.values()) for pool, size in found.pools.items()}
        if found.id == "b" and (set(wanted) != {"cores"} or wanted["cores"] > 4):
            continue
        if len(there) < found.partitions and all(amount <= left.get(pool, 0) for pool, amount in wanted.items()):
            return True
    return False


SIZES = st.sampled_from(
    ["cores=1", "cores=2", "cores=3,memory=4", "memory=9", "cores=6,memory=1", "cores=10", "cores=4"]
)
COMMANDS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(
            [
                "start",
                "start",
                "stop",
                "create",
                "delete",
                "foreign",
                "gone",
                "attach",
                "attach",
                "detach",
                "borrow",
                "die",
                "boot",
            ]
        ),
        st.sampled_from("xyz"),
        SIZES,
        st.sampled_from(STEPS),
    ),
    max_size=16,
)


@settings(max_examples=50, deadline=None)
@given(COMMANDS)
@example([(0, "start", "x", "cores=10", "allocate-prepared"), (0, "start", "y", "cores=10", "")])
@example(
    [(1, "create", "x", "cores=1", ""), (1, "delete", "x", "cores=1", "release-done"), (1, "start", "x", "cores=1", "")]
)
@example(
    [
        (0, "create", "x", "cores=10", "in-prepare"),
        (0, "create", "y", "cores=10", ""),
        (1, "create", "z", "cores=1", ""),
    ]
)
@example(
    [
        (0, "create", "x", "cores=1", ""),
        (0, "borrow", "x", "cores=1", "allocate-recorded"),
        (0, "delete", "x", "cores=1", ""),
    ]
)
@example(
    [(0, "start", "x", "cores=1", ""), (0, "attach", "x", "cores=1", "attached"), (0, "create", "y", "cores=1", "")]
)
def test_any_sequence(commands: list[tuple[int, str, str, str, str]]) -> None:
    with machine() as (card, folder):
        users = [User(folder / "one"), User(folder / "two")]
        others = boots = 0
        for which, verb, name, sizes, crash in commands:
            user = users[which]
            if verb == "foreign":
                others += 1
                if room(card, users, User(folder / "nobody"), "cores=2", "a") and not any(
                    part for each in users for part in each.has() if part.partition(".")[2] not in card.there("a")
                ):
                    card.put("a", f"foreign{others}", {"cores": 2})
            elif verb == "gone":
                for path in card.folder.glob("*.foreign*"):
                    path.unlink()
            elif verb == "boot":
                boots += 1
                (folder / "boot").write_text("x" * boots)
                shutil.rmtree(folder / "run", ignore_errors=True)
                for path in card.folder.iterdir():
                    path.unlink()
                for each in users:
                    each.running.clear()
                    each.attached.clear()
            elif verb == "die":
                user.died(name)
            elif possible(user, verb, name):
                foreign = set(card.folder.glob("*.foreign*"))
                free = user.free(f"n{name}")
                if verb == "detach":
                    user.attached.pop(name)  # the monitor has taken it away
                code = user.command(verb, name, f"n{name}" if verb == "borrow" else sizes, crash)
                assert foreign == set(card.folder.glob("*.foreign*"))  # never touched
                if code == 4 and verb in ("start", "attach"):
                    assert not room(card, users, user, sizes)
                if verb in ("borrow", "delete") and crash == "" and not boots:
                    assert (
                        code == 0 if free else code == 4 or verb == "delete"
                    )  # one that is half made, or half gone, goes
                if code == 0 and verb in ("start", "create", "attach"):  # whatever was left is gone by now
                    assert not any(user.left(each) for each in user.has().values())
                    lost = {part for part in user.has() if part.partition(".")[2] not in card.there(part[0])}
                    assert all(user.has()[part].instance == held.NAMED for part in lost) and (boots or not lost)
            in_order(card, users)
        for user in users:
            for name in "xyz":
                if name in user.running:
                    assert user.command("stop", name, "", "") == 0
            with user.books():
                with machine_lock.taken():
                    dividing.take_back(repair.instance)
                for name in list(held.of(held.NAMED)):
                    named_partitions.delete(name)
                for name in "xyz":
                    allocations.forget(name)
                assert held.everything() == []
        assert [path.name for path in card.folder.iterdir() if "foreign" not in path.name] == []


def possible(user: User, verb: str, name: str) -> bool:
    if verb in ("create", "delete"):
        return True
    if verb in ("start", "borrow"):
        return name not in user.running
    return name in user.running and (verb == "stop" or (verb == "detach") == (name in user.attached))


def twice(
    _source: object, found: Found, takes: Mapping[str, int], _profile: str, _taken: Sequence[Partition]
) -> tuple[Allocation, bool]:
    return Allocation(found, takes=takes, state={"partition": "1"}), False


def test_a_broken_plugin(tmp_path: Path) -> None:
    """One that gives a partition away twice, or that gives less than was asked for, is found out before anything is made."""
    asked = call.divide
    with machine() as (card, folder), User(folder / "one").books():
        with patch.object(call, "divide", twice):
            giving.settle("x", plan_of("x", "cores=2,memory=1"), repair.instance, starts=True)
            with pytest.raises(HostError, match="would give away `1` twice"):
                giving.settle("y", plan_of("y", "cores=2,memory=1"), repair.instance, starts=True)
        answer = {}, Allocation(DEVICES[0], takes={"cores": 1})
        with (
            patch.object(call, "_read", lambda *_: answer),
            patch.object(call, "divide", asked),
            pytest.raises(call.PluginError, match="it chose less of `memory` than is asked for"),
        ):
            giving.settle("y", plan_of("y", "cores=1,memory=1"), repair.instance, starts=True)
        assert len(card.there("a")) == 1


def test_the_lock(tmp_path: Path) -> None:
    """Who waits for too long says so; who has it may take it again; without /sys there is none."""
    with machine() as (_, folder):
        with (
            state.Lock(str(folder / "lock")),
            patch.object(machine_lock, "PATIENCE", 0.1),
            pytest.raises(ConflictError, match="another command has been giving out parts or memory"),
            machine_lock.taken(),
        ):
            pass
        with machine_lock.taken(), machine_lock.taken():
            assert state.is_locked(str(folder / "lock"))
        assert not state.is_locked(str(folder / "lock"))
        with (
            patch.object(machine_lock, "LOCK", f"{tmp_path}/none"),
            pytest.raises(HostError, match="is not there"),
            machine_lock.taken(),
        ):
            pass
