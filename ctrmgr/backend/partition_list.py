# SPDX-License-Identifier: GPL-3.0-or-later
"""Which partitions there are, and what there is to divide, for people. Cold."""

from __future__ import annotations

from ctrmgr.backend import partitions, pools
from ctrmgr.backend.held import NAMED, everything
from ctrmgr.errors import CtrmgrError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.held import Held


def overview() -> tuple[list[dict[str, object]], list[dict[str, object]], list[CtrmgrError]]:
    """All partitions, all pools, and what could not be asked."""
    taken = everything()
    found, wrong = partitions.places()
    listed: list[dict[str, object]] = []
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


def _line(
    place: partitions.Place, share: pools.Share, ids: set[str] | None, taken: Sequence[Held]
) -> dict[str, object]:
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
    nodes = [row[3] for row in held.rows if row[0] == "device"] if held is not None else []
    return {
        "name": name,
        "used by": owner,
        "type": place.type,
        "device": place.found.id,
        "part": share.part,
        "takes": pools.listed(share.takes),
        "nodes": nodes,
        "state": about,
    }


def _pool(place: partitions.Place, given: Sequence[pools.Share]) -> dict[str, object]:
    found = place.found
    left = pools.free(found, given)
    return {
        "type": place.type,
        "device": found.id,
        "model": found.model,
        "pools": pools.listed(found.pools),
        "free": pools.listed(left),
        "partitions": f"{sum(1 for share in given if share.part)} of {found.partitions}",
        "profiles": [f"{name}: {pools.listed(takes)}" for name, takes in found.profiles.items()],
    }
