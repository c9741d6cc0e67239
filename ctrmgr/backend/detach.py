# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices taken away from an instance of this machine, and who still has them. Hot."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import ended, leases, record, repair
from ctrmgr.backend.record import crash
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError
from ctrmgr.kernel import control


class Detached:
    """What a detach did: `live` if it was taken from a running instance, and who still holds it open or mapped.

    `revoked`: the kernel refuses to use what they hold, except for mappings. `ended`: how many open descriptors the device's
    driver has revoked for good; who had nothing else is no holder. `unflushed`: disks that could not be written out, hooks
    that failed, and CPUs that stay where the device was, and why.
    """

    __slots__ = ("ended", "holders", "live", "revoked", "total", "unflushed")

    def __init__(
        self, live: bool, holders: list[control.Holder], total: int, revoked: bool = False, ended: int = 0
    ) -> None:
        self.live, self.holders, self.total, self.revoked, self.ended = live, holders, total, revoked, ended
        self.unflushed: list[str] = []


def detach(name: str, device: str, *, holders: str = "report", volatile: bool = False) -> Detached:
    """Take a device away.

    `holders` says what to do about processes that have it open: `report` them; `refuse` to detach; `freeze` the instance
    with them in it; `kill` them. Raises NotFoundError when there is no such device, ConflictError when refused.
    """
    if holders not in control.HOLDERS:
        raise SpecError(f"`{holders}` is not one of {', '.join(control.HOLDERS)}")
    with record.lock(name):
        result, taken = take(name, device, repair.instance(name), holders=holders, volatile=volatile)
    flushed(result, taken)
    return result


def take(
    name: str, device: str, running: bool, *, holders: str, volatile: bool = False
) -> tuple[Detached, list[control.Device]]:
    """`detach`; the caller holds the instance's lock. Also what was taken, for `flushed`."""
    own = record.Record(name)
    plan = own.plan()
    planned = any(row[0] in parts.WORDS and row[1] == device for row in plan)
    there = control.ask(record.run_home(name), control.DEVICES).devices() if running else []
    attached = any(found.name == device for found in there)
    if not attached and (volatile or (device not in own.devices and not planned)):
        raise _absent(own, device)
    result = Detached(attached, [], 0)
    left, stays = plan, ""
    try:
        if not volatile and (planned or device in own.devices):
            if own.devices.pop(device, None) is None:
                own.devices[device] = {"type": "none"}  # it is a profile's: mask it, as LXD does
            left = parts.without(plan, device)
            if any(row[0] == "follows-devices" for row in plan):
                from ctrmgr.backend import placement

                left, stays = placement.left(name, left, device)
            _stage(own, left, attached)
            crash("detach-recorded")
        if attached:
            made = _hooks(name, device, there)
            result = ask_take(name, device, holders, control.DETACH)
            ended.lift(name, plan, device)
            leases.release(name, device)
            crash("detach-done")
            if made:
                _undo_hooks(name, device, made)
                crash("detach-unhooked")
            result.unflushed = _host_hooks(name, device)
        if running and any(row[0] == "follows-devices" for row in plan):
            from ctrmgr.backend import placement

            stays = placement.went(own) if left is plan else placement.moved_after(own, plan, left) or stays
            crash("detach-moved")
        result.unflushed += [stays] if stays else []
    except BaseException:
        record.drop(own.path)
        raise
    record.finish(own.path)
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.detach(name, device)
    return result, [part for part in there if part.name == device]


def _absent(own: record.Record, device: str) -> CtrmgrError:
    """Why a device cannot be taken: there is none, or it is of a type that stays as long as the instance runs."""
    from ctrmgr.plan import profiled

    hint = f"`ctrmgr info {own.name}` lists them"
    try:
        found = profiled.devices(own.profiles, own.devices).get(device)
    except CtrmgrError:  # its profiles are another matter
        found = None
    if found is None:
        return NotFoundError(f"`{own.name}` has no device `{device}`", hint=hint)
    return ConflictError(
        f"device `{device}` of `{own.name}` is not attached: it is a `{found.keys['type']}`, configured for its starts",
        hint=f"`ctrmgr config device remove {own.name} {device}` takes it out of the configuration",
    )


def _host_hooks(name: str, device: str) -> list[str]:
    """What hooks on the host have to do when a device has gone; what of that failed."""
    if not os.path.exists(f"{state.run_dir()}/.hooks/{name}"):
        return []
    from ctrmgr.backend import host_hooks

    return host_hooks.ended(name, device)


def _stage(own: record.Record, plan: list[list[str]], attached: bool) -> None:
    """Raises HostError. An instance that fills the disk must not keep its devices by that."""
    try:
        record.stage(own, plan)
    except HostError as error:
        if not attached:
            raise
        cure = f"{error.hint}; " if error.hint else ""
        raise HostError(
            error.message, hint=f"{cure}`--volatile` takes it away now, and it is back at the next start"
        ) from error


def flushed(result: Detached, taken: list[control.Device]) -> None:
    """Write out the disks among what was taken; without the instance's lock, for a disk may be slow."""
    if any(part.kind == "block" for part in taken):
        from ctrmgr.backend import flush

        result.unflushed += flush.flush(taken)


def _hooks(name: str, device: str, there: list[control.Device]) -> list[list[str]]:
    """What was done for this device inside and for no other one that is there."""
    asked = {each.name for each in there if each.kind == "hook"}
    if device not in asked:
        return []
    from ctrmgr.backend import hooks

    others = [hook for other in asked - {device} for hook in hooks.attached(name, other)]
    return [hook for hook in hooks.attached(name, device) if hook not in others]


def _undo_hooks(name: str, device: str, made: list[list[str]]) -> None:
    from ctrmgr.backend import hooks

    hooks.undo(name, device, made)


def ask_take(name: str, device: str, holders: str, op: int) -> Detached:
    """Have the monitor detach or suspend a device. Raises ConflictError, HostError, HelperError."""
    reply = control.ask(record.run_home(name), op, name=device, arg=control.HOLDERS.index(holders))
    if reply.error == errno.EBUSY and holders == "refuse":
        found = ", ".join(f"{holder.comm} (pid {holder.inner_pid})" for holder in reply.holders())
        raise ConflictError(
            f"device `{device}` of `{name}` is in use: {found}",
            hint="end them, or say --holders=report, freeze or kill",
        )
    if reply.error:
        raise control.failure(device, reply.step, reply.detail, reply.error)
    revoked = reply.value > 0 and control.ask(record.run_home(name), control.STATUS).open_fds()[0] == "revoked"
    ended = int(reply.detail) if reply.detail.isdecimal() else 0
    return Detached(True, reply.holders(), reply.value, revoked, ended)
