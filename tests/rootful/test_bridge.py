# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances on the managed bridge, in a network namespace of the test's own."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ctr, same, settle


class Place:
    """A network namespace in which `ctrmgr` runs, as a host would be: with an uplink to a network behind it."""

    def __init__(self, ctr: Ctr) -> None:
        self.ctr = ctr
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(2)]
        for holder in self.holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
        self.host, self.outside = ([*self.enter(holder.pid)] for holder in self.holders)
        ctr.argv = [*self.host, *ctr.argv]
        self.on(self.host, "ip link set lo up")
        self.on(self.host, f"ip link add up0 type veth peer name up0 netns {self.holders[1].pid}")
        self.on(self.host, "ip address add 192.0.2.1/24 dev up0 && ip link set up0 up")
        self.on(self.host, "ip -6 address add 2001:db8::1/64 dev up0 nodad")
        self.on(self.outside, "ip address add 192.0.2.2/24 dev up0 && ip link set up0 up")
        self.on(self.outside, "ip -6 address add 2001:db8::2/64 dev up0 nodad")

    @staticmethod
    def enter(pid: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{pid}/ns/net"]

    @staticmethod
    def on(where: list[str], script: str) -> str:
        return subprocess.run([*where, "sh", "-ec", script], check=True, capture_output=True, text=True).stdout

    def end(self) -> None:
        self.ctr.clean_up()
        for holder in self.holders:
            holder.kill()
            holder.wait()


@pytest.fixture
def place(ctr: Ctr) -> Iterator[Place]:
    found = Place(ctr)
    yield found
    found.end()


def info(ctr: Ctr, name: str) -> list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    return [ipaddress.ip_interface(text) for text in json.loads(ctr("info", name, "-fjson").stdout)["addresses"]]


def ping(ctr: Ctr, name: str, address: object) -> bool:
    deadline = time.monotonic() + 5
    while ctr("exec", name, "ping", "-c1", "-W1", str(address), code=None).code != 0:
        if time.monotonic() > deadline:
            return False
    return True


def test_addresses_routes_and_nat(place: Place) -> None:
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1")
    ctr("launch", "builtin:busybox", "c2")
    (first4, first6), (second4, second6) = info(ctr, "c1"), info(ctr, "c2")
    assert first4.network == second4.network != first4
    inside = ctr("exec", "c1", "ip", "address", "show", "dev", "eth0").stdout
    assert str(first4) in inside
    assert str(first6) in inside
    assert str(first4.ip) in ctr("list").stdout
    assert ping(ctr, "c1", second4.ip)
    assert ping(ctr, "c1", second6.ip)
    assert ping(ctr, "c1", "192.0.2.2")  # which has no route back: NAT
    assert ping(ctr, "c1", "2001:db8::2")
    assert f"{first4.ip}\tc1" in ctr("exec", "c1", "cat", "/etc/hosts").stdout
    mac = ctr("exec", "c1", "cat", "/sys/class/net/eth0/address").stdout
    ctr("restart", "c1")
    assert info(ctr, "c1") == [first4, first6]
    assert ctr("exec", "c1", "cat", "/sys/class/net/eth0/address").stdout == mac
    tables = place.on(place.host, "nft list tables")
    assert tables == "table inet ctrmgr-ctrbr0\n"
    ctr("delete", "--force", "c1", "c2")
    assert "ctr" not in place.on(place.host, "ls /sys/class/net; ip -o link").replace("ctrbr0", "")


def test_the_bridge_went_away(place: Place) -> None:
    """After a reboot, or somebody's `ip link del`, it is made again with the same addresses."""
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1")
    before = info(ctr, "c1")
    ctr("stop", "c1")
    place.on(place.host, "ip link del ctrbr0 && nft flush ruleset")
    ctr("start", "c1")
    assert info(ctr, "c1") == before
    assert ping(ctr, "c1", "192.0.2.2")


def test_wished_addresses(place: Place) -> None:
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1")
    network = info(ctr, "c1")[0].network
    wished = network.network_address + 77
    eth0 = f"eth0,type=nic,network=ctrbr0,name=eth0,ipv4.address={wished}"
    ctr("launch", "builtin:busybox", "c2", "-d", eth0)
    assert info(ctr, "c2")[0].ip == wished
    refused = ctr("launch", "builtin:busybox", "c3", "-d", eth0, code=4)
    assert f"`{wished}`" in refused.stderr
    assert "c3" not in ctr("list").stdout
    outside = eth0.replace(str(wished), "198.51.100.7")
    assert "`198.51.100.7`" in ctr("launch", "builtin:busybox", "c3", "-d", outside, code=2).stderr


def test_no_network(place: Place) -> None:
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    assert ctr("exec", "c1", "ls", "/sys/class/net").stdout == "lo\n"
    assert ctr("exec", "c1", "ping", "-c1", "-W1", "127.0.0.1").code == 0


def test_host_network(place: Place) -> None:
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1", "-p", "host-network")
    links = ctr("exec", "c1", "ip", "-o", "link").stdout
    assert "up0" in links
    assert "up0\n" in ctr("exec", "c1", "ls", "/sys/class/net").stdout
    assert ctr("exec", "c1", "test", "-f", "/sys/fs/cgroup/cgroup.procs").code == 0
    assert "ro," in ctr("exec", "c1", "grep", " /sys sysfs", "/proc/mounts").stdout
    assert ctr("exec", "c1", "ip", "link", "set", "up0", "down", code=None).code != 0
    ctr("delete", "--force", "c1")


def test_nothing_is_left_on_the_host(ctr: Ctr, host_snapshot: Callable[[], dict[str, object]]) -> None:
    ctr("image", "list")
    settle()
    before = host_snapshot()
    place = Place(ctr)
    ctr("launch", "builtin:busybox", "c1")
    ctr("exec", "c1", "true")
    place.end()
    settle()
    same(before, host_snapshot())
    assert not Path("/sys/class/net/ctrbr0").exists() or "ctrbr0" in str(before["links"])
