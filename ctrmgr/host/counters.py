# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cgroup has used and may use, from whichever hierarchy counts it. What nothing counts is None, never 0. Cold."""

from __future__ import annotations

import os

from ctrmgr.host import sysfs
from ctrmgr.host.cgroup import UNIFIED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

UNLIMITED = 1 << 62
"""What v1 says without a limit is near 2^63."""


class Counters:
    """One reading. `cpu` is seconds of CPU time, limits of it are CPUs; `io` is bytes (read, written) since the cgroup was made;
    the rest is what there is now. `dmem` has (bytes, limit) for each region of device memory."""

    __slots__ = ("cpu", "cpu_limit", "dmem", "io", "memory", "memory_limit", "processes", "processes_limit", "swap",
                 "swap_limit")  # fmt: skip

    def __init__(self) -> None:
        self.cpu: float | None = None
        self.cpu_limit: float | None = None
        self.memory: int | None = None
        self.memory_limit: int | None = None
        self.swap: int | None = None
        self.swap_limit: int | None = None
        self.processes: int | None = None
        self.processes_limit: int | None = None
        self.io: tuple[int, int] | None = None
        self.dmem: dict[str, tuple[int, int | None]] = {}


class Cgroup:
    """The folders of one cgroup: hierarchy (`unified`, or a v1 controller) → its path. Those that it is not in need not exist."""

    __slots__ = ("folders", "root")

    def __init__(self, folders: Mapping[str, str], root: str = "/") -> None:
        self.folders, self.root = folders, root.rstrip("/")

    def text(self, hierarchy: str, file: str) -> str:
        folder = self.folders.get(hierarchy)
        return sysfs.text(f"{folder}/{file}") if folder else ""

    def number(self, hierarchy: str, file: str) -> int | None:
        """None for `max`, for v1's no limit, and for what is not there."""
        value = sysfs.integer(self.text(hierarchy, file))
        return value if 0 <= value < UNLIMITED else None

    def folder(self) -> str:
        """The one that all its processes are in."""
        return next((path for path in map(self.folders.get, (UNIFIED, "devices")) if path and os.path.isdir(path)), "")

    def processes(self) -> list[int]:
        """The ids of its processes, those of the cgroups below included."""
        return list(self._ids("cgroup.procs"))

    def _ids(self, file: str) -> Iterator[int]:
        top = self.folder()
        for below, *_ in os.walk(top) if top else ():
            for word in long_text(f"{below}/{file}").split():
                if word.isdecimal():
                    yield int(word)

    def _tasks(self) -> int | None:
        folder = self.folder()
        if not folder:
            return None
        return sum(1 for _ in self._ids("cgroup.threads" if folder == self.folders.get(UNIFIED) else "tasks"))

    def read(self) -> Counters:
        found = Counters()
        self._cpu(found)
        self._memory(found)
        counted = [self.number(where, "pids.current") for where in (UNIFIED, "pids")]
        found.processes = next((count for count in counted if count is not None), None)
        if found.processes is None:
            found.processes = self._tasks()
        found.processes_limit = least(self.number(where, "pids.max") for where in (UNIFIED, "pids"))
        self._io(found)
        for region, value in pairs(self.text(UNIFIED, "dmem.current")).items():
            found.dmem[region] = (value, None)
        for region, value in pairs(self.text(UNIFIED, "dmem.max")).items():
            found.dmem[region] = (found.dmem.get(region, (0, None))[0], value)
        return found

    def _cpu(self, found: Counters) -> None:
        usec = pairs(self.text(UNIFIED, "cpu.stat")).get("usage_usec")
        nsec = self.number("cpuacct", "cpuacct.usage")
        found.cpu = usec / 1e6 if usec is not None else nsec / 1e9 if nsec is not None else None
        quota, _, period = self.text(UNIFIED, "cpu.max").partition(" ")
        if not quota:
            quota, period = self.text("cpu", "cpu.cfs_quota_us"), self.text("cpu", "cpu.cfs_period_us")
        limits = [int(quota) / int(period)] if quota.isdecimal() and period.isdecimal() and int(period) else []
        cpus = count(self.text(UNIFIED, "cpuset.cpus.effective") or self.text("cpuset", "cpuset.effective_cpus"))
        online = count(sysfs.line(f"{self.root}/sys/devices/system/cpu/online"))
        if 0 < cpus < online:
            limits.append(cpus)
        found.cpu_limit = min(limits, default=None)

    def _memory(self, found: Counters) -> None:
        found.memory = self.number(UNIFIED, "memory.current")
        if found.memory is not None:
            found.memory_limit = least(self.number(UNIFIED, file) for file in ("memory.max", "memory.high"))
            found.swap = self.number(UNIFIED, "memory.swap.current")
            found.swap_limit = self.number(UNIFIED, "memory.swap.max")
            return
        found.memory = self.number("memory", "memory.usage_in_bytes")
        hard = self.number("memory", "memory.limit_in_bytes")
        found.memory_limit = least((hard, self.number("memory", "memory.soft_limit_in_bytes")))
        both = self.number("memory", "memory.memsw.usage_in_bytes")
        if both is not None and found.memory is not None:
            found.swap = max(0, both - found.memory)
            most = self.number("memory", "memory.memsw.limit_in_bytes")
            # v1 limits the sum of both
            found.swap_limit = max(0, most - hard) if most is not None and hard is not None else None

    def _io(self, found: Counters) -> None:
        folder = self.folders.get(UNIFIED, "")
        if folder and os.path.exists(f"{folder}/io.stat"):
            found.io = _io_stat(self.text(UNIFIED, "io.stat"), self._stacked)
            return
        for file in ("blkio.bfq.io_service_bytes_recursive", "blkio.throttle.io_service_bytes_recursive"):
            text = self.text("blkio", file)
            sums = _blkio(text, self._stacked)
            if text and (found.io is None or sums > found.io):
                found.io = sums

    def _stacked(self, number: str) -> bool:
        """Whether a block device is made of others: what it does is counted there."""
        folder = f"{self.root}/sys/dev/block/{number}"
        return bool(sysfs.names(f"{folder}/slaves")) or os.path.exists(f"{folder}/loop/backing_file")


