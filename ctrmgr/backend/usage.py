# SPDX-License-Identifier: GPL-3.0-or-later
"""What running instances use, sample by sample, against what they may. Cold.

A rate is the difference of two readings, so the first sample of an instance has none; what the host cannot tell is None.
"""

from __future__ import annotations

import os
import time

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.errors import CtrmgrError
from ctrmgr.host import cgroup, counters, drm
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.kernel import nvml

    Values = dict[str, float | None]

METRICS = {
    "cpu": "%",
    "memory": "B",
    "swap": "B",
    "processes": "",
    "io-read": "B/s",
    "io-write": "B/s",
    "network-in": "B/s",
    "network-out": "B/s",
    "gpu-use": "%",
    "gpu-memory": "B",
}
"""What is sampled, with its unit. Per cents are of one CPU, and of one GPU's busiest engine."""
LIMITED = ("cpu", "memory", "swap", "processes", "gpu-memory")
"""Those that may have a limit, as `…-limit`."""
FIELDS = tuple(field for name in METRICS if not name.startswith("gpu")
               for field in ((name, f"{name}-limit") if name in LIMITED else (name,)))  # fmt: skip
GPU_FIELDS = ("gpu-use", "gpu-memory", "gpu-memory-limit")
PATIENCE = 0.5
"""Seconds that a monitor has to say which devices its instance has."""


