# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware that changes its network namespace: a network adapter, and RDMA devices on a host that keeps them apart. A boot of its
own, because the host's link and its RDMA devices go; and that has two NUMA nodes, too."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ctrmgr.backend import events
from tests.lab import nodes
from tests.lab.commands import ctr, host, sh, wait_for
from tests.lab.plugs import hear

LINK, MAC = "/sys/class/net/eth0", "52:54:00:99:99:99"


def link() -> dict[str, object]:
    """What the host's adapter is now, by its own name."""
    (found,) = json.loads(host("ip", "-json", "link", "show", "eth0"))
    return {key: found[key] for key in ("ifname", "address", "mtu")} | {"up": "UP" in found["flags"]}


def kill(what: str, name: str = "c1") -> None:
    """The monitor or init of an instance."""
    rows = dict(line.split("\t")[:2] for line in Path(f"/run/ctrmgr/{name}/state").read_text().splitlines())
    os.kill(int(rows[what]), signal.SIGKILL)


def wait_until(fits: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not fits():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def an_adapter_comes_back() -> None:
    """Detached, init killed, and the monitor killed: then the kernel has brought it back under the name that it had inside."""
    host("ip", "link", "set", "eth0", "up")
    before = link()
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    given = ("type=nic", "nictype=physical", "parent=eth0", "name=net7", "mtu=1300", f"hwaddr={MAC}")
    ctr("attach-device", "c1", "n", *given)
    assert not os.path.exists(LINK)
    assert MAC in sh("ip link show net7")
    ctr("detach-device", "c1", "n")
    assert link() == before
    ctr("attach-device", "c1", "n", *given)
    kill("init")
    wait_until(lambda: os.path.exists(LINK) and link() == before, "init is dead, and eth0 is not back")
    ctr("start", "c1")
    assert MAC in sh("ip link show net7")
    kill("monitor")
    wait_until(lambda: os.path.exists("/sys/class/net/net7"), "the kernel does not bring it back")
    ctr("config", "set", "c1", "user.note=any command will do")
    assert link() == before
    ctr("delete", "--force", "c1")
    assert not list(Path("/run/ctrmgr").glob("c1/*"))


def another_adapter_takes_its_place() -> None:
    """By its name, address and MTU; not one that is up, which the host uses. Leases move, and it comes back to the host."""
    (one, two) = (str(Path(f"/sys/class/net/{name}/device").resolve().parent) for name in ("eth1", "eth2"))
    host("ip", "link", "set", "eth2", "up")
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    given = ("type=nic", "nictype=physical", "parent=eth1", "name=net7", "mtu=1300", f"hwaddr={MAC}")
    ctr("attach-device", "c1", "n", *given, "failover=same-model")
    watcher = events.Watcher(["c1"], ["device"])
    Path(one, "remove").write_text("1")
    hear(watcher, "unplugged", path="net7", number="eth1")
    assert os.path.exists("/sys/class/net/eth2")
    Path("/sys/bus/pci/rescan").write_text("1")
    hear(watcher, "plugged", path="net7", number="eth1")
    host("ip", "link", "set", "eth2", "down")
    Path(one, "remove").write_text("1")
    hear(watcher, "replaced", path="net7", number="eth2", was="eth1")
    watcher.close()
    said = sh("ip link show net7")
    assert MAC in said and "mtu 1300" in said and ",UP" in said, said
    assert [file for file in os.listdir("/run/ctrmgr/.leases") if " c1 " in file] == ["link:eth2 exclusive c1 n"]
    ctr("detach-device", "c1", "n")
    assert str(Path("/sys/class/net/eth2/device").resolve().parent) == two
    assert "mtu 1500" in host("ip", "link", "show", "eth2")
    ctr("delete", "--force", "c1")
    Path("/sys/bus/pci/rescan").write_text("1")


def rdma() -> list[str]:
    """What the host sees."""
    return os.listdir("/sys/class/infiniband")


def another_one_moves_in() -> None:
    """The device that c1 has is deleted, and the other one moves: its nodes are made again then, under the numbers that are free now."""
    host("ip", "link", "add", "lab0", "type", "dummy")
    host("ip", "link", "set", "lab0", "up")
    host("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "lab0")
    ctr("attach-device", "c1", "ib", "type=infiniband", "parent=rxe0", "failover=same-model")
    assert rdma() == ["rxe1"]
    pid = json.loads(ctr("info", "c1", "--format", "json").stdout)["pid"]
    host("nsenter", "--net", "-t", str(pid), "rdma", "link", "delete", "rxe0")
    wait_until(
        lambda: rdma() == [] and "rxe1" in sh("ls /sys/class/infiniband"), "the other one does not take its place"
    )
    sh("for i in /dev/infiniband/uverbs*; do exec 3<>$i; done")
    assert sh("ls /dev/infiniband /sys/class/infiniband_verbs").count("uverbs") == 2
    ctr("detach-device", "c1", "ib")
    assert rdma() == ["rxe1"]
    host("rdma", "link", "delete", "rxe1")
    host("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")


def rdma_devices_are_kept_apart() -> None:
    """`rdma system set netns exclusive`: one is in one place, and its node opens there only."""
    host("modprobe", "-a", "rdma_rxe")
    host("rdma", "system", "set", "netns", "exclusive")
    host("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    node = "/dev/infiniband/uverbs0"
    wait_for(node)
    for name in ("c1", "c2"):
        ctr("launch", "builtin:busybox", name, "-p", "no-network")
    ctr("attach-device", "c1", "ib", "type=infiniband", "parent=rxe0")
    assert rdma() == []
    assert sh(f"ls /sys/class/infiniband; exec 3<>{node}") == "rxe0"
    assert sh("ls /sys/class/infiniband", name="c2") == ""
    assert "no infiniband device" in ctr("attach-device", "c2", "ib", "type=infiniband", "parent=rxe0", code=3).stderr
    ctr("detach-device", "c1", "ib")
    assert rdma() == ["rxe0"]
    ctr("attach-device", "c2", "ib", "type=infiniband", "parent=rxe0")
    assert sh(f"ls /sys/class/infiniband; exec 3<>{node}; ulimit -l", name="c2").split()[0] == "rxe0"
    ctr("restart", "--force", "c2")
    assert sh(f"exec 3<>{node}; ulimit -l", name="c2") == "unlimited"
    assert rdma() == []
    kill("monitor", "c2")
    wait_until(lambda: rdma() == ["rxe0"], "the kernel does not bring it back")
    another_one_moves_in()
    said = ctr("attach-device", "c1", "ib", "type=infiniband", "parent=rxe0", "nictype=physical", code=5).stderr
    assert "made of software" in said
    for name in ("c1", "c2"):
        ctr("delete", "--force", name)


if __name__ == "__main__":
    nodes.the_cpus_and_memory_are_next_to_the_devices()
    an_adapter_comes_back()
    another_adapter_takes_its_place()
    rdma_devices_are_kept_apart()
