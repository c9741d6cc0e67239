# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on this host's own controllers: they hold, are lowered while an instance runs, and do not touch its neighbour."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.host import cgroup
from ctrmgr.host.machine import Host
from ctrmgr.spec import values
from tests.conftest import Ctr

OFFLINE = ("-p", "no-network")
HUGE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def limits(ctr: Ctr, name: str = "c1") -> dict[str, dict[str, object]]:
    """File → what `info` says about it."""
    found = json.loads(ctr("info", name, "--format", "json").stdout)["limits"]
    return {limit["file"] or limit["key"]: limit for limit in found}


def keys(words: dict[str, str]) -> list[str]:
    return [word for key, value in words.items() for word in ("-c", f"{key}={value}")]


def launch(ctr: Ctr, name: str = "c1", **config: str) -> None:
    ctr("launch", "builtin:busybox", name, *OFFLINE, *keys({key.replace("_", "."): config[key] for key in config}))


def sh(ctr: Ctr, script: str, name: str = "c1", code: int | None = 0) -> str:
    done = ctr("exec", name, "--", "sh", "-c", script, code=code)
    return done.stdout + done.stderr


BUSY = "i=0; while [ $i -lt 120000 ]; do i=$((i+1)); done"


def throttled(ctr: Ctr, name: str) -> tuple[float, float]:
    """Seconds of CPU time and of the wall clock that the same loop takes."""
    text = sh(ctr, f"time sh -c '{BUSY}'", name)
    times = {}
    for line in text.splitlines():
        word, _, value = line.partition("\t")
        if word in ("real", "user", "sys"):
            minutes, _, seconds = value.strip().rstrip("s").partition("m")
            times[word] = int(minutes) * 60 + float(seconds)
    return times["user"] + times["sys"], times["real"]


def test_cpu_quota(ctr: Ctr) -> None:
    launch(ctr, limits_cpu_allowance="50ms/100ms")
    launch(ctr, "c2")
    used, wall = throttled(ctr, "c1")
    assert wall > 1.3 * used, "two periods may follow each other without a pause"
    ctr("config", "set", "c1", "limits.cpu.allowance=20ms/100ms")
    used, wall = throttled(ctr, "c1")
    assert wall > 3.5 * used
    assert all(limit["enforced"] for limit in limits(ctr).values())
    assert throttled(ctr, "c2")[1] < wall  # at a fifth of a processor it takes at least five times as long


def test_cpus_and_nodes(ctr: Ctr) -> None:
    launch(ctr, limits_cpu="0-0", limits_cpu_nodes="0")
    assert sh(ctr, "nproc") == "1\n"
    allowed = sh(ctr, "grep allowed_list /proc/self/status").split()
    assert (allowed[1], allowed[3]) == ("0", "0")
    ctr("config", "set", "c1", f"limits.cpu={len(os.sched_getaffinity(0))}")
    assert sh(ctr, "nproc") == f"{len(os.sched_getaffinity(0))}\n"


def test_memory_is_lowered_live_and_a_neighbour_does_not_notice(ctr: Ctr) -> None:
    for name in ("c1", "c2"):
        launch(ctr, name, limits_memory="256MiB", limits_memory_swap="false")
    fill = "dd if=/dev/zero of=/dev/null bs=100M count=1"
    assert "1+0 records" in sh(ctr, fill)
    ctr("config", "set", "c1", "limits.memory=64MiB")
    sh(ctr, fill, code=137)
    assert "1+0 records" in sh(ctr, fill, "c2")
    assert {limit["value"] for limit in limits(ctr).values()} >= {str(64 << 20)}
    assert all(limit["enforced"] for limit in (*limits(ctr).values(), *limits(ctr, "c2").values()))


def test_processes_below_use(ctr: Ctr) -> None:
    launch(ctr, limits_processes="100")
    sh(ctr, "for i in $(seq 20); do sleep 60 >/dev/null 2>&1 </dev/null & done")
    said = ctr("config", "set", "c1", "limits.processes=10").stderr
    assert "`pids.max` = 10 is below what is in use now" in said and "no new ones" in said
    assert "fork" in sh(ctr, "sleep 1 & sleep 1 & wait", code=None)
    assert len(sh(ctr, "exec pidof sleep").split()) == 20


