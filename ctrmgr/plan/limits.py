# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits → files of the hierarchy that really has the controller. The seam for the full model: one function per group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ctrmgr.errors import HostError, SpecError, UnsupportedError
from ctrmgr.host.cgroup import UNIFIED
from ctrmgr.host.machine import Host
from ctrmgr.spec import values

Rows = Iterator[list[str]]

PERIOD = 100
"""Milliseconds: the kernel's own default."""


def rows(config: Mapping[str, str], host: Host) -> list[list[str]]:
    """`cgroup-file` rows, a `@cpus` row, and an `@ignored` row for each key left out by `limits.enforcement: best-effort`.

    Raises UnsupportedError naming the key when this host has nothing to enforce it with.
    """
    best_effort = config.get("limits.enforcement") == "best-effort"
    found: list[list[str]] = []
    for keys, function in GROUPS.items():
        given = [key for key in keys if key in config]
        if not given:
            continue
        try:
            found += function(config, host)
        except UnsupportedError as error:
            if not best_effort:
                raise
            found.append(["@ignored", given[0], error.message])
    return found


def _where(key: str, controller: str, host: Host) -> str:
    hierarchy = host.cgroups.where(controller)
    if not hierarchy:
        delegated = (
            "was not delegated to you"
            if not host.privileged
            else f"is in no hierarchy of this host ({host.cgroups.layout})"
        )
        raise UnsupportedError(
            f"`{key}` cannot be enforced here: the `{controller}` controller {delegated}",
            hint="`limits.enforcement: best-effort` goes on without it",
        )
    return hierarchy


def _file(hierarchy: str, name: str, value: object) -> list[str]:
    return ["cgroup-file", hierarchy, name, str(value)]


def _cpus(config: Mapping[str, str], host: Host) -> Rows:
    value = config["limits.cpu"]
    hierarchy = _where("limits.cpu", "cpuset", host)
    online = host.cpus
    if hierarchy != UNIFIED:
        # A v1 cpuset takes no process before it has memory nodes.
        yield _file(hierarchy, "cpuset.mems", host.cgroup_text(host.cgroups.v1[hierarchy], "cpuset.mems") or "0")
    if value.isdecimal():
        if int(value) > len(online):
            raise HostError(f"`limits.cpu`: this host has {len(online)} CPUs, not {value}")
        # Which ones is chosen for each instance, in turn: see instance.fill.
        yield ["@cpus", value, hierarchy, ",".join(map(str, online))]
        return
    missing = [cpu for cpu in values.expand_cpus(value) if cpu not in online]
    if missing:
        raise HostError(f"`limits.cpu`: this host has no CPU {missing[0]} that is online")
    yield _file(hierarchy, "cpuset.cpus", value)


