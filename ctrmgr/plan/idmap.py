# SPDX-License-Identifier: GPL-3.0-or-later
"""Id maps: an instance's own range, with `raw.idmap`'s holes punched into it."""

from __future__ import annotations

from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

EXTENTS_MAX = 32
"""Rows of one map that the monitor has room for (`native_helpers/plan.h`); the kernel would take 340."""


def build(size: int, base: int, raw: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Rows (inside, outside, count): ids 0 … size-1 are base …, except those that `raw` maps elsewhere.

    `raw` may map ids beyond `size`, too. Raises SpecError when its rows meet each other or there are too many.
    """
    holes = sorted(raw)
    rows: list[tuple[int, int, int]] = []
    begin = 0
    for inside, outside, count in holes:
        if rows and inside < rows[-1][0] + rows[-1][2]:
            raise SpecError(f"`raw.idmap` maps id {inside} of the instance twice")
        if begin < min(inside, size):
            rows.append((begin, base + begin, min(inside, size) - begin))
        rows.append((inside, outside, count))
        begin = inside + count
    if begin < size:
        rows.append((begin, base + begin, size - begin))
    check_outside(holes, base, size)
    if len(rows) > EXTENTS_MAX:
        raise SpecError(f"`raw.idmap` makes {len(rows)} extents", hint=f"at most {EXTENTS_MAX} are taken")
    return rows


def check_outside(raw: Iterable[tuple[int, int, int]], base: int, size: int) -> None:
    """Raises SpecError when one host id would be two ids inside: the kernel refuses such a map without saying why."""
    taken = [(base, size)]
    for _, outside, count in raw:
        for other, other_count in taken:
            if outside < other + other_count and other < outside + count:
                raise SpecError(f"`raw.idmap`: host id {max(outside, other)} is mapped twice")
        taken.append((outside, count))
