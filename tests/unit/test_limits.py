# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits, on recorded hosts of every layout: which files carry them out, why not, how they are taken back."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrmgr.backend import devices
from ctrmgr.backend.device_limits import unlimited
from ctrmgr.devices import unix_block
from ctrmgr.devices.rows import without
from ctrmgr.errors import CtrmgrError, HostError, SpecError, UnsupportedError
from ctrmgr.host.machine import Host
from ctrmgr.plan import device_limits, gpu_limits, limits
from ctrmgr.spec import device as spec
from ctrmgr.spec import keys
from ctrmgr.spec.limit_files import UNIFIED_FILES, V1_FILES, hugetlb
from ctrmgr.spec.limits import LIMITS

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
CONTROLLERS = ("cpu,cpuacct", "cpuset", "memory", "pids", "blkio", "hugetlb", "rdma", "misc")
V1 = "".join(
    f"3{i} 31 0:3{i} / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
    for i, name in enumerate(CONTROLLERS)
)
HYBRID = V1.replace("cgroup/hugetlb rw", "cgroup/x rw").replace("rw,hugetlb", "rw,name=x")
LAYOUTS = {
    "v2": V2,
    "v1": V1,
    "hybrid": HYBRID + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
}
MIB = 1 << 20


def machine(root: Path, layout: str, *, delegated: str | None = None, kernel: str = "6.12.1") -> Host:
    """4 CPUs on 2 NUMA nodes, 1 GiB, pages of 2 MiB and 1 GiB, an RDMA device and encrypted guests."""
    files = {
        "proc/self/mountinfo": LAYOUTS[layout],
        "proc/self/cgroup": "0::/user.slice/user-1000.slice\n",
        "proc/sys/kernel/osrelease": kernel + "\n",
        "proc/sys/kernel/pid_max": "32768\n",
        "proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/online": "0-3\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
        "sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
        "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": "9\n",
        "sys/fs/cgroup/blkio/blkio.bfq.weight": "100\n",
        "sys/fs/cgroup/misc/misc.capacity": "sev 0\nsev_es 99\n",
    }
    if layout == "v2":
        files["sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory hugetlb pids rdma misc dmem\n"
        files["sys/fs/cgroup/misc.capacity"] = "sev 0\nsev_es 99\n"
        files["sys/fs/cgroup/system.slice/io.weight"] = "default 100\n"
        files["sys/fs/cgroup/user.slice/user-1000.slice/cgroup.controllers"] = (delegated or "") + "\n"
    if layout == "hybrid":
        files["sys/fs/cgroup/unified/cgroup.controllers"] = "hugetlb\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(root), privileged=delegated is None)


EVERYWHERE = {
    "limits.cpu": "2-3",
    "limits.cpu.nodes": "1",
    "limits.cpu.allowance": "50%",
    "limits.memory": "512MiB",
    "limits.memory.swap": "64MiB",
    "limits.hugepages.2MB": "5MiB",
    "limits.processes": "100",
    "limits.disk.priority": "5",
    "limits.misc.sev_es": "3",
    "limits.rdma.mlx5_0.hca_handle": "2",
    "limits.rdma.mlx5_0.hca_object": "max",
}
GOLDEN_V1 = [
    "cpuset cpuset.mems 1", "cpuset cpuset.cpus 2-3", "cpu cpu.shares 512", f"memory memory.limit_in_bytes {512 * MIB}",
    f"memory memory.memsw.limit_in_bytes {576 * MIB}", f"hugetlb hugetlb.2MB.limit_in_bytes {4 * MIB}",
    f"hugetlb hugetlb.2MB.rsvd.limit_in_bytes {4 * MIB}", "pids pids.max 100", "blkio blkio.bfq.weight 500",
    "misc misc.max sev_es 3", "rdma rdma.max mlx5_0 hca_handle=2", "rdma rdma.max mlx5_0 hca_object=max",
]  # fmt: skip
GOLDEN = {
    "v2": [
        "unified cpuset.cpus 2-3", "unified cpuset.mems 1", "unified cpu.weight 50", f"unified memory.max {512 * MIB}",
        f"unified memory.swap.max {64 * MIB}", f"unified hugetlb.2MB.max {4 * MIB}", f"unified hugetlb.2MB.rsvd.max {4 * MIB}",
        "unified pids.max 100", "unified io.weight 500", "unified misc.max sev_es 3",
        "unified rdma.max mlx5_0 hca_handle=2", "unified rdma.max mlx5_0 hca_object=max",
    ],
    "v1": GOLDEN_V1,
    "hybrid": [
        f"unified hugetlb.2MB{'.rsvd' if '.rsvd' in row else ''}.max {4 * MIB}" if "hugetlb" in row else row for row in GOLDEN_V1
    ],
}  # fmt: skip


def made(config: dict[str, str], host: Host) -> list[str]:
    return [" ".join(row[1:]) for row in limits.rows(config, host)]


@pytest.mark.parametrize("layout", GOLDEN)
def test_each_key_goes_where_its_controller_is(tmp_path: Path, layout: str) -> None:
    assert made(EVERYWHERE, machine(tmp_path, layout)) == GOLDEN[layout]


@pytest.mark.parametrize("layout", GOLDEN)
def test_every_row_leads_back_to_a_key_that_was_given(tmp_path: Path, layout: str) -> None:
    for _, hierarchy, file, value in limits.rows(EVERYWHERE, machine(tmp_path, layout)):
        assert limits.key_of(file, value, hierarchy == "unified") in EVERYWHERE


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ({"limits.memory.oom_group": "true"}, ["unified memory.oom.group 1"]),
        ({"limits.memory": "25%", "limits.memory.enforce": "soft"}, [f"unified memory.high {256 * MIB}"]),
        ({"limits.cpu.nodes": "0"}, ["unified cpuset.mems 0", "unified cpuset.cpus 0,1"]),
        ({"limits.cpu.nodes": "1", "limits.cpu": "1"}, ["1 unified 2,3", "unified cpuset.mems 1"]),
        ({"unified.memory.low": "64M"}, ["unified memory.low 64M"]),
        ({"unified.io.max": "8:0 rbps=1 wiops=7"}, ["unified io.max 8:0 rbps=1", "unified io.max 8:0 wiops=7"]),
        ({"unified.cgroup.max.depth": "3"}, ["unified cgroup.max.depth 3"]),
        ({"unified.pids.max": "100", "limits.processes": "100"}, ["unified pids.max 100"]),
    ],
)
def test_what_only_cgroup2_has(tmp_path: Path, config: dict[str, str], rows: list[str]) -> None:
    assert made(config, machine(tmp_path, "v2")) == rows


