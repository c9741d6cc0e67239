# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance's plan asks for without saying which device. Hot."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ctrmgr.backend.held import Held

    Mend = Callable[[str], object]
    """Puts an instance in order whose lock is held: `repair.instance`."""


class Request:
    """What a plan's `request` rows ask for."""

    __slots__ = ("device", "life", "type", "values")

    def __init__(self, device: str, type: str, life: str) -> None:
        self.device, self.type, self.life = device, type, life
        self.values: dict[str, str] = {}

    def fits(self, held: Held) -> bool:
        """Whether this is what was given."""
        return held.values == self.values


def requests(plan: Iterable[Sequence[str]]) -> dict[str, Request]:
    """By the name of the device."""
    found: dict[str, Request] = {}
    for row in plan:
        if row[0] == "request":
            found.setdefault(row[1], Request(row[1], row[2], row[3])).values[row[4]] = row[5]
    return found