def _cpu_time(config: Mapping[str, str], host: Host) -> Rows:
    allowance = config.get("limits.cpu.allowance", "100%")
    key = "limits.cpu.allowance" if "limits.cpu.allowance" in config else "limits.cpu.priority"
    hierarchy = _where(key, "cpu", host)
    percent = int(allowance[:-1]) if allowance.endswith("%") else 100
    # As LXD has it: the priority only decides between equal shares.
    less = 10 - int(config.get("limits.cpu.priority", "10"))
    if hierarchy == UNIFIED:
        yield _file(hierarchy, "cpu.weight", max(1, percent - less))
    else:
        yield _file(hierarchy, "cpu.shares", max(2, percent * 1024 // 100 - less))
    if not allowance.endswith("%"):
        used, whole = (values.milliseconds(part) * 1000 for part in allowance.split("/"))
        if hierarchy == UNIFIED:
            yield _file(hierarchy, "cpu.max", f"{used} {whole}")
        else:
            yield _file(hierarchy, "cpu.cfs_period_us", whole)
            yield _file(hierarchy, "cpu.cfs_quota_us", used)


def memory_bytes(value: str, host: Host) -> int:
    """Bytes of a size, or of a percentage of the host's."""
    return host.memory * int(value[:-1]) // 100 if value.endswith("%") else values.size_bytes(value)


def _memory(config: Mapping[str, str], host: Host) -> Rows:
    key = "limits.memory" if "limits.memory" in config else "limits.memory.swap"
    hierarchy = _where(key, "memory", host)
    limit = memory_bytes(config["limits.memory"], host) if "limits.memory" in config else 0
    soft = config.get("limits.memory.enforce") == "soft"
    v2 = hierarchy == UNIFIED
    if limit:
        names = ("memory.high", "memory.max") if v2 else ("memory.soft_limit_in_bytes", "memory.limit_in_bytes")
        yield _file(hierarchy, names[0 if soft else 1], limit)
    swap = config.get("limits.memory.swap", "true")
    if swap == "true":
        return
    extra = 0 if swap == "false" else values.size_bytes(swap)
    if v2:
        yield _file(hierarchy, "memory.swap.max", extra)
        return
    if extra == 0:
        # Enough by itself, and it needs no swap accounting.
        yield _file(hierarchy, "memory.swappiness", 0)
    if limit and not soft:
        yield from _memsw(limit + extra, extra, hierarchy, host)
    elif extra:
        raise SpecError(
            "`limits.memory.swap`: a size needs a hard `limits.memory` here: cgroup v1 limits the sum of both"
        )


def _memsw(total: int, extra: int, hierarchy: str, host: Host) -> Rows:
    name = "memory.memsw.limit_in_bytes"
    if host.has_file(host.cgroups.v1[hierarchy], name):
        yield _file(hierarchy, name, total)
    elif extra:
        raise UnsupportedError(
            "`limits.memory.swap` cannot be enforced here: this kernel does not count swap",
            hint="boot with `swapaccount=1`, or say `limits.enforcement: best-effort`",
        )


def _processes(config: Mapping[str, str], host: Host) -> Rows:
    yield _file(_where("limits.processes", "pids", host), "pids.max", config["limits.processes"])


def _disk(config: Mapping[str, str], host: Host) -> Rows:
    key = "limits.disk.priority"
    v1 = "blkio" in host.cgroups.v1
    hierarchy = _where(key, "blkio" if v1 else "io", host)
    mount = host.cgroups.v1["blkio"] if v1 else host.cgroups.unified
    names = ("blkio.bfq.weight", "blkio.weight") if v1 else ("io.bfq.weight", "io.weight")
    for name in names:
        if host.has_file(mount, name):
            # 0 … 10 over the weights that both schedulers take.
            yield _file(hierarchy, name, max(10, int(config[key]) * 100))
            return
    raise UnsupportedError(
        f"`{key}` cannot be enforced here: no block scheduler with weights (bfq, or io.cost) is in use",
        hint="`limits.enforcement: best-effort` goes on without it",
    )


GROUPS: dict[tuple[str, ...], Callable[[Mapping[str, str], Host], Rows]] = {
    ("limits.cpu",): _cpus,
    ("limits.cpu.allowance", "limits.cpu.priority"): _cpu_time,
    ("limits.memory", "limits.memory.swap"): _memory,
    ("limits.processes",): _processes,
    ("limits.disk.priority",): _disk,
}

UNLIMITED = {
    "cpu.weight": "100", "cpu.shares": "1024", "cpu.max": "max 100000", "cpu.cfs_quota_us": "-1",
    "cpu.cfs_period_us": "100000", "memory.max": "max", "memory.high": "max", "memory.swap.max": "max",
    "memory.limit_in_bytes": "-1", "memory.soft_limit_in_bytes": "-1", "memory.memsw.limit_in_bytes": "-1",
    "memory.swappiness": "60", "pids.max": "max", "io.weight": "100", "io.bfq.weight": "100", "blkio.weight": "500",
    "blkio.bfq.weight": "100",
}  # fmt: skip
"""File → what it says in a cgroup without a limit."""


def changes(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]], host: Host) -> list[list[str]]:
    """The `cgroup-file` rows that take a running instance from the plan `old` to `new`, in an order that the kernel takes."""
    before, after = _files(old), _files(new)
    found: list[list[str]] = []
    for (hierarchy, name), value in before.items():
        if (hierarchy, name) in after:
            continue
        if name == "cpuset.cpus":
            value = ",".join(map(str, host.cpus))
        elif name != "cpuset.mems":
            value = UNLIMITED[name]
        found.append(_file(hierarchy, name, value))
    changed = [_file(*key, value) for key, value in after.items() if before.get(key) != value]
    order = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    if any(row[2] == order[1] and _grows(before, row) for row in (*found, *changed)):
        # v1: the sum may never be below the memory alone, so it must grow first.
        order.reverse()
    return sorted((*found, *changed), key=lambda row: order.index(row[2]) if row[2] in order else -1)


def _grows(before: Mapping[tuple[str, str], str], row: Sequence[str]) -> bool:
    old = int(before.get((row[1], row[2]), "-1"))
    new = int(row[3])
    return old != -1 and (new == -1 or new > old)


def _files(plan: Sequence[Sequence[str]]) -> dict[tuple[str, str], str]:
    return {(row[1], row[2]): row[3] for row in plan if row[0] == "cgroup-file"}
