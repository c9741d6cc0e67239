# SPDX-License-Identifier: GPL-3.0-or-later
"""Guarantees of GPU memory: all that instances of this machine are promised of one GPU must be there at once. Cold.

What other users' instances are promised is seen where the kernel or NVIDIA's driver has it; from the look at it until one's own is
there, too, nobody else of the machine looks.

A guarantee is a lease `memory:SUBJECT keeps:BYTES:CAPACITY …`, so that it is given back as leases are. One GPU has one limit for an
instance, whichever of its devices brings it: what an instance has several leases of counts once, and while the amount changes the
larger one counts.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from ctrmgr import state
from ctrmgr.backend import leases, machine_lock, pools, record
from ctrmgr.backend.record import crash
from ctrmgr.errors import ConflictError, CtrmgrError, UnsupportedError
from ctrmgr.host import cgroup, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ctrmgr.backend.leases import Lease

    Rows = Sequence[Sequence[str]]

MEMORY = "memory:"
"""How the ids begin; of device memory that the kernel counts the region follows."""


def admit(wanted: Sequence[Lease], there: Sequence[Lease]) -> None:
    """Raises ConflictError when what is `wanted` does not fit beside what is `there`; the caller holds the lock of the leases. Those that
    are stale are removed when they are in the way."""
    for id in dict.fromkeys(lease.id for lease in wanted):
        mine = max((lease for lease in wanted if lease.id == id), key=_amount)
        others = [each for each in there if each.keeps and each.id == id and each.instance != mine.instance]
        region, capacity = leases.shown(id).removeprefix(MEMORY), int(mine.mode.rpartition(":")[2])
        above, folder = _above(region)
        whose = f"memory that `{folder}` keeps" if above < capacity else "memory"
        capacity = int(min(above, capacity))
        strangers = dict(_strangers(region))
        if _amount(mine) > _left(capacity, others, strangers):
            for other in [other for other in others if leases.is_stale(other, mine.instance)]:
                leases.drop(other)
                others.remove(other)
        left = _left(capacity, others, strangers)
        if _amount(mine) > left:
            has = [f"`{name}` has {_said(amount)}" for name, amount in sorted({**_sums(others), **strangers}.items())]
            raise ConflictError(
                f"device `{mine.device}`: {_said(_amount(mine))} of `{region}` cannot be kept for `{mine.instance}`: of "
                f"{_said(capacity)} of {whose} {_said(left)} are promised to nobody",
                hint=", ".join(has),
            )


def _above(region: str) -> tuple[float, str]:
    """What the cgroups above that of all instances have of device memory, and which of them has the least."""
    top, path = cgroup.read().unified, os.path.dirname(state.cgroup_parent())
    return (
        cgroup.least_guaranteed(top, path, "dmem.min", region)
        if top and region.startswith("drm/")
        else (float("inf"), "")
    )


def _amount(lease: Lease) -> int:
    return int(lease.mode.split(":")[1])


def _said(amount: int) -> str:
    return pools.said("memory", amount) if amount >= pools.MIB and amount % pools.MIB == 0 else f"{amount} bytes"


def _sums(given: Iterable[Lease]) -> dict[str, int]:
    """Instance → what is kept for it."""
    found: dict[str, int] = {}
    for lease in given:
        found[lease.instance] = max(found.get(lease.instance, 0), _amount(lease))
    return found


def _left(capacity: int, others: Iterable[Lease], strangers: Mapping[str, int]) -> int:
    return max(0, capacity - sum(_sums(others).values()) - sum(strangers.values()))


def _strangers(region: str) -> Iterator[tuple[str, int]]:
    """Cgroups that are not below ours and have a guarantee: another user's, or another program's."""
    top = cgroup.read().unified
    if not top:
        return iter(())
    return _counted(top, region) if region.startswith("drm/") else _nvidias(top, region)


def _counted(top: str, region: str) -> Iterator[tuple[str, int]]:
    """In `dmem.min`, with processes: a cgroup that nobody is in keeps nothing."""
    own = state.cgroup_parent().partition("/")[0]
    for name in sysfs.names(top):
        kept = _line(f"{top}/{name}/dmem.min", region) if name != own and "." not in name[:1] else "0"
        if kept not in ("", "0") and _line(f"{top}/{name}/cgroup.events", "populated") == "1":
            yield f"{top}/{name}", int(kept) if kept.isdecimal() else 1 << 62


def _nvidias(top: str, address: str) -> Iterator[tuple[str, int]]:
    """NVIDIA's driver lists nothing, but says of each cgroup that it is asked about what is kept for it."""
    from ctrmgr.kernel import nvml

    own = f"{top}/{state.cgroup_parent()}"
    try:
        with nvml.Library() as library:
            for folder, below, _ in os.walk(top):
                below[:] = [name for name in below if f"{folder}/{name}" != own]
                kept = library.kept(address, folder)
                if kept:
                    yield folder, kept
    except UnsupportedError:
        pass  # no driver, and nothing that it keeps


def _line(file: str, word: str) -> str:
    """What a file says after a word at the beginning of a line."""
    lines = sysfs.text(file).splitlines()
    return next((line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == word), "")


def planned(lease: Lease) -> bool | None:
    """Whether an instance that runs is to have this guarantee, by its plan or one that is about to replace it; None when its plan has
    no such device: that is there for this run only, or is on its way."""
    rows: list[list[str]] = []
    for file in ("plan", "plan.new"):
        if os.path.exists(f"{record.home(lease.instance)}/{file}"):
            try:
                rows += record.read_plan(record.home(lease.instance), file)
            except CtrmgrError:
                return True  # who knows
    if any(_keeps(row) and leases.file_of(lease.instance, row) == lease.file for row in rows):
        return True
    return False if any(row[0] == "device" and row[1] == lease.device for row in rows) else None


@contextmanager
def promised(instance: str, old: Rows, new: Rows) -> Iterator[None]:
    """What is kept for a running instance changes meanwhile, from what one plan says to what another one does: until it has, both
    amounts count. The caller holds the instance's lock. Raises ConflictError when the others leave too little."""
    wanted = [row for row in new if _keeps(row)]
    if not wanted and not any(_keeps(row) for row in old):
        yield
        return
    try:
        with machine_lock.taken():
            leases.take(instance, wanted, beside=True)
            crash("config-promised")
            yield
    except BaseException:
        _settle(instance, old)
        raise
    crash("config-kept")
    _settle(instance, new)


def _keeps(row: Sequence[str]) -> bool:
    return row[0] == "lease" and row[3].startswith(leases.KEEPS)


def _settle(instance: str, plan: Rows) -> None:
    """Give back what a plan does not say of its devices (any more)."""
    wanted = {leases.file_of(instance, row) for row in plan if _keeps(row)}
    devices = {row[1] for row in plan if row[0] == "device"}
    for lease in leases.held():
        if lease.instance == instance and lease.keeps and lease.device in devices and lease.file not in wanted:
            leases.drop(lease)
