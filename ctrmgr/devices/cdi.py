# SPDX-License-Identifier: GPL-3.0-or-later
"""`cdi`: a device of any vendor, as a specification of the Container Device Interface describes it."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

live = True


def _name(value: str) -> str:
    fields.word(value)
    if "=" not in value or "/" not in value.partition("=")[0]:
        raise ValueError("is not a CDI device: vendor/class=name, as `ctrmgr cdi list` prints them")
    return value


FIELDS = {
    "id": Field(_name, "`vendor/class=name`, as `ctrmgr cdi list` prints them", required=True),
    **fields.OWNERSHIP,
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """What the specification says, its hooks as what is done inside. Cold: the files are read and checked."""
    from ctrmgr.cdi.registry import Registry

    registry = Registry(root)
    device = registry.find(values["id"])
    lease = [
        f"cdi:{values['id']}",
        *(f"node:{node.source}" for node in device.spec.container_edits.value().device_nodes),
    ]
    return Resolved(device.edits, identity=choose.identity(root), lease=lease)


# On servers

KNOWN = {"nvidia.com": "gpu_cdi", "amd.com": "gpu_cdi_amd"}
"""Whose specifications LXD reads itself, with which API extension. Incus reads none."""


def lxd_ways() -> Ways:
    """What becomes of each key on a server: there it is a `gpu`, or all that its specification says, one by one."""
    from ctrmgr.devices import lxd

    return {
        "id": lxd.mapped(
            "a `gpu` with that `id` where the server has `gpu_cdi` (NVIDIA's) or `gpu_cdi_amd`; on another server of this machine what the "
            "specification here says: nodes, files and network links as devices, links to its files as the file once more, "
            "variables as `environment.*`; all or nothing, so `update-ldcache` for its libraries, `chmod`, `additionalGids` and `intelRdt` are "
            "refused; elsewhere NVIDIA's GPUs by UUID or `all` as `gpu` with `nvidia.runtime`"
        ),
        **lxd.NODE,
        "required": lxd.REQUIRED,
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """By the server itself, by the specification of this machine, or by what the server tells of its GPUs."""
    from ctrmgr.devices import lxd

    maker, _, one = values.get("id", "").partition("/")
    kind, _, which = one.partition("=")
    if there.has(KNOWN.get(maker, "-")) and kind in ("gpu", "igpu", "mig"):
        made = lxd.plain("gpu", name, values, there, lxd_ways())
        made.devices[name]["id"] = values["id"]
        if lxd.is_false(values.get("required", "true")):
            made.problems.append((f"{name}.required", "a server always requires it"))
        return made
    if there.root:
        return lxd.of_this_machine("cdi", name, values, there)
    why = (
        f"`{values.get('id', '')}`: {lxd.lacks(KNOWN[maker])}"
        if maker in KNOWN
        else f"it reads no specification of `{maker}`"
    )
    if maker == "nvidia.com" and kind == "gpu" and there.resources is not None:
        if which == "all" or which.startswith("GPU-"):
            return _by_runtime(name, which, values, there)
        why += ", and which of its GPUs has that number its driver alone knows: say `pci`, or the GPU's UUID"
    else:
        why += f", and {lxd.ELSEWHERE}"
    return lxd.refuse(name, why)


def _by_runtime(name: str, which: str, values: Mapping[str, str], there: There) -> Made:
    """What a specification of NVIDIA's toolkit has, servers do with that toolkit, too."""
    from ctrmgr.devices import gpu

    own = {key: value for key, value in values.items() if key != "id"}
    chosen = {"vendorid": "10de", "count": "all"} if which == "all" else {"uuid": which}
    return gpu.lxd_device(name, {"driver.capabilities": "all", **own, **chosen}, there)
