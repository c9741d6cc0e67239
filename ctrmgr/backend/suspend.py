# SPDX-License-Identifier: GPL-3.0-or-later
"""A device taken away for now, and given back. Hot."""

from __future__ import annotations

from ctrmgr.backend import record
from ctrmgr.backend.detach import Detached, ask_take, flushed
from ctrmgr.errors import NotFoundError, SpecError
from ctrmgr.kernel import control


def suspend(name: str, device: str, *, holders: str = "report") -> Detached:
    """Take a device's nodes away for now: `resume` gives them back, and so does a start.

    `holders` is as for `detach`. Raises NotFoundError when it is not attached, ConflictError when it is suspended or refused.
    """
    if holders not in control.HOLDERS:
        raise SpecError(f"`{holders}` is not one of {', '.join(control.HOLDERS)}")
    with record.lock(name):
        taken = _attached(name, device)
        result = ask_take(name, device, holders, control.SUSPEND)
    flushed(result, taken)
    return result


def resume(name: str, device: str) -> None:
    """Give a suspended device back. Raises NotFoundError when it is not attached, ConflictError when it is not suspended."""
    with record.lock(name):
        _attached(name, device)
        reply = control.ask(record.run_home(name), control.RESUME, name=device)
    if reply.error:
        raise control.failure(device, reply.step, reply.detail, reply.error)


def _attached(name: str, device: str) -> list[control.Device]:
    run = record.running(name)
    found = [part for part in control.ask(run, control.DEVICES).devices() if part.name == device]
    if not found:
        raise NotFoundError(f"`{name}` has no device `{device}`", hint=f"`ctrmgr info {name}` lists them")
    return found
