# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpu`: a graphics card or compute GPU, a part of one, or several; which node is whose is found out on the machine."""

from __future__ import annotations

from ctrmgr.devices import choose, fields, gpu_nvidia, gpu_parts, partition
from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.driver import Resolved
    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.gpu import Gpu

live = True
ALL = ("/sys/class/drm/", "/proc/driver/nvidia/gpus/")
"""Where another GPU would be."""


def _type(value: str) -> str:
    if value in ("mdev", "native-context"):
        raise ValueError("is for virtual machines: an instance shares the host's kernel and its drivers")
    return fields.choice("physical", "mig", "sriov")(value)


FIELDS = {
    "gputype": Field(
        _type, "`physical`, `mig` (a slice of an NVIDIA GPU) or `sriov` (a virtual function)", default="physical"
    ),
    "id": Field(fields.word, "number of the DRM card, a name of `ctrmgr device list`, or a CDI device (vendor/class=name)"),
    "pci": Field(fields.address, "PCI address; of a virtual function also that of its physical one"),
    "uuid": Field(fields.word, "UUID that the driver gives it, or how it begins"),
    "vendorid": Field(fields.hexa, "PCI vendor"),
    "productid": Field(fields.hexa, "PCI product"),
    "count": Field(choose.count, "how many of those that fit: a number, or `all`; without any other key it is all"),
    "kms": Field(fields.flag, "the card nodes too, with which screens are driven, and not only render nodes", default="false"),
    "mig.uuid": Field(fields.word, "a slice by its UUID (`MIG-GPU-…/gi/ci`)"),
    "mig.gi": Field(fields.number, "a slice by its GPU instance; needs `mig.ci`"),
    "mig.ci": Field(fields.number, "a slice by its compute instance; needs `mig.gi`"),
    "driver.capabilities": Field(
        gpu_nvidia.capabilities,
        "what NVIDIA's driver files are for, a comma list: compute, utility, graphics, video, display; `all`, or `none`: nodes only",
        default=gpu_nvidia.DEFAULT,
    ),
    "memory": Field(fields.amount, "ours; how much of its memory, of each GPU's: a size or a percentage; over `limits.gpu.memory`"),
    "memory.reserve": Field(fields.amount, "ours; how much of its memory is kept for the instance; over `limits.gpu.memory.reserve`"),
    "partition": partition.FIELD,
    **fields.OWNERSHIP,
    "failover": fields.FAILOVER,
    "mdev": Field(str, "known from LXD and Incus", refused="it is for virtual machines"),
}  # fmt: skip


