# SPDX-License-Identifier: GPL-3.0-or-later
"""Finishing or undoing what a killed command or monitor left (`docs/concepts/design.md`, "Crash only"). Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import ended, record
from ctrmgr.errors import ConflictError


def sweep() -> None:
    """Remove instances that were being made or deleted by a command that is dead."""
    folder = record.instances_dir()
    for name in [name for name in state.entries(folder) if name[0] == "."]:
        path = f"{folder}/{name}"
        try:
            with state.Lock(path, wait=False):
                owner = name.partition("-")[2]
                if not os.path.exists(record.home(owner)):
                    ended.release(owner)
                record.remove_tree(path)
        except (ConflictError, FileNotFoundError, NotADirectoryError):
            pass  # somebody is at it, or it is none of ours
    if state.entries(f"{state.state_dir()}/allocations"):
        from ctrmgr.backend import allocations

        allocations.sweep()


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
        from ctrmgr.backend import restoring

        restoring.finish(path)
    running = record.is_running(name)
    if "config.new" in there or "plan.new" in there or any(map(state.has_tail, (f"{path}/config", f"{path}/plan"))):
        from ctrmgr.backend import unfinished

        unfinished.change(path, run, running)
    if not running:
        if os.path.exists(run):
            ended.end_run(name)
        ended.restore(name)
    elif os.path.exists(record.notes(name)):
        from ctrmgr.backend import device_limits

        device_limits.mend(name, record.read_plan(path))
    ended.guids(name, running=running)
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.mend(name, running=running)
    if record.ANEW in there:
        from ctrmgr.backend import unfinished

        unfinished.change_of_device(name, instance)
    return running
