# SPDX-License-Identifier: GPL-3.0-or-later
"""What the devices of a running instance do to it, in CDI's words: the same for a container of another runtime. Cold.

What it has is what its monitor says, so that plugged, volatile and suspended devices are what they are now; where that comes from on the
host is in its plan.
"""

from __future__ import annotations

import os

from ctrmgr.backend import passable, record
from ctrmgr.devices import cdi_hooks
from ctrmgr.devices import rows as parts
from ctrmgr.edits import ContainerEdits, DeviceNode, IntelRdt, Mount, NetDevice
from ctrmgr.errors import NotFoundError
from ctrmgr.host import sysfs
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.record import Record
    from ctrmgr.edits import Hook
    from ctrmgr.kernel.control import Device

    Rows = Sequence[Sequence[str]]

NOT_SAID = {"rdma": "an RDMA device that moves in", "rule": "what is plugged in later"}
"""Kinds of parts for which a specification has no words."""


class Mirrored:
    """One device of an instance by its name there, with what a specification cannot say of it."""

    __slots__ = ("edits", "left_out", "name")

    def __init__(self, name: str, edits: ContainerEdits, left_out: Sequence[str]) -> None:
        self.name, self.edits, self.left_out = passable.plain(name), edits, list(left_out)


def devices(instance: str, wanted: Sequence[str] = ()) -> list[Mirrored]:
    """All devices that a running instance has, or those that are named. Raises NotFoundError, ConflictError when it does not run."""
    there = control.ask(record.running(instance), control.DEVICES).devices()
    own = record.Record(instance)
    names = list(dict.fromkeys(part.name for part in there))
    for name in wanted:
        if name not in names:
            hint = f"it has {', '.join(names)}" if names else "it has none"
            raise NotFoundError(f"`{instance}` has no device `{name}` now", hint=hint)
    return [_device(own, name, [part for part in there if part.name == name]) for name in wanted or names]


def _device(own: Record, name: str, there: Sequence[Device]) -> Mirrored:
    plan = own.plan()
    shared = {row[2] for row in plan if row[0] == "shares" and row[1] == name}
    mine = [row for row in plan if row[1:2] == [name] or parts.place(row) in shared]
    places = {part.path for part in there}
    said = [row for row in mine if row[0] in ("bind", "filesystem") and parts.place(row) in places]
    missing = {part.path for part in there if part.kind != "env"} - {parts.place(row) for row in mine}
    left_out = [f"{NOT_SAID[part.kind]}" for part in there if part.kind in NOT_SAID]
    missing |= {part.path for part in there if part.kind == "env"} - {row[2] for row in mine if row[0] == "device-env"}
    left_out += [f"`{part.path}`, which is given for this run only" for part in there
                 if part.kind in ("bind", "filesystem", "env") and part.path in missing]  # fmt: skip
    nodes = [part for part in there if part.kind in ("char", "block") and not part.suspended]
    edits = ContainerEdits(
        env=[f"{row[2]}={row[3]}" for row in mine if row[0] == "device-env"],
        device_nodes=[_node(part, mine) for part in nodes] + [_shared(row) for row in mine if _is_shared(row, shared)],
        net_devices=[NetDevice(row[2], row[3]) for row in mine if row[0] == "netdev"],
        mounts=[_mount(row) for row in said],
        hooks=_hooks(mine, left_out),
        additional_gids=[int(row[2]) for row in mine if row[0] == "device-group"],
        intel_rdt=next((_class(row) for row in mine if row[0] == "resctrl"), None),
    )
    return Mirrored(
        name, edits, left_out if edits else [*left_out, "it has nothing that another container could be given"]
    )


def _class(row: Sequence[str]) -> IntelRdt:
    name = "" if row[2] == "." else row[2]
    return IntelRdt(name, schemata=row[5:], enable_monitoring=row[4] == "monitored")


def _is_shared(row: Sequence[str], shared: set[str]) -> bool:
    return row[0] == "device" and row[4] in shared


def _shared(row: Sequence[str]) -> DeviceNode:
    """A node that another device of the instance brings; its owner is that one's."""
    return passable.numbered(DeviceNode(row[4], row[3] if row[3] != row[4] else "", row[2][0], permissions=row[8]), "/")


def _node(part: Device, mine: Rows) -> DeviceNode:
    source = next((row[3] for row in mine if row[0] == "device" and row[4] == part.path), "") or _named(part)
    access = "".join(letter for letter in "rwm" if letter in part.access)
    host = source if source != part.path else ""
    return DeviceNode(part.path, host, part.kind[0], part.major, part.minor, part.mode, access, part.uid, part.gid)


def _named(part: Device) -> str:
    """What the host calls a node with this number."""
    text = sysfs.text(f"/sys/dev/{part.kind}/{part.major}:{part.minor}/uevent")
    name = next((line.partition("=")[2] for line in text.splitlines() if line.startswith("DEVNAME=")), "")
    return f"/dev/{name}" if name and os.path.exists(f"/dev/{name}") else part.path


def _mount(row: Sequence[str]) -> Mount:
    if row[0] == "filesystem":
        options = [*_options(row[5]), *filter(None, row[6].split(","))]
        return Mount(row[3], row[4], options, row[2])
    return Mount(row[2], row[3], [*_options(row[4]), "rbind" if "recursive" in row[4].split(",") else "bind"])


def _options(words: str) -> list[str]:
    """Those that other runtimes know."""
    given = words.split(",")
    return ["rw" if "rw" in given else "ro", "nosuid", "nodev", *(["noexec"] if "noexec" in given else [])]


def _hooks(mine: Rows, left_out: list[str]) -> list[Hook]:
    """What is done inside, by NVIDIA's program where it is installed; what an administrator has allowed is called as it was."""
    program = passable.hook_program("/")
    found = []
    for row in mine:
        hook = cdi_hooks.hook_of(row) if row[0] in ("hook", "host-hook") else None
        if hook is None and row[0] == "hook":
            if not program:
                left_out.append(f"its {row[2]}, for which no program of other runtimes is installed")
                continue
            hook = passable.hook(program, row[2:])
        if hook is not None:
            found.append(hook)
    return found
