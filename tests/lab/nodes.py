# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA nodes: `limits.cpu.nodes: devices` on a machine that has two, and the disk at the second one."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.commands import cgroup, ctr, sh, wait_for


def known(path: str, otherwise: str) -> str:
    return Path(path).read_text().strip() if os.path.exists(path) else otherwise


def the_cpus_and_memory_are_next_to_the_devices() -> None:
    """The disk is at the second NUMA node, where the kernel knows of such; where the last one was, it stays."""
    wait_for("/dev/nvme0n1")
    node = known("/sys/block/nvme0n1/device/device/numa_node", "0")
    place = (node, known(f"/sys/devices/system/node/node{node}/cpulist", "0-1"))
    assert place == ("1", "1") or not os.path.exists("/sys/devices/system/node"), place
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr("attach-device", "c1", "it", "type=unix-block", "source=/dev/nvme0n1", "path=/dev/it")
    ctr("config", "set", "c1", "limits.cpu.nodes=devices")
    assert (cgroup("cpuset.mems"), cgroup("cpuset.cpus")) == place
    assert sh("grep -o '_allowed_list:.*' /proc/self/status").split()[1::2] == [place[1], place[0]]
    ctr("detach-device", "c1", "it")
    ctr("config", "set", "c1", "limits.processes=21")
    assert (cgroup("cpuset.mems"), cgroup("cpuset.cpus"), cgroup("pids.max")) == (*place, "21")
    ctr("delete", "--force", "c1")
