# SPDX-License-Identifier: GPL-3.0-or-later
"""`failover: same-model`, and a monitor that is killed between any two steps of it. The adapters are directories over part of sysfs that
this process alone sees, with nodes that nobody serves, and links that are real."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control
from tests.conftest import Ctr, same, settle
from tests.rootful import test_parts, traced
from tests.rootful.planned import wait_for
from tests.rootful.test_links import Net

Snapshot = Callable[[], dict[str, object]]
HARDWARE, COVERED = "/sys/devices/virtual/mem", ("/sys/dev/char", "/sys/class/net", "/dev/shm")
MAJOR = 60
"""For local use."""
SAME = ("setns", "mkdirat", "fchownat", "sendmsg")
"""Calls before which nothing is otherwise than before another one."""


class Adapters:
    """Each with two nodes and a link, and all of one model."""

    def __init__(self, net: Net) -> None:
        self.net = net
        for path in (HARDWARE, *COVERED):
            subprocess.run(["mount", "-t", "tmpfs", "adapters", path], check=True)

    def close(self) -> None:
        for path in (HARDWARE, *COVERED):
            subprocess.run(["umount", path], check=True)

    def add(self, which: int) -> None:
        place = Path(self.place(which))
        for index, kind in enumerate("ab"):
            number = 2 * which + index
            (place / f"fo/fo{kind}{which}").mkdir(parents=True)
            (place / f"fo/fo{kind}{which}/uevent").write_text(f"DEVNAME=shm/fo{kind}{which}\n")
            (place / f"fo/fo{kind}{which}/subsystem").symlink_to("../../../../../../class/fo")
            link(f"/sys/dev/char/{MAJOR}:{number}", f"../..{str(place).removeprefix('/sys')}/fo/fo{kind}{which}")
            os.mknod(f"/dev/shm/fo{kind}{which}", 0o020660, os.makedev(MAJOR, number))
        folder = place / f"net/fo{which}"
        folder.mkdir(parents=True)
        for file, text in (("dev_port", "0"), ("flags", "0x1002"), ("ifindex", "7"), ("iflink", "7")):
            (folder / file).write_text(f"{text}\n")
        (folder / "device").symlink_to("../..")
        link(f"/sys/class/net/fo{which}", f"../..{str(folder).removeprefix('/sys')}")
        for file in ("vendor", "device"):
            (place / file).write_text("0x4242\n")
        self.net.ip(f"link add fo{which} address {self.mac(which)} type veth peer name far{which}")

    def remove(self, which: int) -> None:
        """With its link, wherever that is."""
        for path in (
            f"/sys/dev/char/{MAJOR}:{2 * which}",
            f"/sys/dev/char/{MAJOR}:{2 * which + 1}",
            f"/sys/class/net/fo{which}",
        ):
            Path(path).unlink(missing_ok=True)
        for node in Path("/dev/shm").glob(f"fo?{which}"):
            node.unlink()
        shutil.rmtree(self.place(which), ignore_errors=True)
        if f"far{which}" in self.net.links():
            self.net.ip(f"link delete far{which}")

    def renew(self, which: int) -> None:
        self.remove(which)
        self.add(which)

    @staticmethod
    def place(which: int) -> str:
        return f"{HARDWARE}/0000:99:0{which}.0"

    @staticmethod
    def mac(which: int) -> str:
        return f"52:54:00:00:99:0{which}"


def link(path: str, target: str) -> None:
    Path(path).symlink_to(target)


def rows(lease: str = "exclusive") -> list[list[str]]:
    """What a driver would have resolved adapter 0 to."""
    model = ("vendor=0x4242", "model=0x4242", "unit=0")
    owner = ("0", "44", "0660", "rwm")
    rules = [
        ["hotplug", "it", *owner, "model", "class=fo", f"name=fo{kind}", *model, f"path=fo/{kind}", f"lease={lease}"]
        for kind in "ab"
    ]
    rules[0].append("holds=pci:0000:99:00.0")
    moves = ["class=net", "name=", *model, "path=net7", "address=", "mtu=1400", "port=0", "holds=link:fo0"]
    return [
        *(["device", "it", "char", f"/dev/shm/fo{kind}0", f"/dev/fo/{kind}", *owner, "required"] for kind in "ab"),
        ["netdev", "it", "fo0", "net7", "", "1400", "required"],
        *rules,
        ["hotplug", "it", *owner, "model", *moves],
        *(["lease", "it", f"node:/dev/shm/fo{kind}0", lease] for kind in "ab"),
        ["lease", "it", "pci:0000:99:00.0", lease],
        ["lease", "it", "link:fo0", "exclusive"],
    ]


def has(ctr: Ctr, which: int) -> None:
    """Nodes and link inside, and leases, of this adapter and of no other one."""
    found = control.ask(str(ctr.folder / "run/c1"), control.DEVICES).devices()
    nodes = {part.path: (part.major, part.minor) for part in found if part.kind == "char"}
    leases = sorted(file.partition(" ")[0] for file in os.listdir(ctr.folder / "run/.leases"))
    said = ctr("exec", "c1", "--", "sh", "-c", "cat /sys/class/net/net7/address; cat /dev/fo/a /dev/fo/b", code=None)
    numbers = [(MAJOR, 2 * which), (MAJOR, 2 * which + 1)]
    assert nodes == {"/dev/fo/a": numbers[0], "/dev/fo/b": numbers[1]}
    assert leases == sorted(
        [*(f"char:{major}:{minor}" for major, minor in numbers), f"link:fo{which}", f"pci:0000:99:0{which}.0"]
    )
    assert said.stdout == Adapters.mac(which) + "\n"
    assert said.stderr.count("No such device or address") == 2, said  # nobody serves them, and nobody refuses them


def monitor(ctr: Ctr) -> int:
    rows = dict(line.split("\t")[:2] for line in (ctr.folder / "run/c1/state").read_text().splitlines())
    return int(rows["monitor"])


@pytest.fixture
def net(ctr: Ctr) -> Iterator[Net]:
    found = Net(ctr)
    yield found
    ctr.clean_up()
    found.child.kill()
    found.child.wait()


@pytest.fixture
def adapters(net: Net) -> Iterator[Adapters]:
    made = Adapters(net)
    yield made
    net.ctr.clean_up()
    made.close()


def goes(adapters: Adapters, ctr: Ctr, last: int = 0) -> list[str]:
    """Adapter 0, while the other one is free, and somebody has the monitor look; what that did."""
    adapters.renew(1)
    adapters.remove(0)
    words = [*ctr.argv, "attach-device", "c1", "look", "type=usb", "vendorid=dead", "--volatile"]
    return traced.killed(monitor(ctr), words, last, ctr.env)


def test_killed_between_any_two_steps(ctr: Ctr, adapters: Adapters, host_snapshot: Snapshot) -> None:
    """Then the next command, which is another start, finds the instance as after any end of it: with what it asks for, and no more. So does
    its monitor, when the instance restarts itself."""
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("stop", "--force", "c1")
    settle()
    before = host_snapshot()
    for which in (0, 1):
        adapters.add(which)
    ctr("start", "c1")
    test_parts.attach(ctr, rows(), name="it")
    has(ctr, 0)
    steps = goes(adapters, ctr)
    has(ctr, 1)
    adapters.add(0)
    state = ctr.folder / "run/c1/state"
    run = state.read_text()
    ctr("exec", "c1", "--", "reboot", "-f", code=None)
    wait_for(lambda: state.exists() and state.read_text() not in ("", run))
    has(ctr, 0)
    numbers = [index + 1 for index, step in enumerate(steps) if step not in SAME and step != steps[index - 1]]
    assert len(numbers) > 20
    for last in numbers:
        assert goes(adapters, ctr, last)[-1] == steps[last - 1]
        adapters.renew(0)
        ctr("start", "c1")
        has(ctr, 0)
    ctr("delete", "--force", "c1")
    assert os.listdir(ctr.folder / "run") == [".leases"] and os.listdir(ctr.folder / "run/.leases") == []
    for which in (0, 1):
        adapters.remove(which)
    settle()
    same(before, host_snapshot())