def _io_stat(text: str, stacked: Callable[[str], bool]) -> tuple[int, int]:
    """`8:0 rbytes=1 wbytes=2 …` for each device."""
    sums = [0, 0]
    for row in text.split("\n"):
        number, *words = row.split()[:9] or [""]
        if words and not stacked(number):
            given = dict(word.partition("=")[::2] for word in words)
            for index, key in enumerate(("rbytes", "wbytes")):
                sums[index] += max(0, sysfs.integer(given.get(key, "")))
    return sums[0], sums[1]


def _blkio(text: str, stacked: Callable[[str], bool]) -> tuple[int, int]:
    """`8:0 Read 1` and `8:0 Write 2` for each device."""
    sums = {"Read": 0, "Write": 0}
    for row in text.split("\n"):
        words = row.split()
        if len(words) == 3 and words[1] in sums and not stacked(words[0]):
            sums[words[1]] += max(0, sysfs.integer(words[2]))
    return sums["Read"], sums["Write"]


def pairs(text: str) -> dict[str, int]:
    """`name 1` lines; those whose value is no number are left out."""
    found = {}
    for row in text.split("\n"):
        name, _, value = row.rpartition(" ")
        if name and value.isdecimal():
            found[name.strip()] = int(value)
    return found


def least(values: Iterator[int | None] | tuple[int | None, ...]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def count(cpus: str) -> int:
    """How many there are in `0-3,6`."""
    found = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found += (int(last) if last.isdecimal() else int(first)) - int(first) + 1
    return found


def process_io(pid: int, root: str = "/") -> tuple[int, int] | None:
    """Bytes that one living process has made disks read and write; None when it has ended or is not ours to ask."""
    given = pairs(sysfs.text(f"{root.rstrip('/')}/proc/{pid}/io").replace(":", ""))
    if "read_bytes" not in given or "write_bytes" not in given:
        return None
    return given["read_bytes"], given["write_bytes"]


def started(pid: int, root: str = "/") -> str:
    """When a process was started: what tells it from a later one with its number."""
    words = sysfs.text(f"{root.rstrip('/')}/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def link(pid: int, outside: str, inside: str, root: str = "/") -> tuple[int, int] | None:
    """Bytes that came in and went out by one link, as the instance sees it: its host's end has them crossed."""
    prefix = root.rstrip("/")
    folder = f"{prefix}/sys/class/net/{outside}/statistics"
    if outside and os.path.isdir(folder):
        into, out = sysfs.number(f"{folder}/tx_bytes"), sysfs.number(f"{folder}/rx_bytes")
        return (into, out) if min(into, out) >= 0 else None
    for row in sysfs.rows(f"{prefix}/proc/{pid}/net/dev"):
        name, _, numbers = row.partition(":")
        words = numbers.split()
        if name.strip() == inside and len(words) > 8:
            return sysfs.integer(words[0], 0), sysfs.integer(words[8], 0)
    return None


def long_text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
