# SPDX-License-Identifier: GPL-3.0-or-later
"""Finishing or undoing what a killed command or monitor left (`docs/concepts/design.md`, "Crash only"). Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.errors import ConflictError, CtrmgrError, HostError
from ctrmgr.kernel import control, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


CLAIMS = ("ids", "addresses")


def crash(step: str) -> None:
    """Die here when a test asks for it by `CTRMGR_CRASH_AT`: a command must be killable between any two steps."""
    if os.environ.get("CTRMGR_CRASH_AT") == step:
        os.kill(os.getpid(), 9)


def sweep() -> None:
    """Remove instances that were being made or deleted by a command that is dead."""
    folder = record.instances_dir()
    try:
        leftovers = [name for name in os.listdir(folder) if name[0] == "."]
    except FileNotFoundError:
        return
    for name in leftovers:
        path = f"{folder}/{name}"
        try:
            with state.Lock(path, wait=False):
                owner = name.partition("-")[2]
                if not os.path.exists(record.home(owner)):
                    release(owner)
                remove_tree(path)
        except (ConflictError, FileNotFoundError):
            pass  # somebody is at it


def release(owner: str) -> None:
    """Give back all that `owner` has claimed."""
    for kind in CLAIMS:
        state.release(kind, owner)


def instance(name: str) -> None:
    """Mend one instance; the caller holds its lock."""
    path, run = record.home(name), record.run_home(name)
    if os.path.exists(f"{path}/rename"):
        finish_rename(path)
    running = record.is_running(name)
    if os.path.exists(f"{path}/config.new") or os.path.exists(f"{path}/plan.new"):
        _change(path, run, running)
    if not running and os.path.exists(run):
        end_run(name)


def _change(path: str, run: str, running: bool) -> None:
    """A change of config and plan whose writer died: finish what the monitor has done, drop the rest."""
    if not os.path.exists(f"{path}/config.new"):
        record.drop(path)
        return
    if not os.path.exists(f"{path}/plan.new"):
        record.finish(path)
        return
    if running:
        have = {device.name for device in control.ask(run, control.DEVICES).devices()}
        plan, wanted = record.read_plan(path), state.read_flat(f"{path}/plan.new")
        old, new = _devices(plan), _devices(wanted)
        if (new - old) - have or (old - new) & have:
            record.drop(path)
            return
        if _limits(plan) != _limits(wanted):
            from ctrmgr.backend import configure

            try:
                configure.change_limits(os.path.basename(path), plan, wanted)
            except HostError:
                record.drop(path)
                return
    record.finish(path)


def _limits(plan: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [row for row in plan if row[0] == "cgroup-file"]


def _devices(plan: Sequence[Sequence[str]]) -> set[str]:
    return {row[1] for row in plan if row[0] == "device"}


def end_run(name: str) -> None:
    """Kill and remove what a dead monitor left: its cgroups, its run directory."""
    run = record.run_home(name)
    plan = f"{record.home(name)}/plan"
    if os.path.exists(f"{run}/state") and os.path.exists(plan):
        report = spawn.monitor("clean", plan, record.home(name), run)
        if report.error:
            raise control.failure(name, report.step, report.detail, report.error)
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


def start_rename(old: str, new: str) -> None:
    """Rename a stopped instance; `rename` in its directory says how far a killed command must go on."""
    path = record.home(old)
    state.write_flat(f"{path}/rename", [["rename", old, new]])
    crash("rename-recorded")
    finish_rename(path)


def finish_rename(path: str) -> None:
    ((_, old, new),) = state.read_flat(f"{path}/rename")
    for kind in CLAIMS:
        for key, owner in state.claims(kind).items():
            if owner == old:
                aside = f"{state.state_dir()}/.claim-{os.getpid()}"
                state.unlink(aside)
                os.symlink(new, aside)
                os.rename(aside, f"{state.state_dir()}/{kind}/{key}")
    crash("rename-claims")
    if os.path.basename(path) == old:
        os.rename(path, record.home(new))
        path = record.home(new)
    crash("rename-moved")
    plan = record.read_plan(path)
    for row in plan:
        if row[0] in ("name", "hostname") and row[1] == old:
            row[1] = new
        elif row[0] == "cgroup":
            row[1] = f"{state.cgroup_parent()}/{new}"
    state.write_flat(f"{path}/plan", plan)
    state.unlink(f"{path}/rename")


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
