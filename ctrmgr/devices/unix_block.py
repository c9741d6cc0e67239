# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-block`: a block device of the host."""

from __future__ import annotations

from ctrmgr.devices import fields, unix
from ctrmgr.devices.driver import Field
from ctrmgr.errors import CtrmgrError, NotFoundError
from ctrmgr.host import sysfs
from ctrmgr.units import size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
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


def in_use(values: Mapping[str, str], root: str = "/") -> list[str]:
    """Where the host itself uses a disk that the keys let an instance write to, or a partition of it: mounts, swap, what is built on it."""
    from ctrmgr.host import block

    disk = block.at(values.get("source") or values.get("path", ""), root)
    if disk is None or fields.flag(values.get("readonly") or "false") == "true":
        return []
    return list(dict.fromkeys(use for each in (disk, *disk.partitions) for use in block.used(each, root)))


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


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server."""
    from ctrmgr.devices import lxd

    rate = lxd.native("unix_block_limits")
    return {
        **unix.lxd_ways(),
        "id": lxd.mapped(
            "`source`: the node that the disk has on the server's machine now, if that is this one or the server tells of it"
        ),
        "limits.read": rate,
        "limits.write": rate,
        "limits.max": lxd.mapped("`limits.read` and `limits.write`", extension="unix_block_limits"),
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type; which disk it is they know by its node alone."""
    from ctrmgr.devices import lxd

    made = lxd.plain("unix-block", name, values, there, lxd_ways())
    keys = made.devices[name]
    if values.get("limits.max"):
        keys |= {"limits.read": values["limits.max"], "limits.write": values["limits.max"]}
    if id := values.get("id", ""):
        source = values.get("source") or values.get("path", "")
        found, reason = lxd_node(id, source, there)
        if reason:
            made.problems.append((f"{name}.id", reason))
        else:
            keys |= {"source": found, "path": values.get("path") or source or found}
    return made


def lxd_node(id: str, source: str, there: There) -> tuple[str, str]:
    """The node that a disk has on a server's machine, or why that is not known."""
    if there.root:
        try:
            return locate({"source": source, "id": id}, there.root)[0]["source"], ""
        except CtrmgrError as error:
            return "", error.message
    if there.resources is None:
        return "", "which disk of its machine that is is not known: say its node, `source`"
    whole, part, number = id.partition("-part")
    for disk in (there.resources.get("storage") or {}).get("disks") or ():
        if whole in filter(None, (disk.get("device_id"), disk.get("wwn"), disk.get("serial"))):
            names = [f"{disk['id']}{between}{number}" for between in ("", "p")] if part else [disk["id"]]
            there_are = [str(disk["id"]), *(str(each["id"]) for each in disk.get("partitions") or ())]
            return next(
                ((f"/dev/{each}", "") for each in names if each in there_are),
                ("", f"the disk `{whole}` has no partition {number} there"),
            )
    return "", f"its machine has no disk `{whole}`"
