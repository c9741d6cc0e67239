# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions: parts of devices that are made for one instance, or by `ctrmgr partition create`, and ended after it. Cold.

They are allocations like all others (`held.py`), and their journal is theirs. What is new is that the hardware itself is counted, too, and
that a lock of the whole machine is held from the look at it until the partition is made: two users' commands follow each other.
"""

from __future__ import annotations

from ctrmgr import partition as back_ends
from ctrmgr.backend import leases, pools
from ctrmgr.backend.held import NAMED, Held, everything, lines, of
from ctrmgr.devices import driver, fields, request
from ctrmgr.devices import rows as parts
from ctrmgr.devices.driver import Resolved
from ctrmgr.devices.partition import Asked
from ctrmgr.devices.plugin import Allocation, Found, Partition
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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


def unfit(place: Place, kind: str, values: Mapping[str, str]) -> str:
    """Why a device is not one for these keys; "" when it is."""
    if place.maker is not None and kind == place.type:
        return place.maker.why_not(place.found, values)
    found = place.found
    return request.why_not(values, id=found.id, vendor=found.vendor, model=found.model, functions=found.functions)


# Choosing, making, ending


def carved(
    held: Held, asked: Asked, kind: str, values: Mapping[str, str], taken: Sequence[Held], *, volatile: bool = False
) -> Held:
    found, wrong = places(kind)
    reasons: list[str] = []
    first: CtrmgrError | None = None
    good = []
    for place in found:
        reason = unfit(place, kind, values)
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
        held.text = [["by", by], ["divided", boot()], *lines(allocation)]
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
    elif held.divided == boot():
        others = [
            each for each in everything() if each.key != held.key and each.found_id == held.found_id and each.part
        ]
        last = not any(each.type == held.type for each in others)
        back_ends.named(held.state["maker"]).unmake(held.allocation, last=last)


def boot() -> str:
    from ctrmgr.host import sysfs

    return sysfs.text(BOOT) or "-"
