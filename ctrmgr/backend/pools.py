# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device has to give and who has how much of it: the sums, and nothing that touches a machine."""

from __future__ import annotations

from ctrmgr.errors import ConflictError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.backend.held import Held
    from ctrmgr.devices.partition import Asked
    from ctrmgr.devices.plugin import Found, Partition

SOMEBODY = "another user or tool"
MIB = 1 << 20


class Share:
    """What somebody has of a device: `part` is the partition's id when it is one."""

    __slots__ = ("held", "owner", "part", "takes")

    def __init__(self, owner: str, takes: Mapping[str, int], part: str, held: Held | None = None) -> None:
        self.owner, self.takes, self.part, self.held = owner, dict(takes), part, held


def shares(kind: str, found: str, taken: Sequence[Held], there: Sequence[Partition] | None) -> list[Share]:
    """All that a device has given. What is on disk counts whether it is made already or not; `there` is what the hardware says, of
    which that counts that nobody here knows: another user's, or another program's."""
    made = {each.id for each in there or ()}
    own = [
        Share(each.owner, each.takes, each.part or (each.token if each.token in made else ""), each)
        for each in taken
        if (each.type, each.found_id) == (kind, found) and not each.uses
    ]
    known = {share.part for share in own}
    others = [each for each in there or () if each.found == found and each.id not in known]
    return own + [Share(SOMEBODY, each.takes, each.id) for each in others]


def free(found: Found, given: Sequence[Share]) -> dict[str, int]:
    """What is left in each pool."""
    return {pool: max(0, size - sum(share.takes.get(pool, 0) for share in given)) for pool, size in found.pools.items()}


def admit(found: Found, takes: Mapping[str, int], given: Sequence[Share], *, divides: bool = False) -> None:
    """Raises ConflictError when a pool is short, or when there would be too many partitions."""
    left = free(found, given)
    for pool, amount in takes.items():
        size = found.pools.get(pool, 0)
        if amount > left.get(pool, 0):
            has = [f"{share.owner} has {said(pool, share.takes[pool])}" for share in given if share.takes.get(pool)]
            raise ConflictError(
                f"`{found.id}` has {said(pool, left.get(pool, 0))} of {said(pool, size)} {pool} left, and "
                f"{said(pool, amount)} are asked for",
                hint=", ".join(has) or "nobody has any",
            )
    parts = [share for share in given if share.part]
    if divides and len(parts) >= found.partitions:
        raise ConflictError(
            f"`{found.id}` has {len(parts)} partitions, and no more than {found.partitions} may be",
            hint=", ".join(sorted(share.owner for share in parts)),
        )


def said(pool: str, amount: int) -> str:
    """An amount for people."""
    if pool != "memory" or amount < MIB or amount % MIB:
        return str(amount)
    return f"{amount >> 30}GiB" if amount % (1 << 30) == 0 else f"{amount // MIB}MiB"


def listed(takes: Mapping[str, int]) -> str:
    """Amounts in the words in which they are asked for."""
    return ",".join(f"{pool}={said(pool, amount)}" for pool, amount in sorted(takes.items()))


def sizes(found: Found, asked: Asked) -> list[tuple[str, dict[str, int]]]:
    """The profiles of a device that have what is asked for, the smallest first, each with what it takes; of a device without
    profiles what is asked for. Raises SpecError for what the device has no pool or profile of, ConflictError when even the whole is too
    small."""
    for pool, amount in asked.amounts.items():
        if pool not in found.pools:
            raise SpecError(f"`{found.id}` has no pool `{pool}`", hint=f"it has {listed(found.pools) or 'none'}")
        if amount > found.pools[pool]:
            raise ConflictError(
                f"`{found.id}` has {said(pool, found.pools[pool])} {pool} in all, and {said(pool, amount)} are asked for",
                hint=f"it has {listed(found.pools)}",
            )
    if asked.profile and asked.profile not in found.profiles:
        has = ", ".join(found.profiles) or "none"
        raise SpecError(f"`{found.id}` has no profile `{asked.profile}`", hint=f"it has {has}")
    if not found.profiles:
        return [("", dict(asked.amounts))]
    good = [
        (name, dict(takes))
        for name, takes in found.profiles.items()
        if asked.profile in ("", name) and all(takes.get(pool, 0) >= amount for pool, amount in asked.amounts.items())
    ]
    if not good:
        has = "; ".join(f"{name}: {listed(takes)}" for name, takes in found.profiles.items())
        raise ConflictError(f"no partition of `{found.id}` is so large", hint=has)
    return sorted(good, key=lambda each: (_part(found, each[1]), each[0]))


def _part(found: Found, takes: Mapping[str, int]) -> float:
    """How much of a device something is."""
    return sum(amount / found.pools[pool] for pool, amount in takes.items() if found.pools.get(pool))
