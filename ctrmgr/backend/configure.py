# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's own keys and devices changed: compiled anew, recorded, and what is live applied now. Cold."""

from __future__ import annotations

from contextlib import contextmanager

from ctrmgr.backend import allocations, guarantees, leases, limits, live, placement, record, repair
from ctrmgr.backend.record import crash
from ctrmgr.host.machine import Host
from ctrmgr.images import store
from ctrmgr.kernel import control
from ctrmgr.plan import compile, numa

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Rows = Sequence[Sequence[str]]


@contextmanager
def opened(name: str) -> Iterator[record.Record]:
    """The record of an instance that nobody else changes meanwhile. Raises NotFoundError, SpecError."""
    with record.lock(name):
        repair.instance(name)
        yield record.Record(name)


def compiled(own: record.Record) -> list[list[str]]:
    """The plan that follows from the record as it is now. Raises SpecError, UnsupportedError, ConflictError."""
    leases.tell(own.name)
    old = own.plan()
    rows = compile.recompile(own.name, store.load(own.image), own.profiles, own.config, own.devices, old)
    rows = allocations.with_rows(own.name, rows)
    if any(row[0] == numa.FOLLOWS for row in rows):
        rows = placement.followed(own.name, rows, Host(), placement.has(own.name, rows), old)
    return rows


def apply(own: record.Record, say: Callable[[str], None] = lambda text: None) -> bool:
    """Put the record and its plan in place; the caller holds the instance's lock. `say` hears what the kernel does about
    limits that are below what is in use, and why one waits for the next start.

    True when a running instance will only see all of it at its next start. Raises what `compiled` does, and HostError when
    the kernel refuses a limit: then nothing has changed.
    """
    old, new = own.plan(), compiled(own)
    joined = live.hierarchies(own.name) if record.is_running(own.name) else None
    waits: set[str] = set()
    past = _moved_past(own, new) if joined else []
    record.stage(own, new)
    crash("config-recorded")
    try:
        if joined:
            below = list(limits.below_use(old, new))
            with guarantees.promised(own.name, old, new):
                below += live.change_limits(own.name, old, new)
                joined = live.hierarchies(own.name)
                try:
                    waits = live.change_parameters(own.name, old, new)
                except BaseException:
                    live.change_limits(own.name, new, old)
                    raise
            for text in (*below, *past):
                say(text)
    except BaseException:
        record.drop(own.path)
        raise
    crash("config-done")
    record.finish(own.path)
    for reason in limits.left_out(new):
        if reason not in limits.left_out(old):
            say(reason)
    return joined is not None and (bool(waits) or _at_start(old, joined) != _at_start(new, joined))


def _moved_past(own: record.Record, plan: Rows) -> list[str]:
    """Why limits of its link are not in force on links of the host's that it has for this run only. Raises UnsupportedError."""
    parts = control.ask(record.run_home(own.name), control.DEVICES).devices()
    there = {row[1] for row in plan if row[0] == "netdev"}
    rows = [["netdev", part.name, part.user] for part in parts if part.kind == "netdev" and part.name not in there]
    return [row[3] for row in limits.moved_past(own, plan, rows)]


def _at_start(plan: Rows, joined: set[str]) -> list[list[str]]:
    """The rows that a running instance does not follow, sorted: those of an attached device stand last until all is compiled again."""
    where = {"cgroup-file": 1, "device-limit": 2}
    live = (
        "link-limit",
        "gpu-limit",
        "gpu-default",
        "sysctl",
        "rlimit",
        "oom-score-adj",
        "follows-devices",
        "left-out",
    )
    return sorted(
        [*row]
        for row in plan
        if row[0] not in live
        and (row[0] not in where or row[where[row[0]]] not in joined)
        and not (row[0] == "lease" and row[3].startswith(leases.KEEPS))
        and not (row[0] == "identity" and row[2].endswith(("/numa_node", "/dev")))  # come and go with limits
        and row != placement.AGAIN
    )