@pytest.fixture
def huge_pages() -> Iterator[int]:
    """At least 8 pages of 2 MiB that nobody uses, for as long as the test runs."""
    before = HUGE.read_text()
    HUGE.write_text(str(int(before) + 8))
    try:
        assert int(HUGE.read_text()) >= int(before) + 8, "no memory for huge pages"
        yield int(HUGE.read_text())
    finally:
        HUGE.write_text(before)


def map_huge(ctr: Ctr, name: str, mib: int) -> str:
    """Map huge pages from a process that is in the instance's cgroups, but runs the host's Python."""
    pid = json.loads(ctr("info", name, "--format", "json").stdout)["pid"]
    folder = next(
        line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line[:3] == "0::"
    )
    mount = next(
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    )
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Path(f"{mount}{folder}/cgroup.procs").write_text(str(os.getpid()))
            try:
                area = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
                area[0] = 1
                os.write(writer, b"mapped")
            except OSError as error:
                os.write(writer, str(error.errno).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


def test_huge_pages(ctr: Ctr, huge_pages: int) -> None:
    for name in ("c1", "c2"):
        ctr("launch", "builtin:busybox", name, *OFFLINE, "-c", "limits.hugepages.2MB=8MiB")
    assert map_huge(ctr, "c1", 8) == "mapped"
    ctr("config", "set", "c1", "limits.hugepages.2MB=4MiB")
    assert map_huge(ctr, "c1", 8) != "mapped"
    assert map_huge(ctr, "c1", 4) == "mapped"
    assert map_huge(ctr, "c2", 8) == "mapped"
    assert [limit["value"] for limit in limits(ctr).values()] == [str(4 << 20)] * 2
    ctr("config", "unset", "c1", "limits.hugepages.2MB")
    assert map_huge(ctr, "c1", 8) == "mapped"


def test_what_best_effort_goes_on_without_is_said(ctr: Ctr) -> None:
    given = ("-c", "limits.hugepages.64KB=1MiB", "-c", "limits.processes=50")
    refused = ctr("launch", "builtin:busybox", "c1", *OFFLINE, *given, code=5)
    assert "`limits.hugepages.64KB` cannot be enforced here" in refused.stderr
    assert "c1" not in ctr("list").stdout
    more = (
        "limits.ingress=1Mbit",
        "limits.kernel.nofile=100:200",
        "linux.sysctl.net.ipv4.ip_forward=1",
        "limits.gpu.memory=1GiB",
    )
    given += tuple(word for key in (*more, "limits.enforcement=best-effort") for word in ("-c", key))
    said = ctr("launch", "builtin:busybox", "c1", *OFFLINE, *given).stderr
    assert "note: `limits.hugepages.64KB` cannot be enforced here" in said
    assert "note: `limits.ingress` has nothing to limit: it has no link\n" in said
    found = limits(ctr)
    assert found["pids.max"]["enforced"] is True
    assert (found["limits.kernel.nofile"]["value"], found["limits.kernel.nofile"]["state"]) == ("100:200", "enforced")
    assert found["limits.gpu.memory"]["state"] == "no device"
    assert found["linux.sysctl.net.ipv4.ip_forward"]["enforced"] is True
    ctr("exec", "c1", "--", "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
    now = limits(ctr)["linux.sysctl.net.ipv4.ip_forward"]
    assert (now["value"], now["state"], now["mechanism"]) == ("0", "not in force", "sysctl")
    assert "limits.hugepages.1MB" in ctr("config", "set", "c1", "limits.hugepages.1MB=1MiB").stderr
    found = limits(ctr)
    assert found["limits.hugepages.64KB"]["enforced"] is False
    assert "no pages of 64KB" in str(found["limits.hugepages.64KB"]["value"])


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[str]]:
    """Two disks of memory, 32 MiB each, whose speed is not the host's disk's."""
    found = []
    for number in range(2):
        image = Path(f"/dev/shm/ctrmgr-test-{os.getpid()}-{number}")
        with image.open("wb") as file:
            file.truncate(32 << 20)
        found.append(subprocess.check_output(["losetup", "--show", "--find", image], text=True).strip())
        image.unlink()
    yield found
    for node in found:
        subprocess.run(["losetup", "--detach", node], check=True)


READ = "dd if=/dev/{} of=/dev/null bs=256K count={} iflag=direct"


def seconds(ctr: Ctr, name: str, device: str, count: int) -> float:
    begin = time.monotonic()
    sh(ctr, READ.format(device, count), name)
    return time.monotonic() - begin


def test_disk_rates(ctr: Ctr, disks: list[str]) -> None:
    """4 MiB at 4 MiB a second, then at 2; the other disk and the other instance faster than that, if need be at another try."""
    devices = [word for node in disks for word in ("-d", f"{node[5:]},type=unix-block,source={node}")]
    devices[1] += ",limits.read=4MiB"
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *devices)
    ctr("launch", "builtin:busybox", "c2", *OFFLINE, "-d", f"x,type=unix-block,source={disks[0]}")
    first, second = (Path(node).name for node in disks)
    assert 0.75 < seconds(ctr, "c1", first, 16) < 6
    for name, disk in (("c1", second), ("c2", first)):
        assert any(seconds(ctr, name, disk, 16) < 0.7 for _ in range(8)), (name, disk)
    (limit,) = limits(ctr).values()
    assert limit["key"] == f"{first}.limits.read"
    assert limit["enforced"] is True and str(4 << 20) in str(limit["value"])
    ctr("detach-device", "c1", first)
    assert limits(ctr) == {}
    ctr("attach-device", "c1", first, "type=unix-block", f"source={disks[0]}", "limits.max=2MiB")
    assert 1.5 < seconds(ctr, "c1", first, 16) < 9
    assert len(json.loads(ctr("info", "c1", "--format", "json").stdout)["limits"]) == 2
    ctr("restart", "c1")
    assert 0.75 < seconds(ctr, "c1", first, 8) < 6


