# SPDX-License-Identifier: GPL-3.0-or-later
"""CPUs and memory by NUMA node: named, in turn, and next to the devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrmgr.backend import placement
from ctrmgr.devices import rows as parts
from ctrmgr.errors import HostError, SpecError
from ctrmgr.host import sysfs
from ctrmgr.host.machine import Host
from ctrmgr.images.store import Image
from ctrmgr.plan import compile, instance, limits, numa
from ctrmgr.spec import device, keys

IMAGE = Image("ab" * 32, "/images/x", {"init": "/sbin/init", "halt-signal": "37"})
FILES = {
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}
KEY = "limits.cpu.nodes"


@pytest.fixture
def two(machine: Callable[..., str]) -> str:
    """Two GPUs, each at a node of its own, and an RDMA device and a disk at those."""
    root = machine("nvidia", "mlx5", "disks")
    for path, text in FILES.items():
        file = Path(root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def planned(
    root: str, number: int = 0, devices: dict[str, dict[str, str]] | None = None, **config: str
) -> dict[str, str]:
    """The cpuset of the instance that is the `number`th to get ids."""
    host = Host(root, privileged=True)
    given = {name: device.check(name, keys) for name, keys in (devices or {}).items()}
    rows = compile.build(IMAGE, {key.replace("__", "."): value for key, value in config.items()}, given, host)
    claims = instance.Claims(100000 * 65536 + number * 65536, 65536, [])
    found = instance.fill(rows, name="c1", claims=claims)
    return {row[2]: row[3] for row in found if row[0] == "cgroup-file"}


def test_balanced_takes_turns(two: str) -> None:
    found = [planned(two, number, limits__cpu__nodes="balanced") for number in range(4)]
    first, second = {"cpuset.mems": "0", "cpuset.cpus": "0,1,2,3"}, {"cpuset.mems": "1", "cpuset.cpus": "4,5,6,7"}
    assert found == [first, second, first, second]


def test_balanced_spreads_the_cpus_of_each_node(two: str) -> None:
    found = [planned(two, number, limits__cpu__nodes="balanced", limits__cpu="2")["cpuset.cpus"] for number in range(6)]
    assert found == ["0,1", "4,5", "2,3", "6,7", "0,1", "4,5"]


def test_a_node_that_is_too_small_is_passed_over(two: str) -> None:
    Path(two, "sys/devices/system/node/node1/cpulist").write_text("4-5\n")
    assert {planned(two, n, limits__cpu__nodes="balanced", limits__cpu="3")["cpuset.mems"] for n in range(4)} == {"0"}
    with pytest.raises(HostError, match="no NUMA node has 5 CPUs"):
        planned(two, limits__cpu__nodes="balanced", limits__cpu="5")
    with pytest.raises(SpecError, match="to be chosen"):
        planned(two, limits__cpu__nodes="balanced", limits__cpu="0-1")


GPU = {"type": "gpu", "driver.capabilities": "none"}


@pytest.mark.parametrize(
    ("devices", "nodes", "cpus"),
    [
        ({"g": {**GPU, "pci": "0000:18:00.0"}}, "0", "0,1,2,3"),
        ({"g": {**GPU, "id": "0000:9a:00.0/gi1/ci0"}}, "1", "4,5,6,7"),
        ({"h": {"type": "infiniband", "parent": "mlx5_0"}}, "0", "0,1,2,3"),
        ({"d": {"type": "unix-block", "source": "/dev/nvme0n1"}}, "1", "4,5,6,7"),
        (
            {"g": {**GPU, "pci": "0000:18:00.0"}, "d": {"type": "unix-block", "source": "/dev/nvme0n1"}},
            "0,1",
            "0,1,2,3,4,5,6,7",
        ),
    ],
    ids=str,
)
def test_next_to_the_devices(two: str, devices: dict[str, dict[str, str]], nodes: str, cpus: str) -> None:
    assert planned(two, devices=devices, limits__cpu__nodes="devices") == {"cpuset.mems": nodes, "cpuset.cpus": cpus}


@pytest.mark.parametrize(
    ("device", "address"),
    [
        ({**GPU, "pci": "0000:18:00.0"}, "0000:18:00.0"),
        ({"type": "infiniband", "parent": "mlx5_0"}, "0000:19:00.0"),
        ({"type": "unix-block", "source": "/dev/nvme0n1"}, ""),
    ],
    ids=["gpu", "infiniband", "disk"],
)
def test_a_device_that_is_elsewhere_has_it_planned_again(two: str, device: dict[str, str], address: str) -> None:
    """A start compares what the plan's `identity` rows say with what is there."""
    before = planned(two, devices={"d": device}, limits__cpu__nodes="devices")
    stays = identities(two, device, limits__cpu__nodes="balanced")
    watched = identities(two, device, limits__cpu__nodes="devices")
    assert set(stays) < set(watched)
    same = [file for file, text in watched.items() if sysfs.known(two + file) == text]
    assert same == list(watched)
    node = next(file for file in watched if file.endswith("/numa_node") and address in file)
    other = str(1 - int(watched[node]))
    Path(two + node).write_text(f"{other}\n")
    assert [file for file, text in watched.items() if sysfs.known(two + file) != text] == [node]
    after = planned(two, devices={"d": device}, limits__cpu__nodes="devices")
    assert (before["cpuset.mems"], after["cpuset.mems"]) == (watched[node], other)


