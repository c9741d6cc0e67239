# SPDX-License-Identifier: GPL-3.0-or-later
"""What instances use: counters of each cgroup layout, and the GPU clients of processes, from recorded files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ctrmgr.backend import observe, usage
from ctrmgr.cli import top
from ctrmgr.host import counters, drm

V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n",
    "cpu.max": "150000 100000\n",
    "cpuset.cpus.effective": "0-1\n",
    "memory.current": "1048576\n",
    "memory.max": "max\n",
    "memory.high": "2097152\n",
    "memory.swap.current": "4096\n",
    "memory.swap.max": "0\n",
    "pids.current": "7\n",
    "pids.max": "max\n",
    "io.stat": "8:0 rbytes=1000 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n"
    "253:0 rbytes=1000 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n7:0 \n",
    "dmem.current": "drm/0000:03:00.0/vram0 8388608\ndrm/0000:04:00.0/vram0 0\n",
    "dmem.max": "drm/0000:03:00.0/vram0 16777216\ndrm/0000:04:00.0/vram0 max\n",
}
V1 = {
    "cpuacct/cpuacct.usage": "2500000000\n",
    "cpu/cpu.cfs_quota_us": "50000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.usage_in_bytes": "1048576\n",
    "memory/memory.limit_in_bytes": "2097152\n",
    "memory/memory.soft_limit_in_bytes": "9223372036854771712\n",
    "memory/memory.memsw.usage_in_bytes": "1052672\n",
    "memory/memory.memsw.limit_in_bytes": "3145728\n",
    "pids/pids.current": "7\n",
    "pids/pids.max": "100\n",
    "blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1000\n8:0 Write 20\n8:0 Sync 1\n8:0 Total 1020\nTotal 1020\n",
}


def put(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def host(root: Path) -> str:
    """Four CPUs, and a device mapper's disk on a real one."""
    (root / "sys/dev/block/253:0/slaves/sda").mkdir(parents=True)
    return put(root, {"sys/devices/system/cpu/online": "0-3\n"})


def test_v2(tmp_path: Path) -> None:
    root = host(tmp_path / "root")
    found = counters.Cgroup({"unified": put(tmp_path / "cg", V2)}, root).read()
    assert (found.cpu, found.cpu_limit) == (2.5, 1.5)
    assert (found.memory, found.memory_limit, found.swap, found.swap_limit) == (1 << 20, 2 << 20, 4096, 0)
    assert (found.processes, found.processes_limit) == (7, None)
    assert found.io == (1000, 20), "what the mapped disk did is on the real one already"
    assert found.dmem == {"drm/0000:03:00.0/vram0": (8 << 20, 16 << 20), "drm/0000:04:00.0/vram0": (0, None)}


def test_fewer_cpus_than_the_host_has_are_a_limit(tmp_path: Path) -> None:
    root = host(tmp_path / "root")
    files = {**V2, "cpu.max": "max 100000\n"}
    assert counters.Cgroup({"unified": put(tmp_path / "cg", files)}, root).read().cpu_limit == 2
    files["cpuset.cpus.effective"] = "0-3\n"
    assert counters.Cgroup({"unified": put(tmp_path / "cg", files)}, root).read().cpu_limit is None


def test_v1(tmp_path: Path) -> None:
    top = put(tmp_path / "cg", V1)
    folders = {name: f"{top}/{name}" for name in ("cpuacct", "cpu", "memory", "pids", "blkio", "devices")}
    found = counters.Cgroup(folders, host(tmp_path / "root")).read()
    assert (found.cpu, found.cpu_limit) == (2.5, 0.5)
    assert (found.memory, found.memory_limit, found.swap, found.swap_limit) == (1 << 20, 2 << 20, 4096, 1 << 20)
    assert (found.processes, found.processes_limit, found.io) == (7, 100, (1000, 20))


def test_hybrid_without_limits_knows_little_and_invents_nothing(tmp_path: Path) -> None:
    files = {"cpu.stat": V2["cpu.stat"], "cgroup.procs": "4\n5\n", "cgroup.threads": "4\n5\n6\n", "below/cgroup.procs": "9\n",
             "below/cgroup.threads": "9\n"}  # fmt: skip
    folders = {"unified": put(tmp_path / "cg", files), "memory": str(tmp_path / "not-in-it")}
    group = counters.Cgroup(folders, host(tmp_path / "root"))
    found = group.read()
    assert (found.cpu, found.processes) == (2.5, 4)
    assert sorted(group.processes()) == [4, 5, 9]
    none = (
        found.memory,
        found.memory_limit,
        found.swap,
        found.swap_limit,
        found.processes_limit,
        found.io,
        found.cpu_limit,
    )
    assert none == (None,) * 7 and found.dmem == {}


