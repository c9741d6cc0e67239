# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's own keys and devices changed: compiled anew, recorded, and what is live applied now. Cold."""

from __future__ import annotations

import os
from contextlib import contextmanager

from ctrmgr import state
from ctrmgr.backend import record, repair
from ctrmgr.backend.devices import lock
from ctrmgr.backend.repair import crash
from ctrmgr.errors import HostError
from ctrmgr.host.machine import Host
from ctrmgr.images import store
from ctrmgr.kernel import control
from ctrmgr.plan import compile, limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Rows = Sequence[Sequence[str]]


@contextmanager
def opened(name: str) -> Iterator[record.Record]:
    """The record of an instance that nobody else changes meanwhile. Raises NotFoundError, SpecError."""
    with lock(name):
        repair.instance(name)
        yield record.Record(name)


def compiled(own: record.Record) -> list[list[str]]:
    """The plan that follows from the record as it is now. Raises SpecError, UnsupportedError, ConflictError."""
    return compile.recompile(own.name, store.load(own.image), own.profiles, own.config, own.devices, own.plan())


def apply(own: record.Record) -> bool:
    """Put the record and its plan in place; the caller holds the instance's lock.

    True when a running instance will only see all of it at its next start. Raises what `compiled` does, and HostError when
    the kernel refuses a limit: then nothing has changed.
    """
    old, new = own.plan(), compiled(own)
    joined = hierarchies(own.name) if record.is_running(own.name) else None
    record.stage(own, new)
    crash("config-recorded")
    try:
        if joined:
            change_limits(own.name, old, new)
    except BaseException:
        record.drop(own.path)
        raise
    crash("config-done")
    record.finish(own.path)
    return joined is not None and _at_start(old, joined) != _at_start(new, joined)


def _at_start(plan: Rows, joined: set[str]) -> list[Sequence[str]]:
    """The rows that a running instance does not follow."""
    return [row for row in plan if row[0] != "cgroup-file" or row[1] not in joined]


def hierarchies(name: str) -> set[str]:
    """Where a running instance has cgroups: in cgroup2, and in the v1 hierarchies that it began with limits in.

    It is not moved into others: joining is slow, and memory that is charged elsewhere would stay so.
    """
    _, init, _, _ = control.ask(record.run_home(name), control.STATUS).status()
    found = {"unified"}
    try:
        with open(f"/proc/{init}/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if f"/{state.cgroup_parent()}/{name}" in path:
                    found.update(controllers.split(","))
    except OSError:
        pass  # it has ended: then all waits for its next start
    return found


def change_limits(name: str, old: Rows, new: Rows) -> None:
    """Take a running instance from the limits of one plan to those of another, or leave it with the old ones.

    Raises HostError.
    """
    host, joined = Host(), hierarchies(name)
    wanted = [row for row in limits.changes(old, new, host) if row[1] in joined]
    try:
        _write(name, wanted)
    except HostError:
        _write(name, [row for row in limits.changes(new, old, host) if row[1] in joined])
        raise


def _write(name: str, rows: Rows) -> None:
    for _, hierarchy, file, value in rows:
        reply = control.ask(record.run_home(name), control.LIMIT, name=hierarchy, path=file, value=value)
        if reply.error:
            raise HostError(
                f"`{name}`: the kernel refuses `{file}` = `{value}`: {os.strerror(reply.error)}",
                hint="does it use more than that already? the limits are as they were",
            )
