# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances on this machine: launched, started, asked, stopped, deleted. Hot."""

from __future__ import annotations

import errno
import os

from ctrmgr import state
from ctrmgr.backend import ended, leases, record, repair
from ctrmgr.backend.create import Wish, create
from ctrmgr.backend.record import crash
from ctrmgr.backend.start import start as begin
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, HostError
from ctrmgr.kernel import control


def launch(wish: Wish) -> str:
    """Create and start; an instance that does not start is deleted again. Returns its name."""
    name = create(wish)
    try:
        start(name)
    except BaseException:
        try:
            delete(name, force=True)
        except (ConflictError, HelperError):
            pass  # what went wrong first is what the user must see; the next command mends the rest
        raise
    return name


def start(name: str) -> None:
    """Start a stopped instance. Raises NotFoundError, ConflictError, HostError, HelperError."""
    with record.lock(name):
        repair.instance(name)
        if record.is_running(name):
            raise ConflictError(f"`{name}` is running already")
        begin(name, repair.instance)


def stop(name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Ask init to shut down and wait; kill what is left after `timeout` seconds (None: the plan's), or at once.

    An ephemeral instance is deleted then. Raises NotFoundError, ConflictError when it is not running.
    """
    with record.lock(name):
        repair.instance(name)
        if not record.is_running(name):
            raise ConflictError(f"`{name}` is not running")
        ephemeral = _ephemeral(name)
        _stop(name, timeout, force)
        try:
            _give_back(name)
        finally:
            if ephemeral:
                _delete(name)


def _ephemeral(name: str) -> bool:
    try:
        return record.Record(name).ephemeral
    except CtrmgrError:  # a damaged record keeps nobody from stopping it, and is kept
        return False


def _stop(name: str, timeout: float | None, force: bool) -> None:
    run = record.run_home(name)
    noted = os.path.exists(f"{state.run_dir()}/.gpu/{name}")
    if noted:
        from ctrmgr.backend import gpu_limits

        gpu_limits.ending(name)
    _end(name, timeout, force)
    crash("stop-asked")
    ended.guids(name, running=False)
    leases.release(name)
    try:
        os.rmdir(run)
    except OSError:
        ended.end_run(name)
    state.unlink(record.notes(name))
    if noted:
        ended.restore(name)


def _end(name: str, timeout: float | None, force: bool) -> None:
    """Raises ConflictError when its monitor, which lives, does not hear."""
    op, arg = (control.KILL, 0) if force else (control.STOP, max(1, int(timeout * 1000)) if timeout is not None else 0)
    for last in (False, False, True):
        try:
            control.ask(record.run_home(name), op, arg=arg)
            return
        except ConflictError:
            # it ends by itself, or begins anew because init was rebooted, and is asked again
            if not record.is_running(name):
                return
            if last:
                raise


def _give_back(name: str) -> None:
    """What it had for this run. Raises HelperError when a plugin does not release its device, or a hook fails; the instance is stopped
    then."""
    failed: list[str] = []
    if os.path.exists(f"{state.run_dir()}/.hooks/{name}"):
        from ctrmgr.backend import host_hooks

        failed = host_hooks.ended(name)
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.stopped(name)
    if failed:
        raise HelperError(f"`{name}` is stopped, and {'; '.join(failed)}")


def restart(name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Stop, if it runs, and start."""
    with record.lock(name):
        repair.instance(name)
        if record.is_running(name):
            _stop(name, timeout, force)
            _give_back(name)
        begin(name, repair.instance)


def signal(name: str, number: int) -> None:
    """Send init a signal."""
    reply = control.ask(record.running(name), control.SIGNAL, arg=number)
    if reply.error:
        raise control.failure(name, reply.step, reply.detail, reply.error)


def delete(name: str, *, force: bool = False) -> None:
    """Remove an instance and all that it has. Raises ConflictError when it is running and `force` is not given."""
    repair.sweep()
    with record.lock(name):
        try:
            repair.instance(name)
        except HostError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or record.is_running(name):
                raise
            # What is to go gives the space back that mending it takes.
            if os.path.exists(record.run_home(name)):
                ended.end_run(name)
            ended.restore(name)
        if record.is_running(name):
            if not force:
                raise ConflictError(f"`{name}` is running", hint=f"stop it first, or `ctrmgr delete --force {name}`")
            _stop(name, None, True)
            ended.restore(name)
        _delete(name)


def _delete(name: str) -> None:
    aside = f"{record.instances_dir()}/.del-{name}"
    try:
        os.rename(record.home(name), aside)
    except OSError as error:
        raise state.unwritable(record.home(name), error) from error
    crash("delete-renamed")
    ended.release(name)
    crash("delete-released")
    record.remove_tree(aside)
    if ended.has_allocations(name):
        from ctrmgr.backend import allocations

        allocations.complain(name)


def rename(old: str, new: str) -> None:
    """Rename a stopped instance. Raises ConflictError when it is running or the new name is taken."""
    record.check_name(new)
    with record.lock(old):
        repair.instance(old)
        if record.is_running(old):
            raise ConflictError(f"`{old}` is running", hint="stop it first")
        if os.path.exists(record.home(new)) or os.path.exists(f"{record.instances_dir()}/.new-{new}"):
            raise ConflictError(f"an instance `{new}` exists already")
        from ctrmgr.backend import unfinished

        unfinished.start_rename(old, new)


def freeze(name: str, *, thaw: bool = False) -> None:
    """Stop all its processes where they are, or let them go on."""
    reply = control.ask(record.running(name), control.THAW if thaw else control.FREEZE)
    if reply.error:
        raise control.failure(name, reply.step, reply.detail, reply.error)
