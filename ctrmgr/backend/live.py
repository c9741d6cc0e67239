# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of an instance that is running. Cold."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.backend.limits import ignored
from ctrmgr.errors import HelperError, HostError
from ctrmgr.host import cgroup
from ctrmgr.host.machine import Host
from ctrmgr.kernel import control, spawn
from ctrmgr.plan import limits, link_limits, oom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = Sequence[Sequence[str]]


def hierarchies(name: str) -> set[str]:
    """Where a running instance has cgroups: in cgroup2, and in the v1 hierarchies that it has, or had, limits in."""
    _, init, _, _ = control.ask(record.run_home(name), control.STATUS).status()
    found = {"unified"}
    try:
        with open(f"/proc/{init}/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if f"/{state.cgroup_parent()}/{name}/" in path + "/":
                    found.update(controllers.split(","))
    except OSError:
        pass  # it has ended: then all waits for its next start
    return found


def change_limits(name: str, old: Rows, new: Rows) -> list[str]:
    """Take a running instance from the limits of one plan to those of another, or leave it with the old ones. Returns which ones wait for
    its next start, and why: the first limit in a v1 hierarchy has the monitor join it, which is not always done.

    Raises HostError.
    """
    host, joined = Host(), hierarchies(name)
    first = {(row[0], row[1]) for row in limits.files(new)}
    wanted = [row for row in limits.changes(old, new, host) if row[1] in joined or (row[1], row[2]) in first]
    try:
        waits = _write(name, wanted, joined)
        _gpus(name, old, new)
        _shape(name, old, new)
    except HostError:
        joined = hierarchies(name)
        for _, hierarchy, file, value in limits.changes(new, old, host):
            if hierarchy in joined:
                ask(name, hierarchy, file, value)  # what has refused the new one may refuse this, too
        _gpus(name, new, old)
        raise
    return waits


def _gpus(name: str, old: Rows, new: Rows) -> None:
    if any(row[0] == "gpu-limit" for row in (*old, *new)):
        from ctrmgr.backend import gpu_limits

        gpu_limits.change(name, old, new)


def _shape(name: str, old: Rows, new: Rows) -> None:
    for words in link_limits.changes(old, new):
        try:
            spawn.run("ctrmgr-net", words)
        except HelperError as error:
            raise HostError(f"`{name}`: {error.message}", hint="the limits are as they were") from None


def change_parameters(name: str, old: Rows, new: Rows) -> set[str]:
    """Set the kernel parameters, resource limits and OOM priority of a running instance that the plans have otherwise, or leave all as they were;
    returns those that wait for its next start: what was taken away, whose first value nobody knows, a limit that only the start can
    raise, and all with a monitor that is an older one.

    Raises SpecError for what the kernel refuses.
    """
    before, after = _parameters(old), _parameters(new)
    if (control.OOM, oom.KEY) in before:
        after.setdefault((control.OOM, oom.KEY), "")  # again what whoever started it had
    waits = {path for _, path in set(before) - set(after)}
    done: list[tuple[int, str, str]] = []
    for (op, path), value in after.items():
        if before.get((op, path)) == value:
            continue
        reply = control.ask(record.run_home(name), op, path=path, value=value)
        if not reply.error:
            done.append((op, path, reply.detail))
        elif (reply.error == errno.ENOSYS and not reply.step.startswith("set ")) or (
            (op, reply.error) in ((control.RLIMIT, errno.EPERM), (control.OOM, errno.EACCES))
        ):
            waits.add(path)
        else:
            for earlier, which, was in reversed(done):
                control.ask(record.run_home(name), earlier, path=which, value=was)
            raise control.failure(name, reply.step, reply.detail, reply.error)
    return waits


def _parameters(plan: Rows) -> dict[tuple[int, str], str]:
    """What the monitor is asked to set, and to what. Resource limits last: what they lower not everybody may raise again."""
    found = {(control.SYSCTL, row[1]): row[2] for row in plan if row[0] == "sysctl"}
    for row in plan:
        if row[0] == oom.ROW:
            found[control.OOM, oom.KEY] = row[1]
    return found | {(control.RLIMIT, row[1]): f"{row[2]}:{row[3]}" for row in plan if row[0] == "rlimit"}


def ask(name: str, hierarchy: str, file: str, value: str) -> control.Reply:
    """Have the monitor set a limit; in a v1 hierarchy that the instance is not in it joins that first, or replies ENOENT and why not."""
    reply = control.ask(record.run_home(name), control.LIMIT, name=hierarchy, path=file, value=value)
    mount = cgroup.read().v1.get(hierarchy)
    if reply.error != errno.ENOENT or not mount:
        return reply
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return control.ask(record.run_home(name), control.LIMIT, name=hierarchy, path=file, value=value, fd=fd)
    finally:
        os.close(fd)


WHY = {
    errno.EINVAL: "the file does not take that value here:",
    errno.ENODEV: "there is no such device:",
    errno.ENOENT: "this kernel has no such file:",
    errno.ERANGE: "the file does not take that value:",
}


def _write(name: str, rows: Rows, joined: set[str]) -> list[str]:
    waits = []
    for _, hierarchy, file, value in rows:
        reply = ask(name, hierarchy, file, value)
        if reply.error == errno.ENOENT and hierarchy not in joined:
            waits.append(
                f"`{file}` = {value} waits for the next start: it has no cgroup in the v1 hierarchy `{hierarchy}`, and does not "
                f"get one while it runs: {reply.detail}"
            )
        elif reply.error:
            raise HostError(
                f"`{name}`: the kernel refuses `{file}` = `{value}`: {os.strerror(reply.error)}",
                hint=f"{WHY.get(reply.error, 'does it use more than that already?')} the limits are as they were",
            )
        elif file == "dmem.max":
            ignored(name, hierarchy, file, value)
    return waits