@pytest.mark.parametrize(
    ("layout", "key", "value", "reason"),
    [
        ("v1", "limits.memory.oom_group", "true", "only cgroup2"),
        ("v2", "limits.memory.swap.priority", "3", "no swappiness"),
        ("v1", "unified.memory.low", "1M", "cgroup v1 here"),
        ("hybrid", "unified.memory.low", "1M", "cgroup v1 here"),
        ("v1", "unified.dmem.max", "card0 1M", "in no hierarchy"),
        ("v2", "limits.hugepages.64KB", "1MiB", "no pages of 64KB"),
        ("v2", "unified.hugetlb.3MB.max", "1M", "no pages of 3MB"),
    ],
)
def test_why_not(tmp_path: Path, layout: str, key: str, value: str, reason: str) -> None:
    host = machine(tmp_path, layout)
    with pytest.raises(UnsupportedError, match=f"`{key}` cannot be enforced here: .*{reason}"):
        limits.rows({key: value}, host)
    ((word, _, name, said),) = limits.rows({key: value, "limits.enforcement": "best-effort"}, host)
    assert (word, name) == ("left-out", key) and reason in said


def test_v1_swappiness(tmp_path: Path) -> None:
    host = machine(tmp_path, "v1")
    assert made({"limits.memory.swap.priority": "10"}, host) == ["memory memory.swappiness 60"]
    assert made({"limits.memory.swap.priority": "0"}, host) == ["memory memory.swappiness 70"]
    both = {"limits.memory.swap": "false", "limits.memory.swap.priority": "0"}
    assert made(both, host) == ["memory memory.swappiness 0"]


