# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions: parts of devices that are made for one instance, or by `ctrmgr partition create`, and ended after it. Cold.

They are allocations like all others (`held.py`), and their journal is theirs. What is new is that the hardware itself is counted, too, and
that a lock of the whole machine is held from the look at it until the partition is made: two users' commands follow each other.
"""

from __future__ import annotations

import os

from ctrmgr import partition as back_ends
from ctrmgr import state
from ctrmgr.backend import leases, machine_lock, pools, record, repair
from ctrmgr.backend.held import NAMED, Held, everything, lines, of
from ctrmgr.devices import driver, fields, request
from ctrmgr.devices import rows as parts
from ctrmgr.devices.driver import Resolved
from ctrmgr.devices.partition import Asked
from ctrmgr.devices.plugin import Allocation, Found, Partition
from ctrmgr.errors import ConflictError, CtrmgrError, HelperError, HostError, NotFoundError, SpecError
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ctrmgr.backend.allocations import Request

    Rows = list[list[str]]

BOOT = "/proc/sys/kernel/random/boot_id"

# What can be divided


class Place:
    """A device that can be divided, and who does it: one of our own back-ends, or (`source`) a plugin."""

    __slots__ = ("found", "maker", "source", "type")

    def __init__(
        self, kind: str, found: Found, maker: back_ends.BackEnd | None = None, source: registry.Source | None = None
    ) -> None:
        self.type, self.found, self.maker, self.source = kind, found, maker, source

    def there(self) -> list[Partition] | None:
        """The partitions that the hardware says it has; None when it does not."""
        if self.source is not None:
            return call.partitions(self.source, [self.found])
        assert self.maker is not None
        return self.maker.partitions(self.found)

    def divide(self, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> tuple[Allocation, str]:
        """What a partition would be, and how long an instance keeps it."""
        if self.source is not None:
            chosen, persistent = call.divide(self.source, self.found, takes, profile, taken)
            return chosen, "instance" if persistent else "run"
        assert self.maker is not None
        chosen = self.maker.divide(self.found, takes, profile, taken)
        return chosen.replace(state={**chosen.state, "maker": self.maker.name}), "run"


def places(kind: str = registry.ANY) -> tuple[list[Place], list[CtrmgrError]]:
    """All devices of a type that can be divided, and why some could not be asked."""
    found: list[Place] = []
    wrong: list[CtrmgrError] = []
    for maker in back_ends.every():
        if kind in (registry.ANY, maker.type):
            try:
                found += [Place(maker.type, each, maker=maker) for each in maker.identify()]
            except CtrmgrError as error:
                wrong.append(error)
    named = (
        []
        if kind in driver.DRIVERS and kind != registry.ANY
        else registry.sources().values()
        if kind == registry.ANY
        else [registry.find(kind)]
    )
    for source in named:
        try:
            found += [Place(source.type, each, source=source) for each in call.identify(source) if each.partitions]
        except CtrmgrError as error:
            wrong.append(error)
    return found, wrong


def _unfit(place: Place, kind: str, values: Mapping[str, str]) -> str:
    """Why a device is not one for these keys; "" when it is."""
    if place.maker is not None and kind == place.type:
        return place.maker.why_not(place.found, values)
    found = place.found
    return request.why_not(values, id=found.id, vendor=found.vendor, model=found.model, functions=found.functions)


# Choosing, making, ending


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
    return _carved(held, asked, wanted.type, wanted.values, taken, volatile=volatile)


def _carved(
    held: Held, asked: Asked, kind: str, values: Mapping[str, str], taken: Sequence[Held], *, volatile: bool = False
) -> Held:
    found, wrong = places(kind)
    reasons: list[str] = []
    first: CtrmgrError | None = None
    good = []
    for place in found:
        reason = _unfit(place, kind, values)
        if reason:
            reasons.append(f"{place.found.id}: {reason}")
        else:
            given = pools.shares(place.type, place.found.id, taken, place.there())
            good.append((len(given), place.found.id, place.type, place, given))
    for _, _, _, place, given in sorted(good, key=lambda each: each[:3]):
        try:
            allocation, life = _division(place, asked, given)
        except (ConflictError, SpecError) as error:
            if first is None or isinstance(first, SpecError):
                first = error  # of a device that has such a pool it is worth knowing that it is short
            continue
        held.type, held.life = place.type, "run" if volatile else life
        by = "plugin" if place.source else "maker"
        held.text = [["by", by], ["divided", _boot()], *lines(allocation)]
        return held
    if first:
        raise first
    reasons += [error.message for error in wrong]
    reasons += [] if reasons else back_ends.reasons(kind)
    raise NotFoundError(
        "no device that fits can be divided" if found else "this machine has no device that can be divided",
        hint="; ".join(reasons[:4]) or "`ctrmgr partition list --pools` shows those that can",
    )


def _division(place: Place, asked: Asked, given: Sequence[pools.Share]) -> tuple[Allocation, str]:
    """A partition of this device that there is room for. Raises SpecError, ConflictError."""
    alone = [share.held.owner for share in given if share.held is not None and not share.part and not share.takes]
    if alone:
        raise ConflictError(f"`{alone[0]}` has `{place.found.id}` as a whole")
    taken = [
        Partition(place.found.id, share.part, share.takes, share.held.state if share.held else None)
        for share in given
        if share.part
    ]
    if place.maker is not None:
        taken += _leased(place.found.id, {share.held.key for share in given if share.held is not None})
        asked = place.maker.fitting(place.found, asked)
    first: ConflictError | None = None
    for profile, takes in pools.sizes(place.found, asked):
        try:
            pools.admit(place.found, takes, given, divides=True)
            allocation, life = place.divide(takes, profile, taken)
            pools.admit(place.found, allocation.takes, given, divides=True)
        except ConflictError as error:
            first = first or error
            continue
        if allocation.state.get("partition") in {each.id for each in taken}:
            raise HostError(f"`{place.found.id}` would give away `{allocation.state['partition']}` twice")
        return allocation, life
    assert first is not None  # `sizes` has something or raises
    raise first


def _leased(id: str, known: Collection[tuple[str, str]]) -> list[Partition]:
    """The parts of a device, or the whole ("whole"), that instances have without having asked for a partition."""
    found = []
    for lease in leases.held():
        whole, _, part = lease.id.removeprefix("pci:").partition("/")
        if lease.id.startswith("pci:") and whole == id and lease.owner not in known:
            found.append(Partition(id, part or "whole"))
    return found


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
    unfit = _unfit(Place(owner.type, owner.found), registry.ANY, {**wanted.values, "id": ""})
    if wanted.type == registry.ANY and unfit:
        raise NotFoundError(f"partition `{name}` does not fit", hint=unfit)
    if not _is_there(owner):
        _remake(owner)
    held.type, held.life = owner.type, "run"
    held.text = [["by", "named"], ["uses", name], *lines(Allocation(owner.found))]
    return held


def rows(held: Held) -> Rows:
    """The rows of the plan for what was chosen; its maker makes it now. Raises what that raises."""
    own = {
        key: value
        for key, value in held.values.items()
        if key in fields.OWNERSHIP or key in ("kms", "driver.capabilities")
    }
    if held.uses:
        (owner,) = (each for each in of(NAMED).values() if each.device == held.uses)
        return [_owned([row[0], held.device, *row[2:]], own) for row in owner.rows]
    if held.by == "plugin":
        edits = call.prepare(registry.find(held.type), held.allocation)
        return parts.rows_of(held.device, held.type, Resolved(edits, identity=held.found.identity), own)
    maker = back_ends.named(held.state["maker"])
    id = maker.make(held.allocation)
    own = {key: value for key, value in own.items() if key in driver.load(held.type).FIELDS}
    return parts.rows(held.device, {"type": held.type, "id": id, "lease": "exclusive", **own}, maker.root)


def _owned(row: list[str], own: Mapping[str, str]) -> list[str]:
    """A row of a partition that was made before it was known who gets it."""
    if row[0] == "device":
        owner, group = own.get("uid") or own.get("user"), own.get("gid") or own.get("group")
        row = [*row[:5], owner or row[5], group or row[6], own.get("mode") or row[7], *row[8:]]
    return row


def unmade(held: Held) -> None:
    """Let its maker end it; one that has not outlived a restart of the machine is no more. Raises what the maker raises."""
    if held.by == "plugin":
        call.release(registry.find(held.type), held.allocation)
    elif held.divided == _boot():
        others = [
            each for each in everything() if each.key != held.key and each.found_id == held.found_id and each.part
        ]
        last = not any(each.type == held.type for each in others)
        back_ends.named(held.state["maker"]).unmake(held.allocation, last=last)


def _boot() -> str:
    from ctrmgr.host import sysfs

    return sysfs.text(BOOT) or "-"


# Partitions with names


def create(name: str, device: str, sizes: str, kind: str = "") -> Held:
    """Make a partition that lasts until it is deleted. Raises SpecError, NotFoundError, ConflictError, HostError."""
    from ctrmgr.backend import allocations

    asked = Asked(sizes)
    with machine_lock.taken():
        mend()
        held = Held(NAMED, name)
        if os.path.exists(held.path):
            raise ConflictError(f"there is a partition `{name}` already", hint="`ctrmgr partition list` shows it")
        found, wrong = places(kind or registry.ANY)
        fitting = [place for place in found if place.found.id == device]
        if not fitting:
            there = ", ".join(f"`{place.found.id}`" for place in found)
            reasons = [error.message for error in wrong] + ([] if there else back_ends.reasons(registry.ANY))
            hint = f"there are {there}" if there else "; ".join(reasons[:4])
            raise NotFoundError(f"`{device}` is no device that can be divided", hint=hint or None)
        if len(fitting) > 1:
            raise SpecError(
                f"`{device}` is of several types",
                hint="say which: " + ", ".join(f"--type={place.type}" for place in fitting),
            )
        held.values, held.token = {"partition": sizes, "id": device}, os.urandom(8).hex()
        state.make_dir(os.path.dirname(held.path), 0o700)
        with state.Lock(os.path.dirname(held.path)):
            _carved(held, asked, fitting[0].type, {"id": device}, everything())
            held.life = "named"
            held.write()
        allocations.prepare(held)
        return held


def delete(name: str) -> None:
    """End a partition that has a name. Raises NotFoundError, ConflictError when an instance has it, HelperError."""
    from ctrmgr.backend import allocations

    with machine_lock.taken():
        half = name in of(NAMED)
        mend()
        held = of(NAMED).get(name)
        if held is None and half:
            return  # what was killed at it is finished now
        if held is None:
            named = sorted(of(NAMED))
            raise NotFoundError(
                f"there is no partition `{name}`",
                hint=f"there are {', '.join(named)}" if named else "what an instance was given goes when it is stopped",
            )
        user = next((each for each in everything() if each.uses == name), None)
        if user is not None:
            raise ConflictError(f"partition `{name}` is in use", hint=f"{user.owner} has it")
        own = {row[2] for row in held.rows if row[0] == "lease"}
        gone = {lease.file for lease in leases.stale()} if own else set()
        lease = next((each for each in leases.held() if each.id in own and each.file not in gone), None)
        if lease is not None:  # by keys that say which slice or function, not by its name
            raise ConflictError(f"partition `{name}` is in use", hint=f"{lease.instance}/{lease.device} has it")
        rows, held.rows = held.rows, []
        held.write()  # from now on `mend` ends it, whatever kills us
        try:
            allocations.release(held)
        except (ConflictError, HelperError):
            held.rows = rows
            held.write()
            raise


def mend() -> None:
    """End partitions whose making was killed, those of instances that have died, and those that a killed attach has left; such with a name
    are free again. The caller holds the machine's lock, so that nobody is making one. An instance that another command is at is left to that."""
    from ctrmgr.backend import allocations

    for held in everything():
        if not (held.divided or held.uses) or held.failed:
            continue
        if not held.rows:
            allocations.quietly(held)
        elif held.life == "run" and not (record.is_running(held.instance) and allocations.is_planned(held)):
            try:
                with state.Lock(record.home(held.instance), wait=False):
                    repair.instance(held.instance)
            except (CtrmgrError, FileNotFoundError):
                pass


def _is_there(held: Held) -> bool:
    """Whether a partition is still what it was; the machine may have been restarted since."""
    if held.by == "maker" and held.divided != _boot():
        return False
    place = next((each for each in places(held.type)[0] if each.found.id == held.found_id), None)
    if place is None:
        raise NotFoundError(f"`{held.found_id}`, of which partition `{held.device}` is, is not there any more")
    there = place.there()
    return there is None or held.part in {each.id for each in there}


def _remake(held: Held) -> None:
    """Make a partition with a name once more; the caller holds both locks."""
    from ctrmgr.backend import allocations

    allocations.release(held)
    held.token, held.rows = os.urandom(8).hex(), []
    others = [each for each in everything() if each.key != held.key]
    _carved(held, Asked(held.values["partition"]), held.type, {"id": held.found_id}, others)
    held.life = "named"
    held.write()
    allocations.prepare(held)
