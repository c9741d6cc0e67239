# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and devices changed while an instance runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import ctrmgr
from ctrmgr.errors import HostError
from ctrmgr.host.machine import Host
from tests.conftest import Ctr

OFFLINE = ("-p", "no-network")


LIMITED = ("-c", "limits.processes=1000", "-c", "limits.memory=500MiB")


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *LIMITED)
    return ctr


def limits(ctr: Ctr) -> str:
    found = json.loads(ctr("info", "c1", "--format", "json").stdout).get("limits", [])
    return "\n".join(f"{limit['file']} = {limit['value']} " for limit in found)


def test_live_limits_reach_the_kernel(c1: Ctr) -> None:
    c1("config", "set", "c1", "limits.processes=15", "limits.memory=48MiB")
    assert "pids.max = 15 " in limits(c1)
    assert str(48 << 20) in limits(c1)
    fork = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; wait"
    assert "fork" in c1("exec", "c1", "--", "sh", "-c", fork, code=None).stderr
    c1("config", "set", "c1", "limits.processes=100")
    assert "pids.max = 100 " in limits(c1)
    assert "fork" not in c1("exec", "c1", "--", "sh", "-c", fork.replace("sleep 5", "sleep 0.1")).stderr
    c1("config", "unset", "c1", "limits.processes", "limits.memory")
    assert "fork" not in c1("exec", "c1", "--", "sh", "-c", fork.replace("sleep 5", "sleep 0.1")).stderr
    c1("restart", "c1")
    assert str(48 << 20) not in limits(c1)


def test_a_limit_below_use_is_refused_and_nothing_has_changed(c1: Ctr, monkeypatch: pytest.MonkeyPatch) -> None:
    c1("config", "set", "c1", "limits.memory=200MiB", "limits.memory.swap=false")
    c1("exec", "c1", "--", "dd", "if=/dev/zero", "of=/dev/shm/held", "bs=1M", "count=60")
    before = (limits(c1), c1("config", "show", "c1").stdout)
    refused = c1("config", "set", "c1", "limits.processes=50", "limits.memory=20MiB", code=None)
    if refused.code == 0:  # cgroup2 takes it and kills: then at least it holds
        assert str(20 << 20) in limits(c1)
        return
    assert refused.code == 5
    assert "`c1`: the kernel refuses" in refused.stderr
    assert (limits(c1), c1("config", "show", "c1").stdout) == before
    for key, value in c1.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)
    with pytest.raises(HostError):
        ctrmgr.Instance("c1").configure({"limits.memory": "20MiB"})
    assert not ctrmgr.Instance("c1").configure({"limits.memory": "100MiB", "limits.memory.swap": None})
    assert str(100 << 20) in limits(c1)


def test_what_is_not_live_waits_for_a_start(c1: Ctr) -> None:
    said = c1("config", "set", "c1", "environment.COLOUR=blue", "limits.processes=77").stderr
    assert "next start" in said
    assert "pids.max = 77 " in limits(c1)
    said = c1("config", "set", "c1", "limits.processes=78").stderr
    assert said == ""
    c1("restart", "c1")
    assert "pids.max = 78 " in limits(c1)


def test_a_reboot_from_inside_finds_the_devices_as_they_are_now(ctr: Ctr) -> None:
    """The monitor starts init again by itself; it must not go back to the devices of its own start."""
    fuse = ("-d", "fuse,type=unix-char,source=/dev/fuse")
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *fuse)
    ctr("detach-device", "c1", "fuse")
    ctr("attach-device", "c1", "/dev/net/tun")
    assert ctr("config", "set", "c1", "user.note=b").stderr == ""  # nothing of it waits for a start
    first = json.loads(ctr("info", "c1", "--format", "json").stdout)
    ctr("exec", "c1", "reboot", code=None)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = json.loads(ctr("info", "c1", "--format", "json", code=None).stdout or "{}")
        if now.get("pid", first["pid"]) != first["pid"]:
            break
        time.sleep(0.05)
    assert now["pid"] != first["pid"]
    assert now["monitor-pid"] == first["monitor-pid"]
    assert ctr("exec", "c1", "test", "-c", "/dev/net/tun").code == 0
    assert ctr("exec", "c1", "test", "-e", "/dev/fuse", code=1).code == 1
    assert "fuse" not in json.dumps(now["devices"])
    # while it begins anew it hears nobody, and is waited for
    ctr("exec", "c1", "reboot", code=None)
    ctr("stop", "c1")
    assert ",STOPPED," in ctr("list", "-fcsv").stdout


