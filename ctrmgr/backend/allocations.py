# SPDX-License-Identifier: GPL-3.0-or-later
"""What devices were given that are asked for by what they do: prepared, kept, released.

Whoever makes, changes or removes one holds the lock of the instance; what is free is decided under the folder's own. Reading is
hot, as is finding that there is nothing to do; plugins are asked by processes of their own, and imported when there is one.
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.backend.asked import requests
from ctrmgr.backend.held import NAMED, Held, everything, folder, names, of, read
from ctrmgr.backend.record import crash
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ctrmgr.backend.asked import Request

    Rows = list[list[str]]


def with_rows(instance: str, plan: Sequence[Sequence[str]]) -> Rows:
    """A plan with what its requests have been given; devices' rows come last.

    Raises SpecError when two devices are in one place inside.
    """
    wanted = requests(plan)
    if not wanted:
        return [list(row) for row in plan]
    of_devices = [list(row) for row in plan if row[0] in parts.WORDS and (row[0] == "request" or row[1] not in wanted)]
    given = [row for each in of(instance).values() if keeps(wanted, each) for row in each.rows]
    if given and any(row[0] == "gpu-default" for row in plan):
        from ctrmgr.backend import gpu_limits

        given = gpu_limits.resolved(given, plan)
    return [list(row) for row in plan if row[0] not in parts.WORDS] + parts.shared([*of_devices, *given])


def keeps(wanted: Mapping[str, Request], held: Held) -> bool:
    request = wanted.get(held.device)
    return request is not None and request.fits(held) and bool(held.rows) and not held.failed


def detach(instance: str, device: str) -> None:
    """Take back what a device that is detached now had. Raises HelperError."""
    released([each for each in of(instance).values() if each.device == device])


def is_planned(held: Held) -> bool:
    """Whether the instance's plan asks for it. What no plan asks for was attached for this run only, or by a command that was killed."""
    try:
        return held.device in requests(record.read_plan(record.home(held.instance)))
    except CtrmgrError:
        return True  # who knows


class _Nothing:
    """A lock that nobody needs."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def alone(divides: bool) -> AbstractContextManager[None]:
    """Whoever makes or ends partitions is the only one of the machine meanwhile; until it is made nobody else looks what is left."""
    if not divides:
        return _Nothing()
    from ctrmgr.backend import machine_lock

    return machine_lock.taken()


def prepare(held: Held) -> None:
    """Make what is recorded, and record the rows that it became. What fails is released."""
    try:
        crash("allocate-recorded")
        held.rows = _prepared(held)
        crash("allocate-prepared")
        held.write()
    except BaseException:
        quietly(held)
        raise


def _prepared(held: Held) -> Rows:
    """The rows of the plan; a plugin, or a program of the host's, does what it must for it."""
    if held.by == "program":
        from ctrmgr.backend import tpms

        return tpms.rows(held)
    from ctrmgr.backend import functions

    found = functions.rows(held)
    nodes, path = [row for row in found if row[0] == "device"], held.values.get("path")
    if path and len(nodes) != 1:
        raise SpecError(f"device `{held.device}`: `path` is for what has one node; `{held.found_id}` has {len(nodes)}")
    return [[*row[:4], path, *row[5:]] if path and row[0] == "device" else row for row in found]


# Releasing


def release(held: Held) -> None:
    """Take it back. Raises HelperError when its plugin does not: then it stays recorded, and held; ConflictError when other commands are
    at the machine's partitions for too long."""
    with alone(bool(held.divided)):
        try:
            if held.by in ("plugin", "maker"):
                from ctrmgr.backend import functions

                functions.released(held)
            elif held.by == "program":
                from ctrmgr.backend import tpms

                tpms.released(held)
        except (CtrmgrError, OSError) as error:
            held.failed = error.message if isinstance(error, CtrmgrError) else str(error)
            held.write()
            raise _unreleased(held) from error
        crash("release-done")
        state.unlink(held.path)