def test_an_old_kernel_does_without_reservations_of_huge_pages(tmp_path: Path) -> None:
    host = machine(tmp_path, "v2", kernel="4.18.0-553.el8")
    assert made({"limits.hugepages.2MB": "2MiB"}, host) == [f"unified hugetlb.2MB.max {2 * MIB}"]
    with pytest.raises(UnsupportedError, match=r"4\.19"):
        limits.rows({"limits.memory.oom_group": "true"}, host)


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"limits.memory": "2GiB"}, HostError, "1024 MiB of memory"),
        ({"limits.hugepages.1GB": "2GiB"}, HostError, "1024 MiB"),
        ({"limits.hugepages.2MB": "1MiB"}, SpecError, "less than one page"),
        ({"limits.processes": "40000"}, HostError, "32768 processes"),
        ({"limits.cpu": "5"}, HostError, "4 CPUs, not 5"),
        ({"limits.cpu.allowance": "401ms/100ms"}, HostError, "4 CPUs: 400ms/100ms is all"),
        ({"unified.memory.max": "64Q"}, SpecError, "is not what the kernel takes: a number, perhaps with K"),
        ({"unified.memory.low": "5MiB"}, SpecError, "is not what the kernel takes"),
        ({"unified.hugetlb.2MB.max": "two"}, SpecError, "is not what the kernel takes"),
        ({"unified.pids.max": "5K"}, SpecError, "is not what the kernel takes: a number or `max`"),
        ({"unified.memory.max": "2G"}, HostError, f"has {1 << 30} bytes of memory, not {2 << 30}"),
        ({"unified.memory.high": "1P"}, HostError, "bytes of memory"), ({"unified.memory.min": "1E"}, HostError, "bytes"),
        ({"unified.memory.low": "1025m"}, HostError, "bytes of mem"), ({"unified.hugetlb.2MB.max": "2G"}, HostError, "bytes"),
        ({"unified.pids.max": "32769"}, HostError, "32768 processes in all"),
        ({"unified.cpuset.cpus": "3-4"}, HostError, "no CPU 4 that is online"),
        ({"unified.cpuset.mems": "2"}, HostError, "no NUMA node 2"),
        ({"unified.cpu.max": "400001"}, HostError, "400000 micro"), ({"unified.cpu.max": "41000 10000"}, HostError, "40000 microseconds"),
        ({"unified.misc.max": "sev_es 100"}, HostError, "99 of `sev_es` in all, not 100"),
        ({"unified.misc.max": "tdx 1"}, HostError, "no `tdx`"),
        ({"unified.dmem.max": "card9 1M"}, HostError, "no `card9`"),
        ({"limits.cpu": "3-4"}, HostError, "no CPU 4"),
        ({"limits.cpu": "3", "limits.cpu.nodes": "0"}, HostError, "NUMA nodes 0 have 2 CPUs"),
        ({"limits.cpu": "0-3", "limits.cpu.nodes": "0"}, SpecError, "CPU 2 is not of NUMA nodes 0"),
        ({"limits.cpu.nodes": "0-2"}, HostError, "no NUMA node 2"),
        ({"limits.misc.tdx": "1"}, HostError, "no such resource"),
        ({"limits.misc.sev_es": "100"}, HostError, "99 in all"),
        ({"limits.rdma.mlx5_9.hca_handle": "1"}, HostError, "no RDMA device `mlx5_9`"),
        ({"limits.memory": "64MiB", "unified.memory.low": "65M"}, SpecError, "above the hard limit"),
        ({"limits.memory": "64MiB", "unified.memory.high": "1G"}, SpecError, "above the hard limit"),
        ({"unified.memory.max": "64M", "unified.memory.min": "65M"}, SpecError, "`memory.min` is above the hard limit of 67108864"),
        ({"limits.memory": "64MiB", "limits.memory.enforce": "soft", "unified.memory.low": "65M"}, SpecError, "above the soft limit"),
        ({"limits.memory.swap": "1MiB", "unified.memory.swap.high": "2M"}, SpecError, "`memory.swap.high` is above the hard limit"),
        ({"limits.memory": "64MiB", "unified.memory.max": "1G"}, SpecError, "`limits.memory` and `unified.memory.max`"),
        ({"limits.cpu": "1", "unified.cpuset.cpus": "0"}, SpecError, "`limits.cpu` and `unified.cpuset.cpus`"),
    ],
)  # fmt: skip
def test_more_than_there_is_or_what_contradicts_itself(
    tmp_path: Path, config: dict[str, str], error: type[CtrmgrError], said: str
) -> None:
    config = {key: keys.check(key, value) for key, value in config.items()}
    with pytest.raises(error, match=said):
        limits.rows(config, machine(tmp_path, "v2"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unified.cgroup.procs", "1"), ("unified.cgroup.freeze", "1"), ("unified.memory.current", "1"), ("unified.", "1"),
        ("unified.../x", "1"), ("unified.hugetlb.2MB.current", "1"), ("unified.pids.max", "1\n2"), ("unified.pids.max", "1" * 256),
        ("limits.rdma.mlx5_0", "1"), ("limits.rdma.mlx5_0.hca_thing", "1"), ("limits.rdma..hca_handle", "1"),
        ("limits.rdma.a b.hca_handle", "1"), ("limits.rdma.mlx5_0.hca_handle", "-1"), ("limits.misc.a=b", "1"),
        ("limits.hugepages.4MB", "1"), ("limits.hugepages.2MB", "1Q"), ("limits.cpu.nodes", "a"), ("limits.cpu.nodes", "1-0"),
        ("limits.memory.swap.priority", "11"), ("limits.memory.oom_group", "maybe"),
    ],
)  # fmt: skip
def test_what_is_no_limit(key: str, value: str) -> None:
    with pytest.raises(SpecError, match=r"unknown key|is not|has the|empty range"):
        keys.check(key, value)