def test_a_first_limit(ctr: Ctr) -> None:
    """It holds at once, of all processes that there are: on v1 they join the hierarchy. Memory does not move, and that is said."""
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    more = "for i in 1 2 3; do sleep 600 >/dev/null 2>&1 & done"
    ctr("exec", "c1", "--", "sh", "-c", more)
    for value in ("30", "6"):
        assert ctr("config", "set", "c1", f"limits.processes={value}").stderr == ""
        assert f"pids.max = {value} " in limits(ctr)
    host = Host().cgroups
    folder = Path(host.v1.get("pids") or host.unified, ctr.env["CTRMGR_CGROUP_PARENT"])
    assert int((folder / "c1/pids.current").read_text()) == 4  # its init, and what ran before
    assert "fork" in ctr("exec", "c1", "--", "sh", "-c", more, code=None).stderr
    said = ctr("config", "set", "c1", "limits.memory=64MiB").stderr
    why = "waits for the next start: it has no cgroup in the v1 hierarchy `memory`, and does not get one while it runs: memory that is in use"
    assert (why in said) == ("`c1` is running: this applies at its next start" in said) == ("memory" in host.v1)
    ctr("restart", "c1")
    assert "pids.max = 6 " in limits(ctr) and f" = {64 << 20} " in limits(ctr)


def test_kernel_parameters_change_live_or_not_at_all(c1: Ctr) -> None:
    """Those of its network and IPC namespaces; the host's stay as they are."""
    ttl, shm, sem = "net.ipv4.ip_default_ttl", "kernel.shmmni", "kernel.sem"
    files = [f"/proc/sys/{key.replace('.', '/')}" for key in (ttl, shm, sem)]
    hosts = [Path(file).read_text() for file in files]

    def inside() -> list[str]:
        return c1("exec", "c1", "--", "cat", *files).stdout.splitlines()

    def keys(**values: str) -> list[str]:
        return [f"linux.sysctl.{key}={values[name]}" for name, key in (("ttl", ttl), ("shm", shm)) if name in values]

    first = inside()
    said = c1(
        "config", "set", "c1", *keys(ttl="33", shm="77"), "linux.sysctl.kernel.sem=10 20 30 40", "limits.processes=90"
    )
    assert said.stderr == ""
    assert [line.split() for line in inside()] == [["33"], ["77"], ["10", "20", "30", "40"]]
    before = c1("config", "show", "c1").stdout
    refused = c1(
        "config", "set", "c1", *keys(shm="78"), "linux.sysctl.net.ipv4.ip_forward=much", "limits.processes=91", code=2
    )
    assert "net/ipv4/ip_forward" in refused.stderr
    assert (inside()[1], c1("config", "show", "c1").stdout) == ("77", before)
    assert "pids.max = 90 " in limits(c1)
    c1("freeze", "c1")
    assert c1("config", "set", "c1", *keys(ttl="34")).stderr == ""
    c1("unfreeze", "c1")
    assert inside()[0] == "34"
    # what it was before anybody set it only a new one knows
    assert "next start" in c1("config", "unset", "c1", f"linux.sysctl.{ttl}").stderr
    c1("restart", "c1")
    assert [inside()[0], inside()[1]] == [first[0], "77"]
    assert [Path(file).read_text() for file in files] == hosts