def test_a_plan_follows(two: str) -> None:
    """What attach and detach make of it: the row says how many CPUs, the devices where."""
    host = Host(two, privileged=True)
    first, second = ({"type": "unix-block", "source": "/dev/nvme0n1"}, {**GPU, "pci": "0000:18:00.0"})
    rows = compile.build(IMAGE, {"limits.cpu": "2", KEY: "devices"}, {"d": device.check("d", first)}, host)
    plan = instance.fill(rows, name="c1", claims=instance.Claims(0, 65536, []))
    assert [numa.FOLLOWS, "2"] in plan
    more = [*plan, *parts.rows("g", device.check("g", second), two)]

    def place(of: list[list[str]]) -> list[str]:
        return [row[3] for row in sorted(of, reverse=True) if numa.is_place(row)]

    moved = placement.followed("c1", more, host)
    assert (place(plan), place(moved)) == (["1", "4,5"], ["0,1", "0,1"])
    assert place(placement.followed("c1", parts.without(moved, "d"), host)) == ["0", "0,1"]
    gone, why = parts.without(parts.without(moved, "d"), "g"), "none of its devices is at a NUMA node"
    with pytest.raises(HostError, match=why):
        placement.followed("c1", gone, host)
    stays = compile.build(IMAGE, {"limits.cpu": "2", KEY: "devices"}, {}, host, old=parts.without(moved, "d"))
    assert [row[2] for row in stays if row[1:2] == ["cpuset.mems"] or row[2:3] == ["cpuset.mems"]] == ["cpuset.mems"]
    live = [*moved, ["lease", "late", "pci:0000:9a:00.0", "shared"]]
    away = placement.followed("c1", parts.without(moved, "d"), host, [row for row in live if row[1:2] != ["d"]])
    assert (place(away), away[-1]) == (["0,1", "0,1"], placement.AGAIN)
    assert placement.AGAIN not in placement.followed("c1", away, host, away)
    disk = next(row[3] for row in plan if row[0] == "identity" and row[2].endswith("/nvme0n1/dev"))
    folder = Path(two, "sys/dev/block")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / disk).unlink(missing_ok=True)
    (folder / disk).symlink_to(Path(two, "sys/block/nvme0n1").resolve())
    assert numa.nodes([["lease", "d", f"block:{disk}", "shared"]], host) == {1}


def test_a_disk_in_another_slot_has_it_planned_again(two: str) -> None:
    watched = identities(two, {"type": "unix-block", "source": "/dev/nvme0n1"}, limits__cpu__nodes="devices")
    (place,) = (file for file in watched if file.endswith("/nvme0n1/dev") and file.startswith("/sys/devices/"))
    disk = Path(two + place).parent
    disk.rename(disk.with_name("aside"))
    assert sysfs.known(two + place) != watched[place]


def identities(root: str, given: dict[str, str], **config: str) -> dict[str, str]:
    whole = {key.replace("__", "."): value for key, value in config.items()}
    rows = compile.build(IMAGE, whole, {"d": device.check("d", given)}, Host(root, privileged=True))
    return {row[2]: row[3] for row in rows if row[0] == "identity"}


def test_devices_that_do_not_say_where_they_are(two: str) -> None:
    fuse = {"f": {"type": "unix-char", "source": "/dev/fuse"}}
    for given in ({}, fuse):
        with pytest.raises(HostError, match="none of its devices"):
            planned(two, devices=given, limits__cpu__nodes="devices")
    chosen = {"a": {"type": "any", "function": "gpu.compute"}}
    assert planned(two, devices=chosen, limits__cpu__nodes="devices")["cpuset.mems"] == "0,1", "until it starts"
    Path(two, "sys/devices/system/node/online").write_text("0\n")
    assert planned(two, devices=fuse, limits__cpu__nodes="devices")["cpuset.mems"] == "0"


def test_what_can_be_said() -> None:
    for value in ("balanced", "devices", "0", "0-1"):
        assert keys.check(KEY, value) == value
    for wrong in ("near", "0-", "balanced,0"):
        with pytest.raises(SpecError, match="nor `balanced` or `devices`"):
            keys.check(KEY, wrong)


def test_both_keys_of_one_node(two: str) -> None:
    rows = limits.rows({KEY: "balanced", "limits.cpu": "1"}, Host(two, privileged=True))
    assert sorted(row[1] for row in rows) == ["cpuset.cpus", "cpuset.mems"]
