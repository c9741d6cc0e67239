# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices that come and go on the host while an instance runs: loop devices, which the kernel makes and removes when asked."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control
from tests.conftest import Ctr
from tests.rootful.planned import Planned, image, wait_for
from tests.rootful.test_monitor import PRIVATE_KB, private_kb

LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81
LAUNCH = ("launch", "builtin:busybox", "-p", "no-network")
SOON = 0.2
"""Seconds in which a node must be inside."""


class Loop:
    """A loop device of a number that nobody else has; never bound to a file."""

    def __init__(self) -> None:
        self.number = 100_000 + os.getpid() % 100_000
        self.name = f"loop{self.number}"
        self.node = f"/dev/{self.name}"
        self.control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)

    @property
    def there(self) -> bool:
        return Path(f"/sys/block/{self.name}").exists()

    def add(self) -> None:
        fcntl.ioctl(self.control, LOOP_CTL_ADD, self.number)

    def remove(self) -> None:
        fcntl.ioctl(self.control, LOOP_CTL_REMOVE, self.number)

    def close(self) -> None:
        if self.there:
            self.remove()
        os.close(self.control)


@pytest.fixture
def loop(alone: None) -> Iterator[Loop]:
    """All who listen hear of it."""
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def planned(tmp_path: Path, loop: Loop) -> Iterator[Callable[..., Planned]]:
    layer = image(tmp_path / "image")
    made: list[Planned] = []

    def make(*names: str) -> Planned:
        rows = "".join(
            f"hotplug\t{name}\t0\trender\t0640\trw\tblock\tsource={loop.name}\tpath={name}\n" for name in names
        )
        made.append(Planned(tmp_path / f"{len(made)}", layer, rows=rows))
        return made[-1]

    yield make
    for each in made:
        each.close()


def inside(planned: Planned) -> list[tuple[str, int]]:
    found = planned.ask(control.DEVICES).devices()
    return [(part.path, part.gid) for part in found if part.kind == "block"]


def sockets(pid: int) -> int:
    return sum(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())


def test_comes_and_goes(planned: Callable[..., Planned], loop: Loop) -> None:
    instance = planned("disk")
    instance.start()
    assert inside(instance) == []
    for _ in range(3):
        before = time.monotonic()
        loop.add()
        wait_for(lambda: inside(instance))
        assert time.monotonic() - before < SOON
        assert inside(instance) == [("/dev/disk", 105)]
        number = os.stat(loop.node).st_rdev
        said = instance.sh("stat -c '%F %t:%T %a %g' /dev/disk").stdout.split()
        assert said == ["block", "special", "file", f"{os.major(number):x}:{os.minor(number):x}", "640", "105"]
        assert instance.sh("cat /dev/disk").returncode == 0
        loop.remove()
        wait_for(lambda: not inside(instance))
        assert instance.sh("stat /dev/disk").returncode


def test_what_goes_is_refused_under_other_names_too(planned: Callable[..., Planned], loop: Loop) -> None:
    instance = planned("disk")
    instance.start()
    loop.add()
    wait_for(lambda: inside(instance))
    assert instance.sh("ln /dev/disk /dev/other && cat /dev/other").returncode == 0
    loop.remove()
    wait_for(lambda: not inside(instance))
    loop.add()
    wait_for(lambda: inside(instance))
    assert instance.sh("cat /dev/disk").returncode == 0
    assert instance.sh("cat /dev/other").returncode, "the old node is dead although the number is allowed again"


def test_is_there_at_the_start(planned: Callable[..., Planned], loop: Loop) -> None:
    loop.add()
    instance = planned("disk")
    instance.start()
    assert inside(instance) == [("/dev/disk", 105)]
    loop.remove()
    wait_for(lambda: not inside(instance))


def test_two_devices_with_one_name_each_get_it(planned: Callable[..., Planned], loop: Loop) -> None:
    instance = planned("disk1", "disk10")
    instance.start()
    loop.add()
    wait_for(lambda: len(inside(instance)) == 2)
    assert instance.ask(control.DETACH, name="disk1").error == 0
    assert inside(instance) == [("/dev/disk10", 105)]
    assert instance.sh("cat /dev/disk10").returncode == 0


def test_nobody_listens_without_a_rule(planned: Callable[..., Planned], loop: Loop) -> None:
    without, instance = planned().start(), planned("disk")
    with_rule = instance.start()
    assert sockets(with_rule.monitor_pid) == sockets(without.monitor_pid) + 1
    assert instance.ask(control.DETACH, name="disk").error == 0
    wait_for(lambda: sockets(with_rule.monitor_pid) == sockets(without.monitor_pid))
    loop.add()
    time.sleep(SOON)
    assert inside(instance) == []