def test_resource_limits_reach_what_runs_and_what_comes(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, "-c", "limits.kernel.nofile=100:200")

    def begun(before: str) -> str:
        return ctr("exec", "c1", "--", "sh", "-c", f"{before} sleep 999 >/dev/null 2>&1 & echo $!").stdout.strip()

    usual, own = begun(""), begun("ulimit -Sn 50;")

    def inside(process: str) -> list[str]:
        text = ctr("exec", "c1", "--", "sh", "-c", f"cat /proc/{process}/limits").stdout
        return next(line.split()[3:5] for line in text.splitlines() if line.startswith("Max open files"))

    assert [inside(pid) for pid in ("1", usual, own)] == [["100", "200"], ["100", "200"], ["50", "200"]]
    said = ctr("config", "set", "c1", "limits.kernel.nofile=80:150", "limits.kernel.core=0")
    assert said.stderr == ""
    assert [inside(process) for process in ("1", usual, "self")] == [["80", "150"]] * 3
    assert inside(own) == ["50", "200"], "it has limited itself"
    before = ctr("config", "show", "c1").stdout
    wrong = ctr("config", "set", "c1", "limits.kernel.nofile=70:140", "linux.sysctl.net.ipv4.ip_forward=much", code=2)
    assert "ip_forward" in wrong.stderr
    assert (inside("1"), inside("self"), ctr("config", "show", "c1").stdout) == (["80", "150"], ["80", "150"], before)
    raised = ctr("config", "set", "c1", "limits.kernel.nofile=90:160")
    assert ("next start" in raised.stderr) != (inside("1") == ["90", "160"]), "only who may raises them"
    ctr("restart", "c1")
    assert [inside("1"), inside("self")] == [["90", "160"]] * 2


def test_the_oom_priority_reaches_what_runs_and_what_comes(ctr: Ctr) -> None:
    key = "limits.memory.oom_priority"
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, "-c", f"{key}=300")

    def begun(before: str) -> str:
        return ctr("exec", "c1", "--", "sh", "-c", f"{before} sleep 999 >/dev/null 2>&1 & echo $!").stdout.strip()

    usual, own = begun(""), begun("echo 700 > /proc/self/oom_score_adj;")

    def inside() -> list[str]:
        files = [f"/proc/{process}/oom_score_adj" for process in ("1", usual, "self", own)]
        return ctr("exec", "c1", "--", "cat", *files).stdout.split()

    def read() -> dict[str, object]:
        limits: list[dict[str, object]] = json.loads(ctr("info", "c1", "--format", "json").stdout)["limits"]
        return next(
            (
                {word: limit[word] for word in ("value", "mechanism", "state")}
                for limit in limits
                if limit["key"] == key
            ),
            {},
        )

    assert inside() == ["300", "300", "300", "700"]
    assert read() == {"value": "300", "mechanism": "oom_score_adj", "state": "enforced"}
    assert ctr("config", "set", "c1", f"{key}=200").stderr == ""
    assert inside() == ["200", "200", "200", "700"], "one has chosen for itself"
    wrong = ctr("config", "set", "c1", f"{key}=250", "linux.sysctl.net.ipv4.ip_forward=much", code=2)
    assert "ip_forward" in wrong.stderr and inside()[0] == "200"
    ctr("exec", "c1", "--", "sh", "-c", "echo 999 > /proc/1/oom_score_adj")
    assert read() == {"value": "999", "mechanism": "oom_score_adj", "state": "not in force"}
    ctr("restart", "c1")
    usual = own = "1"
    assert inside() == ["200"] * 4
    assert ctr("config", "unset", "c1", key).stderr == ""
    assert inside() == [Path("/proc/self/oom_score_adj").read_text().strip()] * 4 and read() == {}
    for value in ("-1001", "1001", "5.0", "first"):
        assert "is not a number from -1000 to 1000" in ctr("config", "set", "c1", f"{key}={value}", code=2).stderr
    if not Host().may_raise_limits:
        assert "CAP_SYS_RESOURCE" in ctr("config", "set", "c1", f"{key}=-1", code=5).stderr
        said = ctr("config", "set", "c1", f"{key}=-1", "limits.enforcement=best-effort").stderr
        assert f"`{key}` cannot be set to -1 here" in said and read()["state"] == "unsupported"
