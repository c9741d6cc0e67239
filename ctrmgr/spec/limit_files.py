# SPDX-License-Identifier: GPL-3.0-or-later
"""The cgroup controllers' files that say what a cgroup may use, and what each says where nothing is limited."""

from __future__ import annotations

UNIFIED_FILES = {
    "cgroup.max.depth": "64", "cgroup.max.descendants": "max",
    "cpu.idle": "0", "cpu.max": "max 100000", "cpu.max.burst": "0", "cpu.uclamp.max": "max", "cpu.uclamp.min": "0",
    "cpu.weight": "100", "cpu.weight.nice": "0",
    "cpuset.cpus": "", "cpuset.cpus.partition": "member", "cpuset.mems": "",
    "dmem.low": "0", "dmem.max": "max", "dmem.min": "0",
    "gpu.memory": "max", "gpu.priority": "0", "gpu.shares": "100",
    "hugetlb.{}.max": "max", "hugetlb.{}.rsvd.max": "max",
    "io.bfq.weight": "100", "io.latency": "0", "io.max": "max", "io.prio.class": "no-change", "io.weight": "100",
    "memory.high": "max", "memory.low": "0", "memory.max": "max", "memory.min": "0", "memory.oom.group": "0",
    "memory.swap.high": "max", "memory.swap.max": "max", "memory.zswap.max": "max", "memory.zswap.writeback": "1",
    "misc.max": "max",
    "pids.max": "max",
    "rdma.max": "max",
}  # fmt: skip
"""Interface files of cgroup2 that say what a cgroup may use, and what they say in one without a limit ("": what the parent has)."""

V1_FILES = {
    "blkio.bfq.weight": "100", "blkio.weight": "500",
    "blkio.throttle.read_bps_device": "0", "blkio.throttle.read_iops_device": "0",
    "blkio.throttle.write_bps_device": "0", "blkio.throttle.write_iops_device": "0",
    "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpu.shares": "1024",
    "gpu.memory": "max", "gpu.priority": "0", "gpu.shares": "100",
    "hugetlb.{}.limit_in_bytes": "-1", "hugetlb.{}.rsvd.limit_in_bytes": "-1",
    "memory.limit_in_bytes": "-1", "memory.memsw.limit_in_bytes": "-1", "memory.soft_limit_in_bytes": "-1",
    "memory.swappiness": "60",
}  # fmt: skip

KEYED = ("blkio.throttle.", "dmem.", "io.bfq.weight", "io.latency", "io.max", "io.weight", "misc.max", "rdma.max")
"""Prefixes of files with a line for each device or resource."""


def hugetlb(name: str) -> str:
    """`hugetlb.{}.max` of `hugetlb.2MB.max`; any other name as it is."""
    parts = name.split(".")
    return f"hugetlb.{{}}.{'.'.join(parts[2:])}" if parts[0] == "hugetlb" and len(parts) > 2 else name