@pytest.mark.parametrize(
    "text", ["", "garbage", "usage_usec\n", "usage_usec -1\n", "usage_usec 1 2\n", "\0\0", "é 1\n"]
)
def test_nonsense_is_not_known(tmp_path: Path, text: str) -> None:
    found = counters.Cgroup({"unified": put(tmp_path, dict.fromkeys(V2, text))}, "/nowhere").read()
    assert found.cpu is None and found.memory is None and found.memory_limit is None


def test_a_link_seen_from_inside(tmp_path: Path) -> None:
    put(tmp_path, {"sys/class/net/ve1/statistics/rx_bytes": "10\n", "sys/class/net/ve1/statistics/tx_bytes": "20\n"})
    net = "Inter-| Receive |\n face |bytes\n  lo: 9 1 0 0 0 0 0 0 9 1\n eth1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n"
    put(tmp_path, {"proc/12/net/dev": net})
    assert counters.link(12, "ve1", "eth0", str(tmp_path)) == (20, 10)
    assert counters.link(12, "", "eth1", str(tmp_path)) == (5, 6)
    assert counters.link(12, "gone", "eth0", str(tmp_path)) is None


AMDGPU = """pos:	0
flags:	02100002
drm-driver:	amdgpu
drm-client-id:	42
drm-pdev:	0000:03:00.0
pasid:	32777
drm-memory-vram:	2048 KiB
drm-memory-gtt: 	1024 KiB
drm-resident-vram:	2048 KiB
drm-resident-gtt:	1024 KiB
drm-engine-gfx:	{gfx} ns
drm-engine-compute:	{compute} ns
drm-engine-capacity-compute:	4
"""
XE = """drm-driver:	xe
drm-client-id:	7
drm-pdev:	0000:04:00.0
drm-total-system:	0
drm-resident-vram0:	3 MiB
drm-cycles-rcs:	{cycles}
drm-total-cycles-rcs:	{total}
"""
I915 = (
    "drm-driver: i915\ndrm-client-id: 1\ndrm-pdev: 0000:00:02.0\ndrm-total-system0: 64 KiB\ndrm-engine-render: 5 ns\n"
)


def one(text: str) -> drm.Client:
    client = drm.parse(text, "")
    assert client is not None
    return client


def test_engines_by_time_and_by_cycles() -> None:
    before, after = one(AMDGPU.format(gfx=0, compute=0)), one(AMDGPU.format(gfx=500_000_000, compute=10**9))
    assert drm.busy(before, after, 1.0) == {"gfx": 50.0, "compute": 25.0}
    assert drm.busy(one(XE.format(cycles=100, total=1000)), one(XE.format(cycles=150, total=1200)), 9.0) == {
        "rcs": 25.0
    }
    assert drm.busy(after, before, 1.0) == {}
    assert drm.busy(before, one(AMDGPU.format(gfx=9 * 10**9, compute=0)), 1.0)["gfx"] == 100.0


def test_memory_is_the_devices_own_or_the_machines() -> None:
    assert one(AMDGPU.format(gfx=0, compute=0)).used() == 2 << 20
    assert one(XE.format(cycles=0, total=0)).used() == 3 << 20
    assert one(I915).used() == 64 << 10
    assert one("drm-client-id: 3\n").used() is None
    assert drm.parse("pos: 0\nflags: 02\n", "") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes takes root")
def test_clients_count_once(tmp_path: Path) -> None:
    """Two descriptors of one client, one of another, and one that is no GPU's."""
    for pid, name, number, text in (
        (10, "3", (226, 128), AMDGPU.format(gfx=1, compute=1)),
        (10, "4", (226, 128), AMDGPU.format(gfx=1, compute=1)),
        (11, "9", (226, 128), AMDGPU.format(gfx=1, compute=1)),
        (11, "10", (226, 129), XE.format(cycles=1, total=2)),
        (11, "11", (1, 3), AMDGPU.format(gfx=1, compute=1).replace("42", "43")),
        (11, "12", (226, 130), "drm-driver: vgem\ndrm-client-id: 42\n"),
    ):
        put(tmp_path, {f"proc/{pid}/fdinfo/{name}": text})
        (tmp_path / f"proc/{pid}/fd").mkdir(exist_ok=True)
        os.mknod(tmp_path / f"proc/{pid}/fd/{name}", 0o20600, os.makedev(*number))
    (tmp_path / "sys/devices/platform/vgem").mkdir(parents=True)
    (tmp_path / "sys/dev/char/226:130").mkdir(parents=True)
    (tmp_path / "sys/dev/char/226:130/device").symlink_to("../../../devices/platform/vgem")
    found = drm.clients([10, 11, 12], str(tmp_path))
    assert sorted(found) == [("0000:03:00.0", "42"), ("0000:04:00.0", "7"), ("platform/vgem", "42")]


