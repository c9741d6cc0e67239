# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-block`: a block device of the host."""

from __future__ import annotations

from ctrmgr.devices import fields, unix
from ctrmgr.devices.driver import Field
from ctrmgr.errors import NotFoundError
from ctrmgr.host import sysfs
from ctrmgr.units import size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.host.block import Disk


def _rate(value: str) -> str:
    digits = value.removesuffix("iops").strip()
    if digits != value and digits.isascii() and digits.isdecimal():
        found = f"{int(digits)}iops"
    else:
        found = str(size_bytes(value))
    if found in ("0", "0iops"):
        raise ValueError("would be no access at all: say `readonly`, or leave the device out")
    return found


FIELDS = {
    **unix.FIELDS,
    "id": Field(
        fields.word,
        "which disk it is, as `ctrmgr device list` names it; it decides where `source` leads elsewhere. Attach and launch note it down",
    ),
    "limits.read": Field(_rate, "bytes (`10MiB`) or requests (`200iops`) that may be read in a second"),
    "limits.write": Field(_rate, "the same for writing; cgroup v1 limits only what is written directly"),
    "limits.max": Field(_rate, "the same for both, each"),
}
live = True


def locate(values: Mapping[str, str], root: str = "/") -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The keys with the node that the disk has today as `source`, and the files that say that it is this disk.

    Raises NotFoundError when a disk with the `id` that was noted down is not here, SpecError when it is here several times.
    """
    from ctrmgr.host import block

    found, id = dict(values), values.get("id", "")
    source = values.get("source") or values.get("path", "")
    disk = block.at(source, root) if source else None
    if id and (disk is None or not _is(disk, id)):
        disk = _elsewhere(id, source, disk, root)
        found["source"] = disk.node.path if disk.node else source
        found.setdefault("path", source or found["source"])
    if disk is None or disk.diskseq < 0:
        return found, []
    name = (disk.parent and f"{disk.parent}/{disk.name}") or disk.name
    files = [f"/sys/block/{disk.parent or disk.name}/diskseq"]
    files += [f"/sys/block/{name}/partition"] if disk.parent else []
    top = root.rstrip("/")
    return found, [(file, sysfs.text(top + file)) for file in files]


def remembered(values: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """What is noted down when a disk is attached by its name of today: which one it is, if it can say so."""
    from ctrmgr.host import block

    disk = block.at(values.get("source") or values.get("path", ""), root)
    if values.get("id") or disk is None or disk.id.partition("-part")[0] in (disk.name, disk.parent):
        return {}
    return {"id": disk.id}


def _is(disk: Disk, id: str) -> bool:
    return disk.id == id.partition("@")[0] or disk.id == id


def _elsewhere(id: str, source: str, there: Disk | None, root: str) -> Disk:
    from ctrmgr.devices import choose
    from ctrmgr.host import block

    found = block.with_id(id, root)
    if not found:
        instead = f"; `{source}` is `{there.id}` now" if there else ""
        raise NotFoundError(f"the disk `{id}` is not on this host{instead}", hint="`ctrmgr device list unix-block`")
    return choose.only("unix-block", found, {"id": id}, found)


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row, and an `@io` row for each direction that is limited. Raises ValueError."""
    if "limits.max" in values and ("limits.read" in values or "limits.write" in values):
        raise ValueError("`limits.max` says what `limits.read` and `limits.write` say")
    found = unix.rows("block", name, values)
    source = found[0][3]
    for direction in ("read", "write"):
        rate = values.get(f"limits.{direction}") or values.get("limits.max")
        if rate:
            found.append(["@io", name, source, direction, rate])
    return found
