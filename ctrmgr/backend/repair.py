# SPDX-License-Identifier: GPL-3.0-or-later
"""Finishing or undoing what a killed command or monitor left (`docs/concepts/design.md`, "Crash only"). Hot."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import leases, record
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, CtrmgrError, HostError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.kernel.spawn import Report


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
    if any(row[0] in ("device-limit", "gpu-limit") for row in plan):
        from ctrmgr.backend import device_limits

        device_limits.lift(name, device_limits.alone(plan, device))


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
    if os.path.exists(f"{path}/rename"):
        finish_rename(path)
    if os.path.exists(f"{path}/restore"):
        from ctrmgr.backend import snapshots

        snapshots.finish(path)
    running = record.is_running(name)
    if state.has_tail(f"{path}/config") or state.has_tail(f"{path}/plan"):
        _attach(path, run, running)
    if os.path.exists(f"{path}/config.new") or os.path.exists(f"{path}/plan.new"):
        _change(path, run, running)
    if not running:
        if os.path.exists(run):
            end_run(name)
        restore(name)
    if has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.mend(name, running=running)
    if os.path.exists(f"{path}/{ANEW}"):
        from ctrmgr.backend import device_keys

        device_keys.go_on(name)
    return running


def restore(name: str) -> None:
    """Put back what was changed of GPUs for a run that is over."""
    if os.path.exists(f"{state.run_dir()}/.gpu/{name}"):
        from ctrmgr.backend import gpu_limits

        gpu_limits.restore(name)


def _attach(path: str, run: str, running: bool) -> None:
    """An attach whose writer died: finish it if the monitor has the device, or if nothing but the last word was missing."""
    name, config, plan = os.path.basename(path), f"{path}/config", f"{path}/plan"
    try:
        device = state.tail(config)[0][1]  # without one the plan is damaged: `config` is written first, and counts last
        counts = any(row[0] in parts.WORDS and row[1] == device for row in record.read_plan(path))
        if not counts and running and state.has_tail(plan):
            have = {each.name for each in control.ask(run, control.DEVICES).devices()}
            old = record.read_plan(path)
            counts = device in have and _hooks(path, old, [*old, *state.tail(plan)])
    except HostError:
        raise
    except (CtrmgrError, IndexError):  # a power cut: what `config` has is right
        state.end_tail(config, counts=False)
        state.end_tail(plan, counts=False)
        from ctrmgr.backend import start

        start.replan(name)
        return
    state.end_tail(plan, counts=counts)
    state.end_tail(config, counts=counts)


def _change(path: str, run: str, running: bool) -> None:
    """A change of config and plan whose writer died: finish what the monitor has done, drop the rest."""
    if not _whole(path):
        record.drop(path)
        return
    if not os.path.exists(f"{path}/plan.new"):
        record.finish(path)
        return
    if running:
        have = {device.name for device in control.ask(run, control.DEVICES).devices()}
        plan, wanted = record.read_plan(path), record.read_plan(path, "plan.new")
        old, new = _devices(plan), _devices(wanted)
        if (new - old) - have or (old - new) & have:
            record.drop(path)
            return
        if any(row[0] == "hook" for row in (*plan, *wanted)) and not _hooks(path, plan, wanted):
            return
        if _limits(plan) != _limits(wanted):
            from ctrmgr.backend import live

            try:
                live.change_limits(os.path.basename(path), plan, wanted)
            except HostError:
                record.drop(path)
                return
    record.finish(path)


def _hooks(path: str, plan: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> bool:
    """Do what devices that came want done inside, and undo it for those that went. False: it could not be, and they go again."""
    from ctrmgr.backend import hooks

    name, old, new = os.path.basename(path), _devices(plan), _devices(wanted)
    kept = [hook for device in old & new for hook in hooks.of(wanted, device)]
    for device in old - new:
        hooks.undo(name, device, [hook for hook in hooks.of(plan, device) if hook not in kept])
    for device in new - old:
        try:
            hooks.do(name, device, hooks.of(wanted, device))
        except CtrmgrError:
            control.ask(record.run_home(name), control.DETACH, name=device)
            record.drop(path)
            return False
    return True


def _limits(plan: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [row for row in plan if row[0] in ("cgroup-file", "gpu-limit")]


def _whole(path: str) -> bool:
    """Whether `config.new` is there and whole. A power cut may leave an empty one, which must not replace the good one."""
    try:
        return any(row[0] == "image" for row in state.read_flat(f"{path}/config.new"))
    except FileNotFoundError:
        return False
    except HostError:
        raise
    except CtrmgrError:
        return False


def _devices(plan: Sequence[Sequence[str]]) -> set[str]:
    return {row[1] for row in plan if row[0] in parts.PARTS}


def end_run(name: str) -> None:
    """Kill and remove what a dead monitor left: its cgroups, its leases, its run directory."""
    run = record.run_home(name)
    if os.path.exists(f"{run}/state"):
        report = _clean(name, run)
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


def _clean(name: str, run: str) -> Report:
    from ctrmgr.kernel import spawn

    home = record.home(name)
    try:
        report = spawn.monitor("clean", f"{home}/plan", home, run)
        if report.step != "read the plan":
            return report
    except FileNotFoundError:
        pass
    # The plan is lost or damaged, and what ran must end all the same: its cgroups have its name in every hierarchy.
    from ctrmgr.host import cgroup

    rows = [["ctrmgr-plan", "1"], ["name", name], ["cgroup", f"{state.cgroup_parent()}/{name}"], ["init", "builtin"],
            ["layer", "/"], ["uidmap", "0", "1", "1"], ["gidmap", "0", "1", "1"]]  # fmt: skip
    rows += [["cgroup-file", controller, "none", ""] for controller in cgroup.read().v1]
    fd = os.memfd_create("plan")
    try:
        os.write(fd, state.dump_flat(rows))
        return spawn.monitor("clean", f"/proc/self/fd/{fd}", home if os.path.isdir(home) else run, run)
    finally:
        os.close(fd)


def start_rename(old: str, new: str) -> None:
    """Rename a stopped instance; `rename` in its directory says how far a killed command must go on."""
    path = record.home(old)
    state.write_flat(f"{path}/rename", [["rename", old, new]])
    crash("rename-recorded")
    finish_rename(path)


def finish_rename(path: str) -> None:
    try:
        ((_, old, new),) = state.read_flat(f"{path}/rename")
    except ValueError:
        raise state.corrupt(f"{path}/rename", 1, "is not `rename`, the old name and the new one") from None
    for kind in CLAIMS:
        for key, owner in state.claims(kind).items():
            if owner == old:
                aside = f"{state.state_dir()}/.claim-{os.getpid()}"
                state.unlink(aside)
                os.symlink(new, aside)
                os.rename(aside, f"{state.state_dir()}/{kind}/{key}")
    if has_allocations(old):
        from ctrmgr.backend import allocations

        allocations.rename(old, new)
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
