# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about the running kernel."""

from __future__ import annotations

import os


def kernel_version(root: str = "/") -> tuple[int, int]:
    """(major, minor) of the running kernel; (0, 0) when it does not say."""
    text = _text(root, "proc/sys/kernel/osrelease")
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def last_capability(root: str = "/") -> int:
    """The highest capability that the kernel knows."""
    text = _text(root, "proc/sys/kernel/cap_last_cap")
    return int(text) if text.isdecimal() else 40


def boot_id(root: str = "/") -> str:
    """Changes with every boot: what was computed from the kernel and its mounts is valid for one."""
    return _text(root, "proc/sys/kernel/random/boot_id")


def cpus(root: str = "/") -> tuple[int, ...]:
    """Numbers of the CPUs that are online."""
    return _numbers(_text(root, "sys/devices/system/cpu/online"))


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def nodes(root: str = "/") -> dict[int, tuple[int, ...]]:
    """NUMA node → numbers of its CPUs."""
    online = _numbers(_text(root, "sys/devices/system/node/online"))
    return {node: _numbers(_text(root, f"sys/devices/system/node/node{node}/cpulist")) for node in online}


def pid_max(root: str = "/") -> int:
    """How many processes and threads there can be."""
    text = _text(root, "proc/sys/kernel/pid_max")
    return int(text) if text.isdecimal() else 1 << 22


def huge_pages(root: str = "/") -> tuple[str, ...]:
    """Sizes of huge pages, smallest first, as the hugetlb controller writes them: `2MB`."""
    try:
        names = os.listdir(os.path.join(root, "sys/kernel/mm/hugepages"))
    except OSError:
        return ()
    sizes = sorted(int(name[10:-2]) for name in names if name.startswith("hugepages-") and name[10:-2].isdecimal())
    units = ((1 << 20, "GB"), (1 << 10, "MB"), (1, "KB"))
    return tuple(next(f"{size // unit}{letters}" for unit, letters in units if size >= unit) for size in sizes)


def rdma_devices(root: str = "/") -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(os.path.join(root, "sys/class/infiniband"))))
    except OSError:
        return ()


def memory(root: str = "/") -> int:
    """Bytes of memory."""
    for line in _text(root, "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


LIMIT_NAMES = {
    "Max address space": "as",
    "Max core file size": "core",
    "Max cpu time": "cpu",
    "Max data size": "data",
    "Max file size": "fsize",
    "Max file locks": "locks",
    "Max locked memory": "memlock",
    "Max msgqueue size": "msgqueue",
    "Max nice priority": "nice",
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max resident set": "rss",
    "Max realtime priority": "rtprio",
    "Max realtime timeout": "rttime",
    "Max pending signals": "sigpending",
    "Max stack size": "stack",
}
MACHINES = ("core", "memlock", "nofile", "stack")
"""Of these, what pid 1 has is meant for the machine, and what a login has is less."""


def limits(root: str = "/", process: str = "self") -> dict[str, tuple[str, str]]:
    """(soft, hard) of a process by the names that plans use; numbers or `unlimited`."""
    found = {}
    for line in _text(root, f"proc/{process}/limits").splitlines():
        name = LIMIT_NAMES.get(line[:26].strip())
        words = line[26:].split()
        if name and len(words) >= 2:
            found[name] = (words[0], words[1])
    return found


def init_limits(root: str = "/") -> dict[str, tuple[str, str]]:
    """Those of pid 1 that are the machine's."""
    return {name: pair for name, pair in limits(root, "1").items() if name in MACHINES}


def nr_open(root: str = "/") -> int:
    text = _text(root, "proc/sys/fs/nr_open")
    return int(text) if text.isdecimal() else 0


def may_raise_limits(root: str = "/") -> bool:
    """Whether we have CAP_SYS_RESOURCE, without which a hard limit cannot be raised."""
    for line in _text(root, "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    return False


def oom_score_adj(root: str = "/", *, process: str = "self") -> int:
    text = _text(root, f"proc/{process}/oom_score_adj")
    return int(text) if text.removeprefix("-").isdecimal() else 0


def _text(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
