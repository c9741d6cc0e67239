# SPDX-License-Identifier: GPL-3.0-or-later
"""The managed bridge and instances' links, all inside a network namespace that stands for the host's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

from .double import SOURCES, build

UP = ("up", "ctrbr0", "10.77.0.1/16", "fd77::1/64")


class Namespace:
    """A process with a network namespace of its own; the first one plays the host."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.process.pid}/ns/net") == own:
            time.sleep(0.005)
        self.pid = self.process.pid

    def run(self, *words: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "-t", str(self.pid), "--net", "--"]
        return subprocess.run([*enter, *words], capture_output=True, text=True, timeout=30, **more)  # type: ignore[call-overload,no-any-return]

    def ok(self, *words: str | Path) -> str:
        result = self.run(*words)
        assert result.returncode == 0, result
        return result.stdout

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bin") / "ctrmgr-net", ["net.c", "netlink.c", "shape.c"])


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = ["../tests/rootful/net_driver.c", "priv_net.c", "netlink.c"]
    return build(tmp_path_factory.mktemp("bin") / "net-driver", sources, f"-I{SOURCES}")


@pytest.fixture
def host() -> Iterator[Namespace]:
    namespace = Namespace()
    yield namespace
    namespace.close()


@pytest.fixture
def instances() -> Iterator[list[Namespace]]:
    namespaces = [Namespace(), Namespace()]
    yield namespaces
    for namespace in namespaces:
        namespace.close()


def connect(host: Namespace, driver: Path, instance: Namespace, number: int) -> str:
    last = str(number + 2)
    v4 = ("4", f"10.77.0.{last}", "16", "10.77.0.1")
    v6 = ("6", f"fd77::{last}", "64", "fd77::1")
    return host.ok(driver, str(instance.pid), "ctrbr0", f"ctr{number}", "eth0", *v4, *v6)


def test_bridge(host: Namespace, program: Path) -> None:
    assert host.run(program, "status", "ctrbr0").returncode == 3
    host.ok(program, *UP, "--nat")
    assert host.ok(program, "status", "ctrbr0") == "bridge\tup\nnat\t1\n"
    addresses = host.ok("ip", "-brief", "address", "show", "ctrbr0")
    assert "10.77.0.1/16" in addresses
    assert "fd77::1/64" in addresses
    rules = host.ok("nft", "list", "ruleset")
    assert 'ip saddr 10.77.0.0/16 oifname != "ctrbr0" masquerade' in rules
    assert 'ip6 saddr fd77::/64 oifname != "ctrbr0" masquerade' in rules
    assert 'iifname "ctrbr0" accept' in rules
    assert host.ok("cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding") == "1\n1\n"
    host.ok(program, "down", "ctrbr0")
    assert host.ok("nft", "list", "ruleset") == ""
    assert "ctrbr0" not in host.ok("ip", "-brief", "link")
    host.ok(program, "down", "ctrbr0")


def test_again_and_at_once(host: Namespace, program: Path) -> None:
    """Any number of times, any number at once: one bridge, one set of rules, the same MAC."""
    enter = ["nsenter", "-t", str(host.pid), "--net", "--", str(program), *UP, "--nat"]
    crowd = [subprocess.Popen(enter) for _ in range(6)]
    assert [process.wait(20) for process in crowd] == [0] * 6
    before = host.ok("ip", "link", "show", "ctrbr0")
    host.ok(program, *UP, "--nat")
    assert host.ok("ip", "link", "show", "ctrbr0") == before
    assert host.ok("nft", "list", "ruleset").count("masquerade") == 2
    assert host.ok("ip", "-4", "address", "show", "ctrbr0").count("inet ") == 1
    host.ok(program, *UP)
    assert host.ok(program, "status", "ctrbr0") == "bridge\tup\nnat\t0\n"
    assert host.ok("nft", "list", "ruleset") == ""


def test_one_family(host: Namespace, program: Path) -> None:
    host.ok("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")  # a new namespace has what the host's has
    host.ok(program, "up", "ctrbr0", "none", "fd77::1/64", "--nat")
    rules = host.ok("nft", "list", "ruleset")
    assert rules.count("masquerade") == 1
    assert "ip6 saddr" in rules
    assert host.ok("cat", "/proc/sys/net/ipv4/ip_forward") == "0\n"


