# SPDX-License-Identifier: GPL-3.0-or-later
"""Links of the host's that move into an instance, and come back as they were. The host's network is one of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ctr
from tests.rootful.planned import wait_for

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:aa:aa:aa"
GIVEN = ("type=nic", "nictype=physical", "parent=p0")
LAUNCH = ("launch", "builtin:busybox", "c1", "-p", "no-network")


class Net:
    """A network namespace in which `ctrmgr` runs: a pair `p0`, `p1`, and a dummy that has the default route where there are any."""

    def __init__(self, ctr: Ctr) -> None:
        self.ctr = ctr
        self.child = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        while Path(f"/proc/{self.child.pid}/comm").read_text() != "sleep\n":
            pass
        self.enter = ["nsenter", f"--net=/proc/{self.child.pid}/ns/net"]
        ctr.argv = [*self.enter, *ctr.argv]
        self.ip("link add p0 mtu 1400 address", MAC, "type veth peer name p1")
        self.ip("link set p0 up")

    def ip(self, *words: str) -> str:
        return self.run("ip", *" ".join(words).split())

    def run(self, *words: str) -> str:
        done = subprocess.run([*self.enter, *words], capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def links(self) -> dict[str, tuple[str, int, bool]]:
        """Hardware address, mtu and whether it is up, by name."""
        found: list[dict[str, Any]] = json.loads(self.ip("-json link"))
        return {each["ifname"]: (each["address"], each["mtu"], "UP" in each["flags"]) for each in found}

    def comes_back(self, link: tuple[str, int, bool]) -> None:
        """When the kernel has taken down what is dead."""
        wait_for(lambda: self.links().get("p0") == link)


@pytest.fixture
def net(ctr: Ctr) -> Iterator[Net]:
    found = Net(ctr)
    before = found.links()
    assert before["p0"] == (MAC, 1400, True)
    yield found
    ctr.clean_up()
    found.child.kill()
    found.child.wait()


def inside(ctr: Ctr, script: str, code: int | None = 0) -> str:
    done = ctr("exec", "c1", "--", "sh", "-c", script, code=code)
    return done.stdout + done.stderr


def pids(ctr: Ctr) -> dict[str, int]:
    words = dict(line.split("\t")[:2] for line in (ctr.folder / "run/c1/state").read_text().splitlines())
    return {key: int(words[key]) for key in ("monitor", "init")}


def test_comes_and_goes_live(net: Net) -> None:
    ctr, before = net.ctr, net.links()
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "n", *GIVEN, "name=eth7", "mtu=1300", f"hwaddr={OTHER}")
    assert set(net.links()) == {"lo", "p1"}
    said = inside(ctr, "ip link show eth7")
    assert "mtu 1300" in said
    assert OTHER in said
    assert ",UP" in said
    net.ip("addr add 10.9.9.1/24 dev p1")
    net.ip("link set p1 up")
    inside(ctr, "ip addr add 10.9.9.2/24 dev eth7; ping -c 1 -W 5 10.9.9.1")
    (part,) = json.loads(ctr("info", "c1", "--format", "json").stdout)["attached"]
    assert (part["type"], part["path"], part["parent"]) == ("netdev", "eth7", "p0")
    ctr("config", "set", "c1", "limits.processes=99")
    ctr("detach-device", "c1", "n")
    assert net.links()["p0"] == before["p0"]
    assert not (ctr.folder / "run/c1/links").exists()
    assert "eth7" not in inside(ctr, "ip link")
    why = "`limits.egress` cannot be enforced here: `p0` of device `n` is a link of the host's that moves in"
    ctr("config", "set", "c1", "limits.egress=1Mbit")
    for volatile in ([], ["--volatile"]):
        assert why in ctr("attach-device", "c1", "n", *GIVEN, *volatile, code=5).stderr
    assert net.links()["p0"] == before["p0"] and "nictype" not in ctr("config", "show", "c1").stdout
    ctr("config", "unset", "c1", "limits.egress")
    ctr("attach-device", "c1", "n", *GIVEN, "--volatile")
    assert why in ctr("config", "set", "c1", "limits.egress=1Mbit", code=5).stderr
    assert why in ctr("config", "set", "c1", "limits.egress=1Mbit", "limits.enforcement=best-effort").stderr
    ctr("delete", "--force", "c1")
    assert net.links()["p0"] == before["p0"]


@pytest.mark.parametrize("how", ["stop", "restart", "init", "halt"])
def test_is_back_when_the_instance_ends(net: Net, how: str) -> None:
    ctr, before = net.ctr, net.links()["p0"]
    ctr(*LAUNCH, "-d", "n," + ",".join(GIVEN) + ",name=eth0,mtu=1280")
    assert "mtu 1280" in inside(ctr, "ip link show eth0")
    if how == "init":
        os.kill(pids(ctr)["init"], signal.SIGKILL)
        net.comes_back(before)
        ctr("start", "c1")
    elif how == "halt":
        inside(ctr, "poweroff", code=None)
        net.comes_back(before)
        ctr("start", "c1")
    elif how == "restart":
        ctr("restart", "--force", "c1")
    else:
        ctr("stop", "--force", "c1")
        assert net.links()["p0"] == before
        ctr("start", "c1")
    assert "mtu 1280" in inside(ctr, "ip link show eth0")
    assert "p0" not in net.links()
    ctr("delete", "--force", "c1")
    assert net.links()["p0"] == before


def test_a_start_that_fails_gives_it_back(net: Net) -> None:
    """What comes after it in the plan cannot be had."""
    ctr, before = net.ctr, net.links()
    ctr("create", "builtin:busybox", "c1", "-p", "no-network", "-d", "n," + ",".join(GIVEN), "-d",
        "z,type=nic,nictype=physical,parent=nosuch,name=z")  # fmt: skip
    said = ctr("start", "c1", code=3).stderr
    assert "`nosuch`" in said
    assert net.links() == before
    net.ip("link add nosuch type veth peer name q1")
    ctr("start", "c1")
    assert set(net.links()) == {"lo", "p1", "q1"}


def test_what_the_host_needs_stays(net: Net) -> None:
    ctr = net.ctr
    ctr(*LAUNCH)
    net.ip("addr add 10.8.8.1/24 dev p0")
    net.ip("link set p1 up")
    net.ip("route add default via 10.8.8.2 dev p0")
    assert "default route" in ctr("attach-device", "c1", "n", *GIVEN, code=4).stderr
    net.ip("route del default")
    net.ip("link add br0 type bridge")
    net.ip("link set p0 master br0")
    assert "port of a bridge" in ctr("attach-device", "c1", "n", *GIVEN, code=4).stderr
    net.ip("link set p0 nomaster")
    for link in ("br0", "lo"):
        assert "does not move" in ctr("attach-device", "c1", "n", *GIVEN[:2], f"parent={link}", code=4).stderr
    assert "no such network link" in ctr("attach-device", "c1", "n", *GIVEN[:2], "parent=nosuch", code=3).stderr
    said = ctr("attach-device", "c1", "n", *GIVEN, "name=lo", code=4).stderr
    assert "a link of that name already" in said
    assert net.links()["p0"][:2] == (MAC, 1400)
    ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-d", "n," + ",".join(GIVEN))
    assert "held by `c2`" in ctr("attach-device", "c1", "n", *GIVEN, code=4).stderr
    assert "bridged" in ctr("attach-device", "c1", "n", "type=nic", "nictype=sriov", code=2).stderr
    assert "live" in ctr("attach-device", "c1", "n", "type=nic", "network=ctrbr0", code=5).stderr


def test_a_link_that_the_instance_made_never_comes_to_the_host(net: Net) -> None:
    """Its root may delete what is no hardware, and make another one of the same name and number in its place."""
    ctr = net.ctr
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "n", *GIVEN)
    index = inside(ctr, "cat /sys/class/net/p0/ifindex").strip()
    inside(ctr, "ip link del p0")
    enter = ["nsenter", f"--net=/proc/{pids(ctr)['init']}/ns/net"]
    made = f"ip link add p0 index {index} address {MAC} type veth peer name bad"
    subprocess.run([*enter, *made.split()], check=True)
    ctr("detach-device", "c1", "n")
    assert set(net.links()) == {"lo"}
    assert "p0" in inside(ctr, "ip link")


def test_renamed_inside_it_comes_back_under_its_own_name(net: Net) -> None:
    ctr, before = net.ctr, net.links()
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "n", *GIVEN)
    inside(ctr, "ip link set p0 down; ip link set p0 name other; ip link set other address 52:54:00:bb:bb:bb mtu 1290")
    ctr("detach-device", "c1", "n")
    assert {name: link[1:] for name, link in net.links().items()} == {n: link[1:] for n, link in before.items()}


def test_a_name_that_the_host_has_given_away(net: Net) -> None:
    """The detach says so and changes nothing; when the name is free it works."""
    ctr, before = net.ctr, net.links()["p0"]
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "n", *GIVEN)
    net.ip("link add p0 type veth peer name q1")
    assert "a link of that name already" in ctr("detach-device", "c1", "n", code=4).stderr
    assert "p0" in inside(ctr, "ip link")
    net.ip("link del p0")
    ctr("detach-device", "c1", "n")
    assert net.links()["p0"] == before


STEPS = ("attach-leased", "attach-recorded", "attach-prepared", "attach-done", "detach-recorded", "detach-done")


@pytest.mark.parametrize("step", STEPS)
def test_a_command_that_is_killed(net: Net, step: str) -> None:
    """The next one finds the link in the one place where it is said to be."""
    ctr, before = net.ctr, net.links()["p0"]
    ctr(*LAUNCH)
    if step.startswith("detach"):
        ctr("attach-device", "c1", "n", *GIVEN)
    words = ("attach-device", "c1", "n", *GIVEN) if step.startswith("attach") else ("detach-device", "c1", "n")
    assert ctr(*words, code=None, env={"CTRMGR_CRASH_AT": step}).code == -signal.SIGKILL
    has = "p0" in inside(ctr, "ip link")
    found = json.loads(ctr("info", "c1", "--format", "json").stdout)
    assert has == bool(found["attached"]) == ("p0" not in net.links())
    ctr("config", "set", "c1", "user.x=1")
    assert ("\nnetdev\tn\t" in (ctr.folder / "state/instances/c1/plan").read_text()) == has
    ctr("stop", "--force", "c1")
    assert net.links()["p0"] == before


def test_a_monitor_that_is_killed(net: Net) -> None:
    """The kernel takes the namespace down: hardware comes back by itself, a pair goes. Nothing else is left."""
    ctr = net.ctr
    ctr(*LAUNCH)
    ctr("attach-device", "c1", "n", *GIVEN, "required=false")
    os.kill(pids(ctr)["monitor"], signal.SIGKILL)
    wait_for(lambda: set(net.links()) == {"lo"})
    ctr("start", "c1")
    assert not (ctr.folder / "run/c1/links").exists()
    assert "p0" not in inside(ctr, "ip link")
