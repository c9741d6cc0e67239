# SPDX-License-Identifier: GPL-3.0-or-later
"""Which partitions there are, and what there is to divide, for people. Cold."""

from __future__ import annotations

from ctrmgr.backend import named_partitions, partitions, pools
from ctrmgr.backend.held import NAMED, everything, of
from ctrmgr.devices import partition
from ctrmgr.errors import CtrmgrError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.backend.held import Held


class Partition:
    """A part of a device: `name` is one that `partition create` gave it, `used_by` who has it (INSTANCE/DEVICE), `part` by which the
    hardware knows it, `takes` what it has of each pool, `state` whether it is there."""

    __slots__ = ("device", "name", "nodes", "part", "state", "takes", "type", "used_by")

    def __init__(self, name: str, used_by: str, type: str, device: str, part: str, takes: Mapping[str, int], nodes: Sequence[str], state: str) -> None:  # fmt: skip
        self.name, self.used_by, self.type, self.device, self.part = name, used_by, type, device, part
        self.takes, self.nodes, self.state = dict(takes), list(nodes), state

    def __repr__(self) -> str:
        return f"Partition({self.name or self.used_by or self.part!r} of {self.device!r}: {pools.listed(self.takes)})"

    def row(self) -> dict[str, object]:
        """For programs."""
        return {
            "name": self.name,
            "used by": self.used_by,
            "type": self.type,
            "device": self.device,
            "part": self.part,
            "takes": self.takes,
            "nodes": self.nodes,
            "state": self.state,
        }


def everywhere() -> tuple[list[Partition], list[CtrmgrError]]:
    """All partitions of this machine's devices, and what could not be asked."""
    listed, _, wrong = _look()
    return listed, wrong


def create(name: str, device: str, sizes: str, kind: str = "") -> Partition:
    """What `named_partitions.create` has made. Raises what that does, and SpecError for words that are none."""
    try:
        partition.name(name)
        held = named_partitions.create(name, device, partition.sizes(sizes), kind)
    except ValueError as error:
        raise SpecError(f"partition `{name}`: `{sizes}` {error}", hint=partition.UNITS) from None
    return _about(held, "", "free")


def of_instance(name: str) -> list[Partition]:
    """What one instance has been given of devices, with or without a name."""
    found = []
    named = of(NAMED)
    for held in of(name).values():
        whole = named.get(held.uses) if held.uses else held if held.part else None
        if whole is not None:
            state = f"not released: {held.failed}" if held.failed else "in use" if held.rows else "being made"
            found.append(_about(whole, held.owner, state))
    return found


def _about(held: Held, used_by: str, state: str) -> Partition:
    name = held.device if held.instance == NAMED else ""
    return Partition(name, used_by, held.type, held.found_id, held.part, held.takes, _nodes(held), state)


def _nodes(held: Held) -> list[str]:
    return [row[3] for row in held.rows if row[0] == "device"]


def overview() -> tuple[list[dict[str, object]], list[dict[str, object]], list[CtrmgrError]]:
    """All partitions and all pools, for programs, and what could not be asked."""
    listed, sums, wrong = _look()
    return [each.row() for each in listed], sums, wrong


def _look() -> tuple[list[Partition], list[dict[str, object]], list[CtrmgrError]]:
    taken = everything()
    found, wrong = partitions.places()
    listed: list[Partition] = []
    sums: list[dict[str, object]] = []
    for place in sorted(found, key=lambda each: (each.type, each.found.id)):
        try:
            there = place.there()
        except CtrmgrError as error:
            wrong.append(error)
            continue
        given = pools.shares(place.type, place.found.id, taken, there)
        ids = None if there is None else {each.id for each in there}
        listed += [_line(place, share, ids, taken) for share in given if share.part]
        sums.append(_pool(place, given))
    shown = {(each["type"], each["device"]) for each in sums}
    for held in taken:
        if held.part and (held.type, held.found_id) not in shown:
            listed.append(
                _line(
                    partitions.Place(held.type, held.found),
                    pools.Share(held.owner, held.takes, held.part, held),
                    set(),
                    taken,
                )
            )
    return listed, sums, wrong


def _line(place: partitions.Place, share: pools.Share, ids: set[str] | None, taken: Sequence[Held]) -> Partition:
    held = share.held
    name = held.device if held is not None and held.instance == NAMED else ""
    owner = share.owner
    if name:
        owner = next((each.owner for each in taken if each.uses == name), "")
    if held is None:
        about = "not ctrmgr's"
    elif held.failed:
        about = f"not released: {held.failed}"
    elif not held.rows:
        about = "being made, or left by a killed command"
    elif ids is not None and held.part not in ids:
        about = "gone: made again when it is used" if name else "gone"
    else:
        about = "in use" if owner else "free"
    nodes = _nodes(held) if held is not None else []
    return Partition(name, owner, place.type, place.found.id, share.part, share.takes, nodes, about)


def _pool(place: partitions.Place, given: Sequence[pools.Share]) -> dict[str, object]:
    found = place.found
    left = pools.free(found, given)
    return {
        "type": place.type,
        "device": found.id,
        "model": found.model,
        "pools": dict(found.pools),
        "free": dict(left),
        "partitions": sum(1 for share in given if share.part),
        "most": found.partitions,
        "profiles": {name: dict(takes) for name, takes in found.profiles.items()},
    }