def test_disk_limits_of_an_instance_that_began_without(ctr: Ctr, disks: list[str]) -> None:
    """Whatever the hierarchy: one of v1 is joined then."""
    launch(ctr)
    ctr("attach-device", "c1", "d", "type=unix-block", f"source={disks[0]}", "path=/dev/d", "limits.read=4MiB")
    assert 0.75 < seconds(ctr, "c1", "d", 16) < 6


def test_limits_of_a_device_for_this_run_only(ctr: Ctr, disks: list[str]) -> None:
    """They are in no plan, and known all the same: shown, and taken back with the device, also when its command was killed."""
    launch(ctr)
    keys = ("c1", "d", "type=unix-block", f"source={disks[0]}", "path=/dev/d")
    limited = ("attach-device", "--volatile", *keys, "limits.read=4MiB")
    ctr(*limited)
    (limit,) = limits(ctr).values()
    assert limit["key"] == "d.limits.read" and limit["enforced"] is True
    host = cgroup.read()
    top = {**host.v1, cgroup.UNIFIED: host.unified}[str(limit["hierarchy"])]
    file = Path(f"{top}/{ctr.env['CTRMGR_CGROUP_PARENT']}/c1/{limit['file']}")
    leases = os.listdir(ctr.folder / "run/.leases")
    for words in (limited, ("attach-device", *keys)):
        assert "`c1` has a device `d` already" in ctr(*words, code=4).stderr
    assert str(4 << 20) in file.read_text() and os.listdir(ctr.folder / "run/.leases") == leases != []
    ctr("detach-device", "c1", "d")
    assert limits(ctr) == {} and str(4 << 20) not in file.read_text()
    for step in ("attach-recorded", "attach-leased"):
        ctr(*limited, code=-signal.SIGKILL, env={"CTRMGR_CRASH_AT": step})
        ctr("attach-device", *keys)
        assert limits(ctr) == {}
        ctr("detach-device", "c1", "d")
    ctr(*limited)
    ctr("restart", "c1")
    assert limits(ctr) == {} and not os.listdir(ctr.folder / "run/.limits")


@pytest.mark.parametrize("value", ["balanced", "devices"])
def test_a_numa_node_of_its_own(ctr: Ctr, value: str) -> None:
    """Wherever its devices are, on a machine with one node it is that."""
    nodes = Host().nodes
    if value == "devices" and len(nodes) > 1:
        said = ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-c", f"limits.cpu.nodes={value}", code=5)
        assert "none of its devices" in said.stderr
        return
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-c", f"limits.cpu.nodes={value}")
    status = ctr("exec", "c1", "--", "cat", "/proc/self/status").stdout
    allowed = re.findall(r"^(?:Cpus|Mems)_allowed_list:\s*(.+)$", status, re.MULTILINE)
    assert int(allowed[1]) in nodes
    assert tuple(values.expand_cpus(allowed[0])) == nodes[int(allowed[1])]
    held = limits(ctr)
    assert held and all(limit["enforced"] for limit in held.values())
