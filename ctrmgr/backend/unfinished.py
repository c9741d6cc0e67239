# SPDX-License-Identifier: GPL-3.0-or-later
"""What was half done when a command or a monitor died, finished or undone; called by `repair`, which sees that there is some. Cold."""

from __future__ import annotations

import errno
import os
import re
import stat

from ctrmgr import state
from ctrmgr.backend import ended, leases, record
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, CtrmgrError, HostError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.asked import Mend

NAMES_MAX = 1 << 16
"""Bytes of a file with names of hosts; a larger one is nobody's that we know."""


def change(path: str, run: str, running: bool) -> None:
    """Of config and plan, whatever it was."""
    if state.has_tail(f"{path}/config") or state.has_tail(f"{path}/plan"):
        _add(path, run, running)
    if os.path.exists(f"{path}/config.new") or os.path.exists(f"{path}/plan.new"):
        _replace(path, run, running)


def _add(path: str, run: str, running: bool) -> None:
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
    if not counts:
        leases.release(name, device)
    state.end_tail(plan, counts=counts)
    state.end_tail(config, counts=counts)


def _replace(path: str, run: str, running: bool) -> None:
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
        if _limits(plan, old & new) != _limits(wanted, old & new):
            from ctrmgr.backend import guarantees, live

            try:
                with guarantees.promised(os.path.basename(path), plan, wanted):
                    live.change_limits(os.path.basename(path), plan, wanted)
            except (ConflictError, HostError):
                record.drop(path)
                return
        for device in old - new:
            ended.lift(os.path.basename(path), plan, device)
            leases.release(os.path.basename(path), device)
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


def _limits(plan: Sequence[Sequence[str]], devices: set[str]) -> list[Sequence[str]]:
    """The instance's own, and those of devices that stay."""
    own = ("cgroup-file", "gpu-limit")
    return [row for row in plan if row[0] in own or (row[0] == "device-limit" and row[1] in devices)]


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


def start_rename(old: str, new: str) -> None:
    """Rename a stopped instance; `rename` in its directory says how far a killed command must go on."""
    path = record.home(old)
    state.write_flat(f"{path}/rename", [["rename", old, new]])
    record.crash("rename-recorded")
    rename(path)


def rename(path: str) -> None:
    """Go on with one, as far as it has come."""
    try:
        ((_, old, new),) = state.read_flat(f"{path}/rename")
    except ValueError:
        raise state.corrupt(f"{path}/rename", 1, "is not `rename`, the old name and the new one") from None
    for kind in ended.CLAIMS:
        for key, owner in state.claims(kind).items():
            if owner == old:
                aside = f"{state.state_dir()}/.claim-{os.getpid()}"
                state.unlink(aside)
                os.symlink(new, aside)
                os.rename(aside, f"{state.state_dir()}/{kind}/{key}")
    if ended.has_allocations(old):
        from ctrmgr.backend import allocations

        allocations.rename(old, new)
    record.crash("rename-claims")
    if os.path.basename(path) == old:
        os.rename(path, record.home(new))
        path = record.home(new)
    record.crash("rename-moved")
    _call_itself(path, old, new)
    plan = record.read_plan(path)
    for row in plan:
        if row[0] in ("name", "hostname") and row[1] == old:
            row[1] = new
        elif row[0] == "cgroup":
            row[1] = f"{state.cgroup_parent()}/{new}"
    state.write_flat(f"{path}/plan", plan)
    state.unlink(f"{path}/rename")


def _call_itself(path: str, old: str, new: str) -> None:
    """The instance's own `/etc/hostname` and `/etc/hosts`, as far as they have its old name still; what it made of them stays."""
    try:
        folder = os.open(f"{path}/upper/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in ("hostname", "hosts"):
            _rename_in(folder, name, old, new)
    except OSError as error:
        raise state.unwritable(f"{path}/upper/etc", error) from error
    finally:
        os.close(folder)


def _rename_in(folder: int, name: str, old: str, new: str) -> None:
    # The instance's root owns the file: it may be a link or a pipe by now.
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, IsADirectoryError):
        return
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        text = os.read(fd, NAMES_MAX)
        # a line of its own, or the only name of an address: as it was written when the instance was made
        line = rb"(?m)^((?!127\.0\.0\.1\t|::1\t)\S+\t|)" + old.encode() + rb"$"
        words = re.sub(line, rb"\g<1>" + new.encode(), text)
        if words != text and len(text) < NAMES_MAX:
            os.pwrite(fd, words, 0)
            os.ftruncate(fd, len(words))
    finally:
        os.close(fd)


def change_of_device(name: str, mend: Mend) -> None:
    """A change of a device's keys whose writer died, which may have been between its two halves: the device is given as it was. Its keys are kept
    even where it cannot be given now. The caller holds the instance's lock."""
    from ctrmgr.backend import devices

    path = f"{record.home(name)}/{record.ANEW}"
    try:
        rows = [row for row in state.read_flat(path) if len(row) == 4]
    except HostError:
        raise
    except CtrmgrError:  # the power was cut before the disk had it, and before anything else was done
        rows = []
    own = record.Record(name)
    if rows and rows[0][1] not in own.devices:
        device, keys = rows[0][1], {row[2]: row[3] for row in rows}
        try:
            devices.give(name, device, *devices.check(device, keys), record.is_running(name), mend)
        except CtrmgrError:
            own.devices[device] = keys
            record.stage(own, own.plan())
            record.finish(own.path)
    state.unlink(path)
