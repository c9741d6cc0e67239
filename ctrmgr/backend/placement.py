# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance whose CPUs and memory follow its devices (`limits.cpu.nodes: devices`) when one of them comes or goes. Cold.

The whole plan is staged, so that a command that is killed is finished or undone as any change of it: the device first, then the limits.
"""

from __future__ import annotations

from ctrmgr.backend import record
from ctrmgr.errors import CtrmgrError, HostError
from ctrmgr.host.machine import Host
from ctrmgr.plan import instance, limits, numa

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Rows = Sequence[Sequence[str]]

STAYS = "its CPUs and memory stay where they are: "


class Added:
    """`record.Added`, of a device that its instance follows."""

    __slots__ = ("new", "old", "record")

    def __init__(self, own: record.Record, device: str, values: Mapping[str, str], plan: Rows, rows: Rows) -> None:
        self.record, self.old = own, plan
        host = Host()
        self.new = followed(own.name, [*plan, *rows, *numa.watched(rows, host)], host)
        own.devices[device] = dict(values)
        record.stage(own, self.new)

    def move(self, take_away: Callable[[], None]) -> None:
        """To where the devices are now; raises HostError when the kernel does not let it, and then the device has gone again."""
        try:
            moved(self.record.name, self.old, self.new)
        except BaseException:
            take_away()
            raise

    def finish(self) -> None:
        record.finish(self.record.path)

    def drop(self) -> None:
        record.drop(self.record.path)


def left(name: str, plan: Rows) -> tuple[list[list[str]], str]:
    """The plan without a device, moved to where the others are; or as it is, and why it stays there."""
    try:
        return followed(name, plan, Host()), ""
    except CtrmgrError as error:
        return [list(row) for row in plan], STAYS + error.message


def followed(name: str, plan: Rows, host: Host) -> list[list[str]]:
    """The plan with the CPUs and memory nodes of its devices. Raises HostError, SpecError when `limits.cpu` and they do not go together."""
    (follows,) = (row for row in plan if row[0] == numa.FOLLOWS)
    config = {numa.KEY: numa.DEVICES, **({"limits.cpu": follows[1]} if follows[1] else {})}
    made = limits.rows(numa.placed(config, plan, host), host)
    chosen = [instance.chosen(row, instance.range_of(name)) for row in made]
    first = next((number for number, row in enumerate(plan) if numa.is_place(row)), len(plan))
    kept = [list(row) for row in plan if not numa.is_place(row)]
    return kept[:first] + chosen + kept[first:]


def moved(name: str, old: Rows, new: Rows) -> None:
    """A running instance, to where the new plan says. Raises HostError; then it is where it was."""
    before, after = ([row for row in plan if numa.is_place(row)] for plan in (old, new))
    if before != after:
        from ctrmgr.backend import live

        live.change_limits(name, before, after)


def moved_after(own: record.Record, old: Rows, new: Rows) -> str:
    """`moved`, of an instance whose device has gone already: why it stays where it was, as is recorded then."""
    try:
        moved(own.name, old, new)
        return ""
    except HostError as error:
        there = [row for row in old if numa.is_place(row)]
        record.stage(own, [*(row for row in new if not numa.is_place(row)), *there])
        return STAYS + error.message
