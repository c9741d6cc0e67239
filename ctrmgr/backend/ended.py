# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance, a run of it or a device of it had, given back when that is over. Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import leases, record
from ctrmgr.errors import CtrmgrError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CLAIMS = ("ids", "addresses")


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
        from ctrmgr.backend import cleaning

        report = cleaning.clean(name, run)
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


def release(owner: str) -> None:
    """Give back all that `owner` has claimed."""
    if has_allocations(owner):
        from ctrmgr.backend import allocations

        allocations.forget(owner)
    for kind in CLAIMS:
        state.release(kind, owner)