def test_systemd_says_how_to_delegate(tmp_path: Path) -> None:
    host = machine(tmp_path, "v2", delegated="memory pids")
    assert made({"limits.memory": "64MiB"}, host) == [f"unified memory.max {64 * MIB}"]
    with pytest.raises(
        UnsupportedError, match=r"`limits\.disk\.priority`.*`io` controller was not delegated"
    ) as caught:
        limits.rows({"limits.disk.priority": "1"}, host)
    assert "Delegate=io memory pids" in (caught.value.hint or "")


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_every_file_has_a_way_back(limit: limits.Limit) -> None:
    for file in limit.v2:
        assert all(name == "{}" or hugetlb(name) in UNIFIED_FILES for name in file.names)
    for file in limit.v1:
        known = {**V1_FILES, "pids.max": "", "misc.max": "", "rdma.max": "", "cpuset.cpus": "", "cpuset.mems": ""}
        assert all(hugetlb(name) in known for name in file.names)


SETTINGS = {
    "limits.memory": ("64MiB", "128MiB"),
    "limits.memory.swap": ("1MiB", "false"),
    "limits.processes": ("10", "20"),
    "limits.cpu": ("0-1", "1-1"),
    "limits.cpu.allowance": ("10ms/100ms", "20%"),
    "limits.hugepages.2MB": ("2MiB", "0"),
    "limits.misc.sev_es": ("1", "2"),
    "limits.rdma.mlx5_0.hca_handle": ("1", "2"),
    "limits.rdma.mlx5_0.hca_object": ("1", "2"),
}
CONFIG = st.fixed_dictionaries({}, optional={key: st.sampled_from(value) for key, value in SETTINGS.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_change_leads_to_the_new_limits_and_back_to_none(
    tmp_path_factory: pytest.TempPathFactory, layout: str
) -> None:
    host = machine(tmp_path_factory.mktemp(layout), layout)

    def apply(state: dict[tuple[str, ...], str], rows: limits.Rows) -> dict[tuple[str, ...], str]:
        """A kernel that checks what v1 checks: the sum of memory and swap is never below the memory."""
        now = dict(state)
        for row in rows:
            now[limits._place(row)] = row[3]
            memory, both = (
                int(now.get(("memory", f"memory.{name}limit_in_bytes", ""), "-1")) % (1 << 63)
                for name in ("", "memsw.")
            )
            assert memory <= both, (row, now)
        return now

    @settings(deadline=None)
    @given(CONFIG, CONFIG)
    def check(first: dict[str, str], second: dict[str, str]) -> None:
        if layout != "v2":
            for config in (first, second):
                if "limits.memory" not in config:
                    config.pop("limits.memory.swap", None)
        old, new = limits.rows(first, host), limits.rows(second, host)
        nothing = apply({}, limits.changes(old, [], host))
        state = apply(apply(nothing, limits.changes([], old, host)), limits.changes(old, new, host))
        for row in new:
            assert state[limits._place(row)] == row[3]
        for place, value in state.items():
            if place not in {limits._place(row) for row in new}:
                assert value == limits.neutral(place[1], place[2], host)

    check()


@pytest.mark.parametrize(
    ("file", "planned", "text", "holds"),
    [
        ("memory.max", "67108864", "67108864\n", True),
        ("memory.max", "67108900", "67108864\n", True),
        ("memory.max", "67108864", "max\n", False),
        ("memory.low", "64M", "67108864\n", True),
        ("pids.max", "10", "9\n", False),
        ("pids.max", "10", "", False),
        ("cpu.max", "20000 100000", "20000 100000\n", True),
        ("cpuset.cpus", "0,1", "0-1\n", True),
        ("cpuset.cpus", "0-1", "0\n", False),
        ("cpuset.cpus", "0-1", "\n", False),
        ("io.weight", "500", "default 500\n8:0 100\n", True),
        ("blkio.bfq.weight", "500", "500\n", True),
        ("io.max", "8:0 rbps=5", "8:16 rbps=7 wbps=max\n8:0 rbps=5 wbps=max riops=max wiops=max\n", True),
        ("io.max", "8:0 rbps=5", "8:16 rbps=5 wbps=max riops=max wiops=max\n", False),
        ("rdma.max", "mlx5_0 hca_handle=2", "mlx5_0 hca_handle=2 hca_object=max\n", True),
        ("misc.max", "sev_es 3", "sev max\nsev_es 3\n", True),
        ("misc.max", "sev_es 3", "sev 3\nsev_es max\n", False),
        ("blkio.throttle.read_bps_device", "7:0 1048576", "7:0 1048576\n", True),
        ("blkio.throttle.read_bps_device", "7:0 1048576", "", False),
    ],
)  # fmt: skip
def test_what_the_kernel_says_is_compared(file: str, planned: str, text: str, holds: bool) -> None:
    assert limits.holds(file, planned, text) is holds


def disk(root: Path, name: str, number: str, monkeypatch: pytest.MonkeyPatch, *, partition_of: str = "") -> None:
    """A disk, or a partition, with a node; the node's number is made up, because tests make no real ones."""
    folder = root / "sys/devices/virtual/block" / partition_of / name
    folder.mkdir(parents=True)
    (folder / "dev").write_text(number + "\n")
    if partition_of:
        (folder / "partition").write_text("1\n")
    (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/block" / number).symlink_to(folder)
    NODES[str(root / "dev" / name)] = number
    monkeypatch.setattr(os, "stat", stat_made_up)


NODES: dict[str, str] = {}
real_stat = os.stat


def stat_made_up(path: str, **options: bool) -> os.stat_result | SimpleNamespace:
    number = NODES.get(str(path))
    if number is None:
        return real_stat(path, **options)
    major, _, minor = number.partition(":")
    return SimpleNamespace(st_mode=stat.S_IFBLK | 0o660, st_rdev=os.makedev(int(major), int(minor)))


def io(host: Host, *devices: dict[str, str], best_effort: bool = False) -> list[list[str]]:
    found = [
        row
        for number, values in enumerate(devices)
        for row in unix_block.rows(f"d{number}", spec.check(f"d{number}", {"type": "unix-block", **values}))
    ]
    return [row for row in device_limits.resolve(found, host, best_effort=best_effort) if row[0] != "device"]


def test_a_disks_limits_by_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = {"source": "/dev/sda", "limits.read": "10MiB", "limits.write": "200iops"}
    v2, v1 = machine(tmp_path / "v2", "v2"), machine(tmp_path / "v1", "v1")
    (tmp_path / "v1/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").write_text("")
    (tmp_path / "v1/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").write_text("")
    for name in ("v2", "v1"):
        disk(tmp_path / name, "sda", "8:0", monkeypatch)
    identity = ["identity", "d0", "/sys/devices/virtual/block/sda/dev", "8:0"]
    assert io(v2, wish) == [
        ["device-limit", "d0", "unified", "io.max", f"8:0 rbps={10 * MIB}"],
        identity,
        ["device-limit", "d0", "unified", "io.max", "8:0 wiops=200"],
    ]
    assert io(v1, wish) == [
        ["device-limit", "d0", "blkio", "blkio.throttle.read_bps_device", f"8:0 {10 * MIB}"],
        identity,
        ["device-limit", "d0", "blkio", "blkio.throttle.write_iops_device", "8:0 200"],
    ]
    for rows, host, back in ((io(v2, wish), v2, "8:0 rbps=max"), (io(v1, wish), v1, "8:0 0")):
        undone = limits.changes(rows, [], host)
        assert undone[0][3] == back == unlimited(rows[0][4])
        assert limits.changes([], rows, host) == [["cgroup-file", *row[2:]] for row in rows if row[0] == "device-limit"]


def test_partitions_are_limited_as_their_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine(tmp_path, "v2")
    disk(tmp_path, "sda", "8:0", monkeypatch)
    for number in (1, 2):
        disk(tmp_path, f"sda{number}", f"8:{number}", monkeypatch, partition_of="sda")
    first, second = ({"source": f"/dev/sda{number}", "limits.max": "1MB"} for number in (1, 2))
    assert {row[4] for row in io(host, first, second) if row[0] == "device-limit"} == {
        "8:0 rbps=1000000",
        "8:0 wbps=1000000",
    }
    with pytest.raises(SpecError, match="one disk, 8:0, with two limits"):
        io(host, first, {**second, "limits.max": "2MB"})


def test_a_disk_that_cannot_be_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = {"source": "/dev/sda", "limits.max": "5iops"}
    disk(tmp_path, "sda", "8:0", monkeypatch)
    assert io(machine(tmp_path, "v2"), {**wish, "source": "/dev/absent"}) == []
    host = machine(tmp_path, "v2", delegated="memory")
    with pytest.raises(UnsupportedError, match=r"`d0`: `limits\.read` cannot be enforced here: `io` was not delegated"):
        io(host, wish)
    left = io(host, wish, best_effort=True)
    assert [row[:3] for row in left] == [["left-out", "d0", f"d0.limits.{what}"] for what in ("read", "write")]
    assert without(left, "d0") == []  # a detach takes it out of the plan
    monkeypatch.setattr("ctrmgr.host.machine.Host", lambda: host)
    asked = [["@io", "d0", "/dev/sda", "read", "5iops"]]
    with pytest.raises(UnsupportedError, match="not delegated"):
        devices.limited(asked, [])
    assert devices.limited(asked, gpu_limits.kept({"limits.enforcement": "best-effort"})) == left[:1]


@pytest.mark.parametrize("value", ["0", "0iops", "x", "1Q", "1.5MB", "-1", "5 iopss", "iops", "99999999EiB"])
def test_rates_that_are_none(value: str) -> None:
    with pytest.raises(SpecError, match=r"limits\.read|d0"):
        spec.check("d0", {"type": "unix-block", "source": "/dev/sda", "limits.read": value})


def test_both_ways_of_saying_it() -> None:
    wish = spec.check("d0", {"type": "unix-block", "source": "/dev/sda", "limits.read": "1MB", "limits.max": "1MB"})
    with pytest.raises(ValueError, match=r"limits\.max"):
        unix_block.rows("d0", wish)