def test_listening_costs_no_memory(planned: Callable[..., Planned], loop: Loop) -> None:
    """Two, so that what they share is seen to be shared."""
    reports = [planned("disk").start() for _ in range(2)]
    loop.add()
    time.sleep(SOON)
    loop.remove()
    time.sleep(SOON)
    used = [private_kb(str(report.monitor_pid)) for report in reports]
    assert all(0 < kb <= PRIVATE_KB for kb in used), used


def test_suspended_waits(planned: Callable[..., Planned], loop: Loop) -> None:
    loop.add()
    instance = planned("disk")
    instance.start()
    assert instance.ask(control.SUSPEND, name="disk").error == 0
    assert instance.sh("cat /dev/disk").returncode
    assert instance.ask(control.RESUME, name="disk").error == 0
    assert instance.sh("cat /dev/disk").returncode == 0


def test_attached_live_before_it_exists(ctr: Ctr, loop: Loop) -> None:
    def there() -> bool:
        return not ctr("exec", "c1", "--", "test", "-b", loop.node, code=None).code

    ctr(*LAUNCH, "c1")
    ctr("attach-device", "c1", "late", "type=unix-block", f"source={loop.node}", "required=false")
    assert not there()
    loop.add()
    wait_for(there)
    ctr("restart", "c1", "--timeout=1")
    assert there()
    loop.remove()
    wait_for(lambda: not there())
    ctr("detach-device", "c1", "late")
    loop.add()
    time.sleep(SOON)
    assert not there()


LATE = ("type=unix-block", "required=false", "path=/dev/late")


def holders(ctr: Ctr, loop: Loop) -> list[str]:
    """Instances that have it, once leases and the machine's list say the same."""
    number, folder = os.stat(loop.node).st_rdev, ctr.folder / "run/.leases"
    id = f"block:{os.major(number)}:{os.minor(number)} "
    shown = json.loads(ctr("device", "list", "unix-block", "--all", "--format", "json").stdout)
    there = [held for row in shown if row["name"] == loop.name for held in row["holders"]]
    listed = sorted(held["instance"] for held in there if held["live"])
    files = os.listdir(folder) if folder.exists() else []
    leased = sorted(file.split(" ")[2] for file in files if file.startswith(id))
    return leased if leased == listed else []


def test_what_comes_is_leased(ctr: Ctr, loop: Loop) -> None:
    """One has it; the other gets it when it is given back; nobody can attach it beside them; and nothing remains."""
    for name in ("c1", "c2"):
        ctr(*LAUNCH, name)
        ctr("attach-device", name, "late", *LATE, f"source={loop.node}", "lease=exclusive")
    loop.add()
    wait_for(lambda: holders(ctr, loop))
    (first,) = holders(ctr, loop)
    other = "c2" if first == "c1" else "c1"
    assert not ctr("exec", first, "--", "test", "-b", "/dev/late", code=None).code
    assert ctr("exec", other, "--", "test", "-b", "/dev/late", code=None).code
    said = ctr("attach-device", other, "now", "type=unix-block", f"source={loop.node}", code=4).stderr
    assert f"`{first}` (exclusive, as `late`)" in said
    ctr("detach-device", first, "late")
    wait_for(lambda: holders(ctr, loop) == [other])
    assert not ctr("exec", other, "--", "test", "-b", "/dev/late", code=None).code
    loop.remove()
    wait_for(lambda: not os.listdir(ctr.folder / "run/.leases"))


def test_at_most_so_many_share_what_comes(ctr: Ctr, loop: Loop) -> None:
    for name, lease in (("c1", "shared:2"), ("c2", "shared"), ("c3", "shared")):
        ctr(*LAUNCH, name)
        ctr("attach-device", name, "late", *LATE, f"source={loop.node}", f"lease={lease}")
    loop.add()
    wait_for(lambda: len(holders(ctr, loop)) == 2)
    time.sleep(SOON)
    first, second = holders(ctr, loop)
    ctr("stop", "--force", first)
    wait_for(lambda: holders(ctr, loop) == sorted({"c1", "c2", "c3"} - {first}))
    assert second in holders(ctr, loop)


def test_a_rule_of_many_words_is_no_damage(ctr: Ctr) -> None:
    """What enters an instance reads the same plan as its monitor."""
    ctr(*LAUNCH, "c1")
    keys = ("vendorid=dead", "productid=beef", "serial=none", "busnum=77", "devnum=77", "lease=exclusive")
    ctr("attach-device", "c1", "stick", "type=usb", *keys)
    ctr("exec", "c1", "--", "true")
    ctr("restart", "--force", "c1")
    ctr("exec", "c1", "--", "true")


def test_what_nothing_can_take_the_place_of(ctr: Ctr) -> None:
    ctr(*LAUNCH, "c1")
    words = ("attach-device", "c1", "stick", "type=usb", "vendorid=dead", "failover=same-model")
    assert "made of nothing" in ctr(*words, code=3).stderr