def test_router_advertisements_still_count(host: Namespace, program: Path) -> None:
    """Forwarding turns a host deaf to advertisements unless told: its own IPv6 route must not go."""
    assert host.ok("cat", "/proc/sys/net/ipv6/conf/lo/accept_ra") == "1\n"
    host.ok(program, *UP)
    assert host.ok("cat", "/proc/sys/net/ipv6/conf/lo/accept_ra") == "2\n"


def test_instances(host: Namespace, program: Path, driver: Path, instances: list[Namespace]) -> None:
    host.ok(program, *UP, "--nat")
    times = [int(connect(host, driver, instance, number)) for number, instance in enumerate(instances)]
    print("link + inside, µs:", times)
    for target in ("10.77.0.1", "10.77.0.3", "fd77::1", "fd77::3"):
        instances[0].ok("ping", "-c", "1", "-W", "5", target)
    link = instances[0].ok("ip", "link", "show", "eth0")
    assert re.match(r"2: eth0@.*mtu 1400 ", link)
    assert f"02:00:00:00:00:{instances[0].pid & 0xFF:02x}" in link
    # only our own address: the link-local one may still be looking for duplicates
    assert "tentative" not in instances[0].ok("ip", "-6", "address", "show", "scope", "global")
    assert "default via 10.77.0.1 dev eth0" in instances[0].ok("ip", "route")
    assert "default via fd77::1 dev eth0" in instances[0].ok("ip", "-6", "route")
    assert "state UNKNOWN" in instances[0].ok("ip", "link", "show", "lo")


def test_the_pair_leaves_with_the_namespace(host: Namespace, program: Path, driver: Path) -> None:
    host.ok(program, *UP)
    instance = Namespace()
    connect(host, driver, instance, 5)
    assert "ctr5" in host.ok("ip", "-brief", "link")
    instance.close()
    deadline = time.monotonic() + 10
    while "ctr5" in host.ok("ip", "-brief", "link"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_link_refusals(host: Namespace, program: Path, driver: Path, instances: list[Namespace]) -> None:
    pid = str(instances[0].pid)

    def refused(*words: str) -> str:
        result = host.run(driver, pid, *words)
        assert result.returncode == 1
        return result.stdout.strip()

    assert refused("ctrbr0", "a", "eth0") == "find the bridge: No such device"
    assert refused("lo", "a", "eth0").startswith("find the bridge: ")
    host.ok(program, *UP)
    for name in ("", "with/slash", "..", "sixteen-letters!"):
        assert refused("ctrbr0", name, "eth0") == "check the link's names: Invalid argument"
    connect(host, driver, instances[0], 0)
    pid = str(instances[1].pid)
    assert refused("ctrbr0", "ctr0", "eth0") == "make the link: File exists"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["up", "a b", "10.0.0.1/8", "none"], 2, "`a b`"),
        (["up", "br", "10.0.0.1", "none"], 2, "`10.0.0.1`"),
        (["up", "br", "10.0.0.1/33", "none"], 2, "`10.0.0.1/33`"),
        (["up", "br", "fd00::1/64", "none"], 2, "`fd00::1/64`"),
        (["up", "br", "none", "10.0.0.1/8"], 2, "`10.0.0.1/8`"),
        (["up", "lo", "none", "none"], 4, "`lo` exists and is not a bridge"),
        (["down", "lo"], 4, "`lo` exists and is not a bridge"),
        (["sideways", "br"], 2, "usage:"),
        ([], 2, "usage:"),
    ],
)
def test_bad_input(host: Namespace, program: Path, words: list[str], code: int, reason: str) -> None:
    result = host.run(program, *words)
    assert result.returncode == code, result
    assert reason in result.stderr


def test_no_nft(host: Namespace, program: Path, tmp_path: Path) -> None:
    """It says which program is missing, and the bridge without NAT works without it."""
    result = host.run("env", f"PATH={tmp_path}", program, *UP, "--nat")
    assert result.returncode == 5
    assert (
        result.stderr == "error: `ctrbr0` needs `nft`, which is not installed\n\nhint: install the package nftables\n"
    )
    assert host.run("env", f"PATH={tmp_path}", program, *UP).returncode == 0


def test_routes_of_policy_tables_are_seen() -> None:
    """WireGuard and others put theirs into tables of their own."""
    script = """
        ip link add routed0 type bridge && ip link set routed0 up
        ip route add 10.113.0.0/16 dev routed0 table 51820 && ip route add 10.114.8.0/22 dev routed0
        "$0" -c 'from ctrmgr.host import net, routes; print(net.free_subnet(routes.used()))'
    """
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", script, sys.executable], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("10.114.0.0\n", "")