class Usage:
    """One sample of one instance: `values` by FIELDS, and for each GPU by its address (or name) those by GPU_FIELDS."""

    __slots__ = ("gpus", "name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: Values = dict.fromkeys(FIELDS)
        self.gpus: dict[str, Values] = {}

    def fields(self) -> dict[str, object]:
        """Plain data; whole numbers are whole."""
        return {
            "name": self.name,
            **{key: plain(value) for key, value in self.values.items()},
            "gpus": [
                {"gpu": gpu, "use": plain(given["gpu-use"]), "memory": plain(given["gpu-memory"]),
                 "memory-limit": plain(given["gpu-memory-limit"])}
                for gpu, given in self.gpus.items()
            ],
        }  # fmt: skip


def plain(value: float | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else round(value, 1)


class Reading:
    """The counters of one instance at one moment. `birth` tells a run of it from the next."""

    __slots__ = ("birth", "clients", "counters", "io", "links", "nvidia", "when")

    def __init__(self, birth: int) -> None:
        self.birth = birth
        self.when = 0.0
        self.counters = counters.Counters()
        self.clients: dict[tuple[str, str], drm.Client] = {}
        self.io: dict[tuple[int, str], tuple[int, int]] = {}
        self.links: dict[str, tuple[int, int]] = {}
        self.nvidia: dict[str, nvml.Limits] = {}
        """What NVIDIA's driver counts for the instance, by the GPU's address."""


class Plan:
    """Of an instance's plan: the cgroup's path, the links by their names outside and inside, the limits by NVIDIA's driver."""

    __slots__ = ("cgroup", "limits", "links")

    def __init__(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        self.cgroup = next((row[1] for row in rows if row[0] == "cgroup"), f"{state.cgroup_parent()}/{name}")
        self.links = [(row[2], row[3]) for row in rows if row[0] == "link"]
        self.limits = [row for row in rows if row[0] == "gpu-limit" and row[3] == "nvml"]


class Sampler:
    """Call `sample` as often as wanted: each gives what was used since the one before."""

    __slots__ = ("_before", "_mounts", "_plans")

    def __init__(self) -> None:
        host = cgroup.read()
        self._mounts = {**host.v1, **({cgroup.UNIFIED: host.unified} if host.unified else {})}
        self._before: dict[str, Reading] = {}
        self._plans: dict[str, tuple[int, Plan]] = {}

    def sample(self, wanted: Sequence[str] = ()) -> list[Usage]:
        """All running instances, or those of `wanted` that run, by name. Raises NotFoundError for one that is not there."""
        found = []
        before, self._before = self._before, {}
        for name in sorted(set(map(record.check_name, wanted))) or record.names():
            if not record.is_running(name):
                if wanted and not os.path.isdir(record.home(name)):
                    raise record.unknown(name)
                continue
            try:
                now = self._read(name)
            except CtrmgrError:
                continue  # damaged, or ended since: it must not hide the others
            if now is None:
                continue
            self._before[name] = now
            earlier = before.get(name)
            found.append(usage(name, earlier if earlier and earlier.birth == now.birth else None, now))
        return found

    def _plan(self, name: str) -> Plan:
        """Read again only when it has changed."""
        try:
            stamp = os.stat(f"{record.home(name)}/plan").st_mtime_ns
        except OSError:
            stamp = 0
        known = self._plans.get(name)
        if known is None or known[0] != stamp:
            rows = record.read_plan(record.home(name))
            known = self._plans[name] = (stamp, Plan(name, rows))
        return known[1]

    def _read(self, name: str) -> Reading | None:
        plan = self._plan(name)
        group = counters.Cgroup({hierarchy: f"{mount}/{plan.cgroup}" for hierarchy, mount in self._mounts.items()})
        try:
            now = Reading(os.stat(group.folder()).st_ino)
        except OSError:
            return None  # it has ended since
        run = record.run_home(name)
        _, init, _, _ = control.ask(run, control.STATUS, timeout=PATIENCE).status()
        now.when = time.monotonic()
        now.counters = group.read()
        for outside, inside in plan.links:
            moved = counters.link(init, outside, inside)
            if moved:
                now.links[inside] = moved
        pids = None
        if now.counters.io is None:
            pids = group.processes()
            for pid in pids:
                done = counters.process_io(pid)
                if done:
                    now.io[pid, counters.started(pid)] = done
        if _has_gpu(run):
            now.clients = drm.clients(group.processes() if pids is None else pids)
        if plan.limits:
            from ctrmgr.backend import gpu_limits

            now.nvidia = gpu_limits.used([["cgroup", plan.cgroup], *plan.limits])
        return now


def _has_gpu(run: str) -> bool:
    """Looking through all descriptors of all processes is dear: only where a device gives reason to."""
    devices = control.ask(run, control.DEVICES, timeout=PATIENCE).devices()
    majors = drm.majors()
    return any(device.kind == "char" and device.major in majors for device in devices)


def usage(name: str, before: Reading | None, now: Reading) -> Usage:
    """The sample between two readings."""
    found = Usage(name)
    values, read = found.values, now.counters
    values["cpu-limit"] = None if read.cpu_limit is None else 100.0 * read.cpu_limit
    for key, value in (
        ("memory", read.memory),
        ("memory-limit", read.memory_limit),
        ("swap", read.swap),
        ("swap-limit", read.swap_limit),
        ("processes", read.processes),
        ("processes-limit", read.processes_limit),
    ):
        values[key] = value
    if before is not None and now.when > before.when:
        seconds = now.when - before.when
        if read.cpu is not None and before.counters.cpu is not None:
            values["cpu"] = max(0.0, 100.0 * (read.cpu - before.counters.cpu) / seconds)
        _rates(values, ("io-read", "io-write"), _moved(before, now), seconds)
        common = [link for link in now.links if link in before.links]
        if common:
            into, out = (sum(now.links[link][end] - before.links[link][end] for link in common) for end in (0, 1))
            _rates(values, ("network-in", "network-out"), (into, out), seconds)
    _gpus(found, before, now)
    return found


def _rates(values: Values, names: tuple[str, str], moved: tuple[int, int] | None, seconds: float) -> None:
    if moved is not None and min(moved) >= 0:
        for name, count in zip(names, moved, strict=True):
            values[name] = count / seconds


def _moved(before: Reading, now: Reading) -> tuple[int, int] | None:
    """Bytes read and written between two readings. Where no controller counts them, by the processes that were there both
    times, and by those that are new."""
    if now.counters.io is not None:
        earlier = before.counters.io
        return (now.counters.io[0] - earlier[0], now.counters.io[1] - earlier[1]) if earlier else None
    if not now.io:
        return None
    none = (0, 0)
    read = sum(done[0] - before.io.get(process, none)[0] for process, done in now.io.items())
    written = sum(done[1] - before.io.get(process, none)[1] for process, done in now.io.items())
    return read, written


def _gpus(usage: Usage, before: Reading | None, now: Reading) -> None:
    """Use of a GPU is that of its busiest engine. Memory is what the kernel charges to the instance, and where it does not,
    what its clients say."""
    used: dict[str, int] = {}
    engines: dict[str, dict[str, float]] = {}
    for key, client in now.clients.items():
        values = usage.gpus.setdefault(client.device, dict.fromkeys(GPU_FIELDS))
        size = client.used()
        if size is not None:
            used[client.device] = used.get(client.device, 0) + size
            values["gpu-memory"] = used[client.device]
        earlier = before.clients.get(key) if before else None
        if before is None or earlier is None:
            continue
        sums = engines.setdefault(client.device, {})
        for engine, part in drm.busy(earlier, client, now.when - before.when).items():
            sums[engine] = min(100.0, sums.get(engine, 0.0) + part)
            values["gpu-use"] = max(sums.values())
    for device, own in now.nvidia.items():
        values = usage.gpus.setdefault(device, dict.fromkeys(GPU_FIELDS))
        values["gpu-memory"], values["gpu-memory-limit"] = own.used, own.hard
    charged: dict[str, list[tuple[int, int | None]]] = {}
    for region, given in now.counters.dmem.items():
        if region.startswith("drm/"):
            charged.setdefault(region.split("/")[1], []).append(given)
    for device, regions in charged.items():
        if device not in usage.gpus and not any(size or limit is not None for size, limit in regions):
            continue  # the file names every region of the machine
        values = usage.gpus.setdefault(device, dict.fromkeys(GPU_FIELDS))
        values["gpu-memory"] = sum(size for size, _ in regions)
        limits = [limit for _, limit in regions]
        values["gpu-memory-limit"] = None if None in limits else sum(limit for limit in limits if limit is not None)


ORDERS = {"name": (), "cpu": ("cpu",), "memory": ("memory",), "swap": ("swap",), "processes": ("processes",),
          "io": ("io-read", "io-write"), "network": ("network-in", "network-out"), "gpu": ("gpu-use",),
          "gpu-memory": ("gpu-memory",)}  # fmt: skip


def ordered(found: Sequence[Usage], order: str) -> list[Usage]:
    """By name, or most first; what is not known comes last."""

    def weight(usage: Usage) -> tuple[float, str]:
        return (-_weight(usage, ORDERS[order]), usage.name)

    return sorted(found, key=weight)


def _weight(usage: Usage, names: Sequence[str]) -> float:
    given: list[float | None] = [usage.values.get(name) for name in names]
    given += [values.get(name) for values in usage.gpus.values() for name in names]
    known = [value for value in given if value is not None]
    return sum(known) if known else -1.0
