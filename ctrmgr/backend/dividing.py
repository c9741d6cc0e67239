# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions for instances: made for one, or lent to it by their names; and what dead ones had. Cold."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import allocations, partitions, record
from ctrmgr.backend.held import NAMED, Held, everything, lines
from ctrmgr.backend.partitions import Place
from ctrmgr.devices.partition import Asked
from ctrmgr.devices.plugin import Allocation
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.plugins import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.asked import Mend, Request


def chosen(instance: str, wanted: Request, taken: Sequence[Held], *, volatile: bool = False) -> Held:
    """What an instance is given for its key `partition`; recorded by the caller, who holds both locks. Raises NotFoundError, SpecError,
    ConflictError."""
    held = Held(instance, wanted.device)
    held.values, held.token = wanted.values, os.urandom(8).hex()
    if os.path.exists(held.path):
        raise ConflictError(f"device `{wanted.device}` of `{instance}` has something that is not released")
    asked = Asked(wanted.values["partition"])
    if asked.name:
        return _borrowed(held, wanted, asked.name, taken)
    return partitions.carved(held, asked, wanted.type, wanted.values, taken, volatile=volatile)


def _borrowed(held: Held, wanted: Request, name: str, taken: Sequence[Held]) -> Held:
    """The partition with a name, which `ctrmgr partition create` has made. Only one device of one instance has it at a time."""
    owner = next((each for each in taken if each.instance == NAMED and each.device == name), None)
    if owner is None:
        there = sorted(each.device for each in taken if each.instance == NAMED)
        raise NotFoundError(
            f"there is no partition `{name}`",
            hint=f"there are {', '.join(there)}" if there else "`ctrmgr partition create` makes one",
        )
    user = next((each for each in taken if each.uses == name), None)
    if user is not None:
        raise ConflictError(f"partition `{name}` is taken", hint=f"{user.owner} has it")
    if wanted.type not in (registry.ANY, owner.type):
        raise SpecError(f"partition `{name}` is of type `{owner.type}`, and not `{wanted.type}`")
    unfit = partitions.unfit(Place(owner.type, owner.found), registry.ANY, {**wanted.values, "id": ""})
    if wanted.type == registry.ANY and unfit:
        raise NotFoundError(f"partition `{name}` does not fit", hint=unfit)
    if not _is_there(owner):
        _remake(owner)
    held.type, held.life = owner.type, "run"
    held.text = [["by", "named"], ["uses", name], *lines(Allocation(owner.found))]
    return held


def _is_there(held: Held) -> bool:
    """Whether a partition is still what it was; the machine may have been restarted since."""
    if held.by == "maker" and held.divided != partitions.boot():
        return False
    place = next((each for each in partitions.places(held.type)[0] if each.found.id == held.found_id), None)
    if place is None:
        raise NotFoundError(f"`{held.found_id}`, of which partition `{held.device}` is, is not there any more")
    there = place.there()
    return there is None or held.part in {each.id for each in there}


def _remake(held: Held) -> None:
    """Make a partition with a name once more; the caller holds both locks."""
    allocations.release(held)
    held.token, held.rows = os.urandom(8).hex(), []
    others = [each for each in everything() if each.key != held.key]
    partitions.carved(held, Asked(held.values["partition"]), held.type, {"id": held.found_id}, others)
    held.life = "named"
    held.write()
    allocations.prepare(held)


def take_back(mend: Mend) -> None:
    """End partitions whose making was killed, those of instances that have died, and those that a killed attach has left; such with a name
    are free again. The caller holds the machine's lock, so that nobody is making one. An instance that another command is at is left to that."""
    for held in everything():
        if not (held.divided or held.uses) or held.failed:
            continue
        if not held.rows:
            allocations.quietly(held)
        elif held.life == "run" and not (record.is_running(held.instance) and allocations.is_planned(held)):
            try:
                with state.Lock(record.home(held.instance), wait=False):
                    mend(held.instance)
            except (CtrmgrError, FileNotFoundError):
                pass