def reading(when: float, cpu: float, client: str, dmem: dict[str, tuple[int, int | None]]) -> usage.Reading:
    made = usage.Reading(1)
    made.when = when
    made.counters.cpu, made.counters.io, made.counters.dmem = cpu, (int(cpu * 1000), 0), dmem
    made.links = {"eth0": (int(cpu * 100), 50)}
    made.clients = {("0000:03:00.0", "42"): one(client)}
    return made


def test_a_sample_is_the_difference_of_two_readings() -> None:
    dmem: dict[str, tuple[int, int | None]] = {
        "drm/0000:03:00.0/vram0": (8 << 20, 16 << 20),
        "drm/0000:09:00.0/vram": (0, None),
    }
    before = reading(10.0, 1.0, AMDGPU.format(gfx=0, compute=0), dmem)
    now = reading(12.0, 2.0, AMDGPU.format(gfx=10**9, compute=0), dmem)
    found = usage.usage("c1", before, now)
    assert found.values["cpu"] == 50.0
    assert (found.values["io-read"], found.values["io-write"]) == (500.0, 0.0)
    assert (found.values["network-in"], found.values["network-out"]) == (50.0, 0.0)
    assert found.gpus == {"0000:03:00.0": {"gpu-use": 50.0, "gpu-memory": 8 << 20, "gpu-memory-limit": 16 << 20}}
    first = usage.usage("c1", None, now)
    assert first.values["cpu"] is None and first.gpus["0000:03:00.0"]["gpu-use"] is None
    backwards = usage.usage("c1", now, reading(14.0, 1.0, AMDGPU.format(gfx=0, compute=0), {}))
    assert backwards.values["io-read"] is None, "counters that begin again are no rate"
    assert backwards.gpus["0000:03:00.0"]["gpu-memory"] == 2 << 20, "without a charge, what the clients say"


def test_order_and_table() -> None:
    one, two, three = usage.Usage("a"), usage.Usage("b"), usage.Usage("c")
    one.values["memory"], two.values["memory"], two.values["memory-limit"] = 1 << 20, 900 << 20, 1 << 30
    two.gpus["0000:03:00.0"] = {"gpu-use": 12.0, "gpu-memory": 1 << 30, "gpu-memory-limit": None}
    found = usage.ordered([three, one, two], "memory")
    assert [each.name for each in found] == ["b", "a", "c"]
    made = top.lines(found, 200, True)
    assert re.search(r"\x1b\[33m *900M/1\.0G\x1b\[0m", made[1]), "near its limit it is yellow"
    plain = top.lines(found, 200, False)
    assert "900M/1.0G" in plain[1] and plain[2] == "  0000:03:00.0  use 12.0%/100%  memory 1.0G"
    assert plain[4].split() == ["c"], "what is not known is empty"
    for width in (1, 5, 17, 40, 80):
        assert max(map(len, top.lines(found, width, False))) <= width


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (1 << 20, "1.0M"),
        (1000 << 20, "1.0G"),
        (150 << 30, "150G"),
        (1 << 60, "1024P"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert top.short(value) == text


def test_what_programs_are_given_has_all_of_it() -> None:
    found = usage.Usage("c1")
    found.values.update({field: float(index) for index, field in enumerate(usage.FIELDS)})
    found.gpus["0000:01:00.0"] = {field: float(index) for index, field in enumerate(usage.GPU_FIELDS)}
    use = observe._typed(found, 5.0)
    assert [getattr(use, field.replace("-", "_")) for field in usage.FIELDS] == list(range(len(usage.FIELDS)))
    gpu = use.gpus["0000:01:00.0"]
    assert (gpu.use, gpu.memory, gpu.memory_limit) == (0, 1, 2)
