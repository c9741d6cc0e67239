# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has which hardware, across all instances of this machine. Hot.

A lease is an empty file in one folder of the run directory, named `ID MODE INSTANCE DEVICE`: it is made and found in one step, a
reboot forgets it, and nobody has to be alive for it to count. One whose instance does not run, or has no such device any more, is
stale: whoever meets it in the way removes it. They are taken before a device is given and given back after it is taken away, so that
a command that is killed in between leaves one lease too many and never one too few.
"""

from __future__ import annotations

import os
import stat

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.devices import rows as parts
from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ID_MAX = 110
"""Bytes of an id: with the mode and the longest names of an instance and a device it is still a file's name."""
KEEPS = "keeps:"
PATIENCE = 2.0
"""Seconds that a monitor has to say whether it still has a device."""


class Lease:
    """One device of one instance holds one piece of hardware."""

    __slots__ = ("device", "file", "id", "instance", "mode")

    def __init__(self, file: str) -> None:
        self.file = file
        self.id, self.mode, self.instance, self.device = file.split(" ", 3)

    @property
    def owner(self) -> tuple[str, str]:
        return self.instance, self.device

    @property
    def keeps(self) -> bool:
        """Whether it is a guarantee of an amount (`guarantees.py`), of which there may be several as far as they fit."""
        return self.mode.startswith(KEEPS)

    def __str__(self) -> str:
        return f"`{self.instance}` ({self.mode}, as `{self.device}`)"


def folder() -> str:
    return f"{state.run_dir()}/.leases"


def held() -> list[Lease]:
    """All leases, stale ones too."""
    return [Lease(file) for file in state.entries(folder()) if file.count(" ") == 3]


def stale() -> list[Lease]:
    """Those that nobody has what they are for. Who looks removes none."""
    return [lease for lease in held() if is_stale(lease, "")]


def tell(instance: str = "") -> None:
    """Let a `count` of devices prefer what the instance has already, and then what nobody has. Cold."""
    from ctrmgr.devices import choose

    def known() -> tuple[set[str], list[str]]:
        own = {shown(lease.id) for lease in held() if lease.instance == instance}
        others = [lease for lease in held() if lease.instance != instance and not is_stale(lease, instance)]
        return own, [shown(lease.id) for lease in others if not lease.keeps]

    choose.held = known


def take(instance: str, rows: Sequence[Sequence[str]], *, beside: bool = False) -> None:
    """Take what the `lease` rows of a plan or device name, all or nothing; the caller holds the instance's lock. They replace what the
    same device had of the same hardware, or are `beside` it.

    Raises ConflictError, which says who has it.
    """
    wanted: dict[str, Lease] = {}
    for row in rows:
        file = file_of(instance, row) if row[0] == "lease" else ""
        if file:
            lease = Lease(file)
            wanted[f"{lease.id} {lease.device}"] = lease
    if wanted:
        if not os.path.isdir(folder()):
            state.make_dir(folder(), 0o700)
        with state.Lock(folder()):
            _take(list(wanted.values()), beside)