LIMITS = ("memory", "memory.reserve")


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The nodes and files of the GPUs that are meant, and the limits on them."""
    found = _resolved(name, {key: value for key, value in values.items() if key not in LIMITS}, root)
    found.limits = {key: values[key] for key in LIMITS if values.get(key)}
    return found


def _resolved(name: str, values: Mapping[str, str], root: str) -> Resolved:
    from ctrmgr.host import gpu

    if "=" in values.get("id", ""):
        from ctrmgr.devices import cdi

        other = sorted(set(values) - set(cdi.FIELDS))
        if other:
            raise ValueError(f"a CDI device says itself what it is: take `{other[0]}` out")
        return cdi.resolve(name, values, root)
    wanted = {key: values[key] for key in ("id", "pci", "uuid", "vendorid", "productid", "count") if values.get(key)}
    every = gpu.gpus(root)
    kind = values.get("gputype") or "physical"
    if any(values.get(key) for key in ("mig.uuid", "mig.gi", "mig.ci")) and kind != "mig":
        raise ValueError("`mig.…` is for `gputype: mig`")
    if kind == "mig":
        part = gpu_nvidia.mig(values, choose.fitting(every, wanted, FITS), wanted)
        return gpu_parts.resolved([part], values, root)
    named = gpu_parts.named(wanted, every)
    if named:
        return gpu_parts.resolved([named], values, root)
    if kind == "sriov":
        every = [each for each in every if each.function and each.function.physfn and each.nodes]
    folders = ALL if not wanted or "count" in wanted else ()
    return gpu_parts.resolved([(each, None) for each in _chosen(every, wanted, kind)], values, root, folders)


def _chosen(every: list[Gpu], wanted: dict[str, str], kind: str) -> list[Gpu]:
    found = choose.fitting(every, wanted, {**FITS, "pci": _by_function} if kind == "sriov" else FITS)
    if kind != "sriov" and (not wanted or wanted.get("count")):
        usable = [each for each in found if gpu_parts.own_nodes(each, None, kms=False)]
        if usable or set(wanted) <= {"count"}:  # of those that were named, the error says what they lack
            return choose.some("gpu", usable, {"count": "all", **wanted}, every)
    return choose.some("gpu", found, wanted, every)


def _by_id(each: Gpu, value: str) -> bool:
    if value.isdecimal():
        return each.card == int(value) or (each.card < 0 and each.minor == int(value))
    names = {each.id, f"card{each.card}", f"renderD{each.render}", f"nvidia{each.minor}", *(n.path for n in each.nodes)}
    return value in names


def _by_uuid(each: Gpu, value: str) -> bool:
    return each.uuid.lower() == value.lower() or (len(value) > 7 and each.uuid.lower().startswith(value.lower()))


def _by_function(each: Gpu, value: str) -> bool:
    return each.function is not None and value in (each.function.address, each.function.physfn)


FITS = {
    "id": _by_id,
    "pci": choose.by_pci,
    "uuid": _by_uuid,
    "vendorid": choose.by_vendor,
    "productid": choose.by_product,
}


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server."""
    from ctrmgr.devices import lxd

    told = "by what the server tells of its cards"
    limit = lxd.refused("a server limits no memory of GPUs")
    return {
        "gputype": lxd.native(
            why="`sriov` is refused: for virtual machines there; `mig` brings `nvidia.runtime`", judge=_type_there
        ),
        "id": lxd.mapped(f"the number of a card as it is, other names as `pci` {told}, a CDI device as of type `cdi`"),
        "pci": lxd.NATIVE,
        "uuid": lxd.mapped(f"`pci` {told}"),
        "vendorid": lxd.NATIVE,
        "productid": lxd.NATIVE,
        "count": lxd.mapped(
            f"servers give all that fit; a number that is just these, {told}; of more, `--target auto` chooses on a cluster"
        ),
        "kms": lxd.refused("a server always gives the card nodes, too", *lxd.TRUE),
        "mig.uuid": lxd.native("gpu_mig_uuid"),
        "mig.gi": lxd.native("gpu_mig"),
        "mig.ci": lxd.native("gpu_mig"),
        "driver.capabilities": lxd.mapped(
            "`nvidia.runtime` and `nvidia.driver.capabilities` where the card is NVIDIA's; `none`, and of other makers' cards: nothing"
        ),
        "memory": limit,
        "memory.reserve": limit,
        "partition": lxd.PARTITION,
        **lxd.OWNERS,
        "ownership.inherit": lxd.INHERIT,
        "required": lxd.REQUIRED,
        "lease": lxd.LEASE,
        "failover": lxd.FAILOVER,
        "mdev": lxd.refused("it is for virtual machines"),
    }


def _type_there(value: str, there: There) -> str:
    if value == "mig":
        return "" if there.has("gpu_mig") else "it has no API extension `gpu_mig`"
    return "" if value == "physical" else "there it is for virtual machines"


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type. What they choose by is less: the rest by the cards that they tell of."""
    from ctrmgr.devices import gpu_there

    if "=" in values.get("id", ""):
        from ctrmgr.devices import cdi

        return cdi.lxd_device(name, values, there)
    return gpu_there.device(name, values, there, lxd_ways())
