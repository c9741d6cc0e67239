# SPDX-License-Identifier: GPL-3.0-or-later
"""Finishing or undoing what a killed command or monitor left (`docs/concepts/design.md`, "Crash only"). Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import leases, record
from ctrmgr.errors import ConflictError, CtrmgrError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CLAIMS = ("ids", "addresses")
ANEW = "device-as-it-was"
"""In an instance's directory while a device of it is taken and given anew with other keys."""


def crash(step: str) -> None:
    """Die here when a test asks for it by `CTRMGR_CRASH_AT`: a command must be killable between any two steps."""
    if os.environ.get("CTRMGR_CRASH_AT") == step:
        os.kill(os.getpid(), 9)


def sweep() -> None:
    """Remove instances that were being made or deleted by a command that is dead."""
    folder = record.instances_dir()
    for name in [name for name in state.entries(folder) if name[0] == "."]:
        path = f"{folder}/{name}"
        try:
            with state.Lock(path, wait=False):
                owner = name.partition("-")[2]
                if not os.path.exists(record.home(owner)):
                    release(owner)
                remove_tree(path)
        except (ConflictError, FileNotFoundError, NotADirectoryError):
            pass  # somebody is at it, or it is none of ours
    if state.entries(f"{state.state_dir()}/allocations"):
        from ctrmgr.backend import allocations

        allocations.sweep()


def has_allocations(name: str) -> bool:
    """Whether something was chosen for an instance: then it is worth it to import `backend/allocations.py`."""
    return any(entry.startswith(f"{name}.") for entry in state.entries(f"{state.state_dir()}/allocations"))


def lift(name: str, plan: Sequence[Sequence[str]], device: str) -> None:
    """Take back the limits of a device that has gone."""
    noted = os.path.exists(record.notes(name))
    if noted or any(row[0] in ("device-limit", "gpu-limit") for row in plan):
        from ctrmgr.backend import device_limits

        device_limits.lift(name, device_limits.alone([*plan, *device_limits.noted(name)], device))
        if noted:
            device_limits.forget(name, device)
    guids(name, running=True)


def guids(name: str, *, running: bool) -> None:
    """Put back what virtual functions had that the instance has no more."""
    if state.entries(f"{state.run_dir()}/.guids"):
        from ctrmgr.backend import guids

        guids.mend(name, running=running)


def release(owner: str) -> None:
    """Give back all that `owner` has claimed."""
    if has_allocations(owner):
        from ctrmgr.backend import allocations

        allocations.forget(owner)
    for kind in CLAIMS:
        state.release(kind, owner)


def instance(name: str) -> bool:
    """Mend one instance, whose lock the caller holds. Returns whether it runs."""
    path, run = record.home(name), record.run_home(name)
    there = state.entries(path)
    if "rename" in there:
        from ctrmgr.backend import unfinished

        unfinished.rename(path)
    if os.path.exists(f"{state.run_dir()}/.hooks/{name}"):
        from ctrmgr.backend import host_hooks

        host_hooks.mend(name, running=record.is_running(name))
    if "restore" in there:
        from ctrmgr.backend import snapshots

        snapshots.finish(path)
    running = record.is_running(name)
    if "config.new" in there or "plan.new" in there or any(map(state.has_tail, (f"{path}/config", f"{path}/plan"))):
        from ctrmgr.backend import unfinished

        unfinished.change(path, run, running)
    if not running:
        if os.path.exists(run):
            end_run(name)
        restore(name)
    elif os.path.exists(record.notes(name)):
        from ctrmgr.backend import device_limits

        device_limits.mend(name, record.read_plan(path))
    guids(name, running=running)
    if has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.mend(name, running=running)
    if ANEW in there:
        from ctrmgr.backend import device_keys

        device_keys.go_on(name)
    return running


def restore(name: str) -> None:
    """Put back what was changed of GPUs for a run that is over, and run what the hooks of its devices left to be run."""
    if os.path.exists(f"{state.run_dir()}/.hooks/{name}"):
        from ctrmgr.backend import host_hooks

        host_hooks.ended(name)
    if os.path.exists(f"{state.run_dir()}/.gpu/{name}"):
        from ctrmgr.backend import gpu_limits

        gpu_limits.restore(name)
    state.unlink(record.notes(name))


def end_run(name: str) -> None:
    """Kill and remove what a dead monitor left: its cgroups, its leases, its run directory."""
    run = record.run_home(name)
    if os.path.exists(f"{run}/state"):
        from ctrmgr.backend import unfinished

        report = unfinished.clean(name, run)
        if report.error:
            raise control.failure(name, report.step, report.detail, report.error)
    leases.release(name)
    for file in ("control", "state"):
        state.unlink(f"{run}/{file}")
    try:
        os.rmdir(run)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CtrmgrError(
            f"`{run}` cannot be removed: {error.strerror}", hint="what is in it is not ctrmgr's"
        ) from error


def remove_tree(path: str) -> None:
    """Remove a directory and all below it. Symlinks are removed, not followed. Raises HostError."""
    try:
        _empty(path)
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise state.unwritable(path, error) from error


def _empty(path: str) -> None:
    # By descriptors: an instance may have made paths longer than PATH_MAX.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    stack = [(fd, "")]
    try:
        while stack:
            fd, _ = stack[-1]
            below = None
            with os.scandir(fd) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                        continue
                    try:
                        os.rmdir(entry.name, dir_fd=fd)
                    except OSError:
                        below = entry.name
                        break
            if below is not None:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                stack.append((os.open(below, flags, dir_fd=fd), below))
                continue
            fd, name = stack.pop()
            os.close(fd)
            if stack:
                os.rmdir(name, dir_fd=stack[-1][0])
    finally:
        for fd, _ in stack:
            os.close(fd)