def _take(wanted: list[Lease], beside: bool) -> None:
    there = held()
    for index, lease in enumerate(wanted):
        if lease.keeps:
            continue
        others = [other for other in there if other.owner != lease.owner and _meet(other.id, lease.id)]
        if _blocking(lease, others):  # only then is it worth asking whether they are still there
            for other in [other for other in others if is_stale(other, lease.instance)]:
                drop(other)
                others.remove(other)
                there.remove(other)
        others += [other for other in wanted[:index] if other.owner != lease.owner and _meet(other.id, lease.id)]
        blocking = _blocking(lease, others)
        if blocking:
            raise ConflictError(
                f"device `{lease.device}`: `{shown(lease.id)}` is held by {', '.join(map(str, blocking))}",
                hint="detach it there first"
                if lease.mode != "exclusive" or lease.id.startswith("link:")
                else "detach it there first, or ask for lease=shared",
            )
    if any(lease.keeps for lease in wanted):
        from ctrmgr.backend import guarantees

        guarantees.admit([lease for lease in wanted if lease.keeps], there)
    for lease in wanted:
        try:
            os.close(os.open(f"{folder()}/{lease.file}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise state.unwritable(f"{folder()}/{lease.file}", error) from error
        for other in there:
            if not beside and other.owner == lease.owner and other.id == lease.id and other.file != lease.file:
                drop(other)


def found(device: str, values: Mapping[str, str]) -> list[list[str]]:
    """The rows of a device that is to be attached now. Raises what `rows.live` does, and ConflictError for a link that an instance has."""
    try:
        return parts.live(device, values)
    except NotFoundError as error:
        raise elsewhere(values.get("parent", ""), error) from None


def elsewhere(link: str, error: NotFoundError) -> CtrmgrError:
    """What to say where a link is not on the host: an instance that has it has taken it away from there."""
    holders = [lease for lease in held() if link and lease.id == f"link:{link}"]
    if not holders:
        return error
    return ConflictError(f"`{link}` is held by {', '.join(map(str, holders))}", hint="detach it there first")


def attached(instance: str, device: str) -> bool:
    """Whether a running instance has a device of this name that is leased, also one that is in no plan."""
    if not any(lease.instance == instance and lease.device == device for lease in held()):
        return False
    there = control.ask(record.run_home(instance), control.DEVICES, timeout=PATIENCE).devices()
    return any(part.name == device for part in there)


def release(instance: str, device: str = "") -> None:
    """Give back all that an instance has, or one device of it has. It needs no lock: what is gone blocks nobody."""
    for lease in held():
        if lease.instance == instance and device in ("", lease.device):
            state.unlink(f"{folder()}/{lease.file}")


def drop(lease: Lease) -> None:
    """This one alone."""
    state.unlink(f"{folder()}/{lease.file}")


def _blocking(lease: Lease, others: list[Lease]) -> list[Lease]:
    """Those that a lease cannot be together with."""
    if lease.mode == "exclusive":
        return others
    exclusive = [other for other in others if other.mode == "exclusive"]
    same = [other for other in others if other.id == lease.id]
    most = min(_most(each.mode) for each in (lease, *same))
    return exclusive or (same if len(same) >= most else [])


def _most(mode: str) -> int:
    number = mode.partition(":")[2]
    return int(number) if number.isdecimal() else 1 << 30


def _meet(one: str, other: str) -> bool:
    """The same hardware, or one is a part of the other."""
    return one == other or one.startswith(f"{other}%2F") or other.startswith(f"{one}%2F")


def is_stale(lease: Lease, asking: str) -> bool:
    """Whether nobody has what the lease is for. `asking` is the instance whose lock the caller holds."""
    busy = lease.instance != asking and state.is_locked(record.home(lease.instance))
    if busy:
        return False  # a command is at it: the device may be on its way
    if not record.is_running(lease.instance):
        return True
    try:
        answer = control.ask(record.run_home(lease.instance), control.DEVICES, timeout=PATIENCE)
    except CtrmgrError:
        return not record.is_running(lease.instance)
    if lease.keeps:
        from ctrmgr.backend import guarantees

        counts = guarantees.planned(lease)
        if counts is not None:
            return not counts
    return all(device.name != lease.device for device in answer.devices())


def file_of(instance: str, row: Sequence[str]) -> str:
    """The name of the file of a `lease` row; "" when it is on a node that is not there."""
    id = _identity(row[2])
    return id and f"{id} {row[3]} {instance} {row[1]}"


def _identity(id: str) -> str:
    """An id as it stands in a file's name; a node is its number, "" when there is none."""
    if id.startswith("node:"):
        try:
            status = os.stat(id[5:])
        except OSError:
            return ""
        kind = "block" if stat.S_ISBLK(status.st_mode) else "char"
        id = f"{kind}:{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    for letter, code in (("%", "%25"), ("/", "%2F"), (" ", "%20")):
        id = id.replace(letter, code)
    return id.encode()[-ID_MAX:].decode(errors="ignore")


def shown(id: str) -> str:
    for letter, code in ((" ", "%20"), ("/", "%2F"), ("%", "%25")):
        id = id.replace(code, letter)
    return id
