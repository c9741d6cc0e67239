# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys that loosen or tighten what confines an instance, through the command line and the real programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Ctr

OFFLINE = ("-p", "no-network")


def launch(ctr: Ctr, *pairs: str) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *(word for pair in pairs for word in ("-c", pair)))


def sh(ctr: Ctr, script: str) -> str:
    return ctr("exec", "c1", "--", "sh", "-c", script + " 2>&1", code=None).stdout


def status(ctr: Ctr, key: str, pid: str = "1") -> str:
    found = re.search(rf"^{key}:\s*(.*)$", sh(ctr, f"cat /proc/{pid}/status"), re.MULTILINE)
    assert found
    return found[1]


def test_more_system_calls_denied(ctr: Ctr) -> None:
    launch(ctr, "security.syscalls.deny=mkdir errno 1\nmkdirat errno 1")
    assert "Operation not permitted" in sh(ctr, "mkdir /tmp/x")
    assert sh(ctr, "touch /tmp/x && echo ok") == "ok\n"


def test_only_some_system_calls_allowed(ctr: Ctr) -> None:
    refused = ctr("launch", "builtin:busybox", "c1", *OFFLINE, "-c", "security.syscalls.allow=no_such_call", code=None)
    assert refused.code == 2
    assert "no_such_call" in refused.stderr
    assert "c1" not in ctr("list").stdout


def test_without_the_default_policy(ctr: Ctr) -> None:
    launch(ctr, "security.syscalls.deny_default=false", "security.syscalls.deny_compat=true")
    assert status(ctr, "Seccomp") == "2"  # what deny_compat asks for


def test_no_new_privileges(ctr: Ctr) -> None:
    launch(ctr, "security.no_new_privs=true")
    assert status(ctr, "NoNewPrivs") == "1"
    assert status(ctr, "NoNewPrivs", "self") == "1"


@pytest.mark.parametrize("pid", ["1", "self"])
def test_capabilities(ctr: Ctr, pid: str) -> None:
    launch(ctr, "security.capabilities.drop=net_raw,sys_chroot")
    kept = int(status(ctr, "CapBnd", pid), 16)
    assert not kept & (1 << 13 | 1 << 18)
    assert kept & 1 << 7  # setuid
    assert "not permitted" in sh(ctr, "chroot / true")


def test_resource_limits(ctr: Ctr) -> None:
    launch(ctr, "limits.kernel.nofile=100:200", "limits.kernel.core=0")
    assert sh(ctr, "ulimit -n; ulimit -Hn; ulimit -c") == "100\n200\n0\n"
    assert re.search(r"open files +100 +200", sh(ctr, "cat /proc/1/limits"))


def test_environment(ctr: Ctr) -> None:
    launch(ctr, "environment.COLOUR=light blue")
    assert sh(ctr, "echo $COLOUR; tr '\\0' '\\n' </proc/1/environ").count("light blue") == 2


def test_ids_by_wish(ctr: Ctr) -> None:
    launch(ctr, "security.idmap.size=100000")
    inside, outside, count = sh(ctr, "cat /proc/self/uid_map").split()
    assert (inside, count) == ("0", "100000")
    taken = int(outside) + 5
    refused = ctr("launch", "builtin:busybox", "c2", *OFFLINE, "-c", f"security.idmap.base={taken}", code=4)
    assert f"{taken}" in refused.stderr
    ctr("launch", "builtin:busybox", "c3", *OFFLINE, "-c", "security.idmap.isolated=false")
    ctr("launch", "builtin:busybox", "c4", *OFFLINE, "-c", "security.idmap.isolated=false")
    shared = [ctr("exec", name, "cat", "/proc/self/uid_map").stdout for name in ("c3", "c4")]
    assert shared[0] == shared[1] != sh(ctr, "cat /proc/self/uid_map")


def test_nesting(ctr: Ctr) -> None:
    """A container inside mounts a /proc of its own, which the kernel refuses while parts of /proc are masked."""
    script = "unshare -Urmpf sh -c 'mount -t proc proc /proc && ls /proc/1/exe'"
    launch(ctr)
    assert "permission denied" in sh(ctr, script)
    ctr("config", "set", "c1", "security.nesting=true")
    ctr("restart", "c1")
    assert sh(ctr, script) == "/proc/1/exe\n"


def test_kernel_parameters_of_its_own(ctr: Ctr) -> None:
    host = Path("/proc/sys/kernel/shmmni").read_text()
    launch(
        ctr,
        "linux.sysctl.kernel.shmmni=77",
        "linux.sysctl.net.ipv4.ip_default_ttl=33",
        "linux.sysctl.net/ipv4/conf/lo/rp_filter=2",
    )
    for path, value in (
        ("kernel/shmmni", "77"),
        ("net/ipv4/ip_default_ttl", "33"),
        ("net/ipv4/conf/lo/rp_filter", "2"),
    ):
        assert sh(ctr, f"cat /proc/sys/{path}") == f"{value}\n"
    assert Path("/proc/sys/kernel/shmmni").read_text() == host != "77\n"
    ctr("restart", "c1")
    assert sh(ctr, "cat /proc/sys/kernel/shmmni") == "77\n"


@pytest.mark.parametrize(
    ("key", "value", "code", "said"),
    [
        ("vm.swappiness", "1", 5, "one for the whole machine"),
        ("kernel.core_pattern", "x", 5, "one for the whole machine"),
        ("user.max_user_namespaces", "1", 5, "one for the whole machine"),
        ("net.ipv4.no_such_thing", "1", 2, "no such parameter"),
        ("net.ipv4.conf.nolink.rp_filter", "1", 2, "conf/nolink/rp_filter"),
        ("net.ipv4.ip_default_ttl", "many", 2, "ip_default_ttl` to `many`"),
        ("net..x", "1", 2, "not the name"),
    ],
)
def test_kernel_parameters_that_are_refused(ctr: Ctr, key: str, value: str, code: int, said: str) -> None:
    words = ("-p", "no-network", "-c", f"linux.sysctl.{key}={value}")
    assert said in ctr("launch", "builtin:busybox", "c1", *words, code=code).stderr
    assert ctr("list", "--format", "csv").stdout.count("\n") == 1
