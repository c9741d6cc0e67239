# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices that are asked for by what they do, those of plugins and partitions: chosen, recorded and prepared.

Whoever gives one holds the lock of the instance; what is free is decided under the folder's own. What others have left is taken back first
where it is short, by `mend`.
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.backend.allocations import alone, is_planned, keeps, prepare, quietly, release, with_rows
from ctrmgr.backend.asked import requests
from ctrmgr.backend.held import NAMED, Held, everything, folder, lines, of
from ctrmgr.errors import ConflictError, CtrmgrError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.asked import Mend, Request
    from ctrmgr.backend.functions import Candidate, Seen
    from ctrmgr.devices.plugin import Allocation

    Rows = list[list[str]]


def settle(instance: str, plan: Sequence[Sequence[str]], mend: Mend, *, starts: bool) -> Rows:
    """Give what the plan asks for and does not have, take back what it does not ask for, and return the plan with what it got.

    An instance that only is made (not `starts`) gets what it keeps until it is deleted. Raises NotFoundError, ConflictError and
    HostError; then what this call gave is released.
    """
    wanted = requests(plan)
    kept = of(instance)
    for device, held in list(kept.items()):
        if not keeps(wanted, held) or not held.still_there():
            release(held)
            del kept[device]
    given: list[Held] = []
    try:
        for device, request in wanted.items():
            if device not in kept and (starts or request.life == "instance"):
                got = give(instance, request, mend)
                given += [got] if got else []
        return with_rows(instance, plan)
    except BaseException:
        for held in given:
            quietly(held)
        raise


def attach(instance: str, plan: Sequence[Sequence[str]], mend: Mend, *, running: bool, volatile: bool) -> Held | None:
    """Give a device that is being attached what it asks for; None when that comes with the next start. `plan` are its rows.

    Raises like `settle`.
    """
    (request,) = requests(plan).values()
    for left in of(instance).values():
        if left.device == request.device:
            release(left)
    if not running and request.life != "instance":
        return None
    return give(instance, request, mend, volatile=volatile, must=running)


def give(instance: str, request: Request, mend: Mend, *, volatile: bool = False, must: bool = False) -> Held | None:
    """Choose, record and prepare. None when nothing fits and the device is not required, unless it `must` be."""
    from ctrmgr.errors import NotFoundError

    if request.type == "tpm":
        from ctrmgr.backend import tpms

        held = tpms.recorded(instance, request)
        prepare(held)
        return held
    divides = "partition" in request.values
    seen = None
    if not divides:
        from ctrmgr.backend import functions

        seen = functions.look(request.type)
        divides = functions.divisible(seen)
    state.make_dir(folder(), 0o700)
    with alone(divides):
        try:
            if divides:
                from ctrmgr.backend import dividing

                dividing.take_back(mend)
            try:
                held = _recorded(instance, request, seen, volatile)
            except ConflictError:
                if not _mend_others(mend):
                    raise
                held = _recorded(instance, request, seen, volatile)
        except NotFoundError as error:
            if request.values.get("required") == "false" and not must:
                return None
            raise NotFoundError(f"device `{request.device}`: {error.message}", hint=error.hint) from None
        prepare(held)
        return held


def _recorded(instance: str, request: Request, seen: Seen | None, volatile: bool) -> Held:
    with state.Lock(folder()):
        held = _chosen(instance, request, seen, volatile)
        held.write()
    return held


def _mend_others(mend: Mend) -> bool:
    """Take back what dead instances and killed commands have left: whether there was any. Where another command is at it, that does so."""
    found = False
    for held in everything():
        if held.failed or held.instance == NAMED or not _is_left(held):
            continue
        try:
            with state.Lock(record.home(held.instance), wait=False):
                mend(held.instance)
        except (CtrmgrError, FileNotFoundError):
            continue
        found = found or not os.path.exists(held.path)
    return found


def _is_left(held: Held) -> bool:
    """Whether it may be: only one who is the only one at its instance can be sure."""
    return not held.rows or (held.life == "run" and not (record.is_running(held.instance) and is_planned(held)))


def _chosen(instance: str, request: Request, seen: Seen | None, volatile: bool) -> Held:
    if seen is not None:
        return _choose(instance, request, seen, volatile)
    from ctrmgr.backend import dividing

    return dividing.chosen(instance, request, everything(), volatile=volatile)


def _choose(instance: str, request: Request, seen: Seen, volatile: bool) -> Held:
    """The one to give, not written yet; under the folder's lock."""
    from ctrmgr.backend import functions

    taken = everything()
    held = Held(instance, request.device)
    held.values, held.token = request.values, os.urandom(8).hex()
    if os.path.exists(held.path):
        raise ConflictError(f"device `{request.device}` of `{instance}` has something that is not released")
    good = functions.fitting(request.type, request.values, seen, taken)
    first: ConflictError | None = None
    while good:
        candidate = good[0]
        holding = [each.holder for each in taken if each.type == candidate.type]
        gone = candidate.type, ""
        try:
            chosen, life = functions.allocated(candidate, request.values, seen, good, holding)
            gone = candidate.type, chosen.found.id
            picked = next(each for each in good if (each.type, each.id) == gone)
            _admit(picked, chosen, seen, taken)
        except ConflictError as error:
            first = first or error
            good = [each for each in good if each.type != gone[0] or gone[1] not in ("", each.id)]
            continue
        held.type, held.life = candidate.type, "run" if volatile else life
        held.text = [["by", "plugin" if candidate.found else "ctrmgr"], *lines(chosen)]
        return held
    assert first is not None  # `fitting` finds something or raises
    raise first


def _admit(candidate: Candidate, chosen: Allocation, seen: Seen, taken: Sequence[Held]) -> None:
    """Raises ConflictError when a pool is short."""
    from ctrmgr.backend import functions, pools

    given = pools.shares(candidate.type, candidate.id, taken, functions.there(candidate, seen))
    pools.admit(chosen.found, chosen.takes, given)
