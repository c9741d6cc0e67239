# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance whose CPUs and memory follow its devices (`limits.cpu.nodes: devices`) when one of them comes or goes. Cold.

The whole plan is staged, so that a command that is killed is finished or undone as any change of it: the device first, then the limits.
"""

from __future__ import annotations

from ctrmgr.backend import leases, record
from ctrmgr.backend.record import crash
from ctrmgr.devices import rows as parts
from ctrmgr.errors import CtrmgrError, HostError
from ctrmgr.host.machine import Host
from ctrmgr.plan import instance, limits, numa

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Rows = Sequence[Sequence[str]]

AGAIN = ["identity", "-", parts.ALWAYS, ""]
"""Of a plan whose place is that of devices which its next run will not have."""
STAYS = "its CPUs and memory stay where they are: "


class Added:
    """`record.Added`, of a device that its instance follows."""

    __slots__ = ("new", "old", "record")

    def __init__(self, own: record.Record, device: str, values: Mapping[str, str], plan: Rows, rows: Rows) -> None:
        self.record, self.old = own, plan
        host = Host()
        rows = [*rows, *numa.watched(rows, host)]
        self.new = followed(own.name, [*plan, *rows], host, [*has(own.name, plan), *rows], plan)
        own.devices[device] = dict(values)
        record.stage(own, self.new)

    def move(self) -> None:
        """To where the devices are now. Raises HostError when the kernel does not let it."""
        moved(self.record.name, self.old, self.new)

    def finish(self) -> None:
        record.finish(self.record.path)

    def drop(self) -> None:
        record.drop(self.record.path)


def follow(own: record.Record, added: object, undo: Callable[[], None]) -> None:
    """To where the devices are, now that one has come, also one that is in no plan. Raises HostError; then it was taken away by `undo`."""
    try:
        if isinstance(added, Added):
            added.move()
        else:
            came(own)
    except BaseException:
        undo()
        raise


def left(name: str, plan: Rows, device: str) -> tuple[list[list[str]], str]:
    """The plan without a device, moved to where the others are; or as it is, and why it stays there."""
    try:
        return followed(name, plan, Host(), has(name, plan, device)), ""
    except CtrmgrError as error:
        return [list(row) for row in plan], STAYS + error.message


def came(own: record.Record) -> None:
    """After a device for this run only: to where the devices are now, which the next start looks for again. Raises HostError."""
    plan = own.plan()
    _follow(own, plan, followed(own.name, plan, Host(), has(own.name, plan), plan))


def went(own: record.Record) -> str:
    """The same when it has gone; or why it stays where it is."""
    plan = own.plan()
    try:
        _follow(own, plan, followed(own.name, plan, Host(), has(own.name, plan)))
        return ""
    except CtrmgrError as error:
        return STAYS + error.message


def behind(name: str, plan: Rows) -> str:
    """Why a running instance that follows its devices is not where they are: one took the place of another, or CPUs came or went, and no
    command has followed yet. "" when it is, and where nobody can tell."""
    try:
        new = followed(name, plan, Host(), has(name, plan), plan)
    except CtrmgrError:
        return ""
    there, wanted = ({row[2]: row[3] for row in rows if numa.is_place(row)} for rows in (plan, new))
    if there == wanted:
        return ""
    place = (
        f"CPUs {wanted.get('cpuset.cpus', 'of any number')} of NUMA node {wanted.get('cpuset.mems', 'of any number')}"
    )
    return f"its devices are at {place}, where the next change of it or of its devices takes it"


def _follow(own: record.Record, plan: Rows, new: Rows) -> None:
    if new == plan:
        return
    record.stage(own, new)
    try:
        crash("follow-recorded")
        moved(own.name, plan, new)
    except BaseException:
        record.drop(own.path)
        raise
    record.finish(own.path)


def has(name: str, plan: Rows, without: str = "") -> list[Sequence[str]]:
    """A plan with what a running instance has now, by its leases: of this run only, too, and what took the place of something else."""
    held = [lease for lease in leases.held() if lease.instance == name and not lease.keeps]
    if not record.is_running(name):
        held = []
    live = {lease.device for lease in held}
    rows = [row for row in plan if row[0] != "lease" or row[1] not in live]
    rows += [["lease", lease.device, leases.shown(lease.id), lease.mode] for lease in held]
    return [row for row in rows if row[0] not in parts.WORDS or row[1] != without]


def followed(name: str, plan: Rows, host: Host, rows: Rows = (), stays: Rows = ()) -> list[list[str]]:
    """The plan with the CPUs and memory nodes of its devices, or of those in `rows`; where none of them says where it is, of the plan that
    `stays`. Raises HostError, SpecError when `limits.cpu` and they do not go together."""
    (follows,) = (row for row in plan if row[0] == numa.FOLLOWS)
    config = {numa.KEY: numa.DEVICES, **({"limits.cpu": follows[1]} if follows[1] else {})}
    made = limits.rows(numa.placed(config, rows or plan, host, stays), host)
    chosen = [instance.chosen(row, instance.range_of(name)) for row in made]
    first = next((number for number, row in enumerate(plan) if numa.is_place(row)), len(plan))
    kept = [list(row) for row in plan if not numa.is_place(row) and row != AGAIN]
    again = [AGAIN] if rows and numa.nodes(rows, host) != numa.nodes(plan, host) else []
    return kept[:first] + chosen + kept[first:] + again


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