def _unreleased(held: Held) -> HelperError:
    return HelperError(
        f"device `{held.device}` of `{held.instance}` is not released: {held.failed}",
        hint="`ctrmgr device plugins --release` tries again; nobody else gets it until then",
    )


def quietly(held: Held) -> None:
    """Release; that it failed is in its file, and what went wrong first is what the user must see."""
    try:
        release(held)
    except (ConflictError, HelperError):
        pass


def released(held: Collection[Held]) -> None:
    """Release them all. Raises HelperError for the first that was not, after all others were."""
    first: HelperError | None = None
    for each in held:
        try:
            release(each)
        except HelperError as error:
            first = first or error
    if first:
        raise first


def stopped(instance: str) -> None:
    """Take back what an instance had for this run. Raises HelperError."""
    try:
        released([each for each in of(instance).values() if each.life == "run"])
    finally:
        _forget_rows(instance)


def _forget_rows(instance: str) -> None:
    """Take out of the plan what is released: nobody is to believe that the next start gets the same."""
    path = record.home(instance)
    try:
        plan = record.read_plan(path)
    except CtrmgrError:
        return  # it is made again with what there is then
    rows = with_rows(instance, plan)
    if rows != plan:
        state.write_flat(f"{path}/plan", rows)


def mend(instance: str, *, running: bool) -> None:
    """Take back what a command that was killed left, and after a run what was for it: what the instance neither asks for nor has."""
    try:
        wanted = requests(record.read_plan(record.home(instance)))
    except CtrmgrError:
        return  # it is known when there is a plan again
    for held in of(instance).values():
        keeps = held.device in wanted and bool(held.rows) and (running or held.life == "instance")
        if not keeps and not held.failed and not (running and _attached(instance, held.device)):
            quietly(held)  # what failed was tried once
    if not running:
        _forget_rows(instance)


PATIENCE = 2.0
"""Seconds that a monitor has to say what it has."""


def _attached(instance: str, device: str) -> bool:
    from ctrmgr.kernel import control

    try:
        there = control.ask(record.run_home(instance), control.DEVICES, timeout=PATIENCE).devices()
    except CtrmgrError:
        return record.is_running(instance)
    return any(each.name == device for each in there)


def forget(instance: str) -> None:
    """Take back all that an instance has, which is being deleted."""
    for held in of(instance).values():
        quietly(held)


def complain(instance: str) -> None:
    """Raises HelperError when something of an instance that is gone was not released."""
    for held in of(instance).values():
        if held.failed:
            raise _unreleased(held)


def rename(old: str, new: str) -> None:
    """Its allocations go with a renamed instance."""
    for name in names(old):
        os.rename(f"{folder()}/{name}", f"{folder()}/{new}.{name.partition('.')[2]}")


def left_over() -> list[Held]:
    """What was not released when it should have been."""
    return [each for each in everything() if each.failed]


def sweep() -> None:
    """Take back what belongs to instances that are not there (any more)."""
    left = [held for held in everything() if not held.failed and _is_nobodys(held)]
    if not left:
        return
    try:
        with alone(any(held.divided for held in left)), state.Lock(folder(), wait=False):
            for held in read([os.path.basename(each.path) for each in left]):
                if not held.failed and _is_nobodys(held):
                    quietly(held)
    except (ConflictError, FileNotFoundError):
        pass  # somebody is choosing, or at the same; or nothing was ever given


def _is_nobodys(held: Held) -> bool:
    """Whether an instance is neither there nor being made, deleted or renamed by a command that sees to it itself; whether a partition
    with a name is not whole, under the lock without which none is made.

    In this order: what goes from one name to the other is met under one of them.
    """
    owner, folder = held.instance, record.instances_dir()
    if owner == NAMED:
        return not held.rows
    if os.path.exists(f"{folder}/.new-{owner}"):
        return False
    if any(os.path.exists(f"{folder}/{name}/rename") for name in record.names()):
        return False
    return not os.path.exists(record.home(owner)) and not os.path.exists(f"{folder}/.del-{owner}")
