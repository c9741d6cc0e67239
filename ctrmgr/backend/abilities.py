# SPDX-License-Identifier: GPL-3.0-or-later
"""What the devices that ctrmgr knows can do, in the words in which people ask for it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.inventory import Device

    Functions = dict[str, dict[str, int | str]]

KINDS = ("gpu", "accel", "infiniband", "unix-block")
"""Whose devices are asked for by function, beside those of plugins."""
NO_GPU = ("vgem", "vkms")
"""Drivers of the kernel that have a GPU's nodes and no GPU."""


def _words(device: Device, key: str) -> list[str]:
    words = device.details.get(key)
    return [str(word) for word in words] if isinstance(words, list) else []


def of(device: Device) -> Functions:
    """What a device of a kind that ctrmgr knows can do."""
    if device.kind == "gpu":
        return _gpu(device)
    if device.kind == "accel":
        return {"accel.compute": {}}
    if device.kind == "infiniband":
        return _hca(device)
    if device.kind == "unix-block" and not device.name.startswith(("ram", "zram")):
        size = device.details.get("size", 0)
        return {
            "storage.block": {
                "size": size if isinstance(size, int) else 0,
                "transport": str(device.details.get("transport", "")),
                "part": "yes" if device.part_of else "no",
            }
        }
    return {}


def _gpu(device: Device) -> Functions:
    roles = {node.role for node in (*device.nodes, *device.needs)}
    memory = str(device.details.get("vram", ""))
    properties: dict[str, int | str] = {"memory": int(memory)} if memory.isdecimal() else {}
    virtual = device.function is not None and device.function.physfn
    properties["part"] = "yes" if device.part_of or virtual else "no"
    found: Functions = {}
    if device.driver in NO_GPU:
        return {"gpu.display": {}} if "card" in roles else {}
    if not device.nodes or roles & {"render", "kfd"} or device.driver == "nvidia" or device.details.get("part"):
        found["gpu.compute"] = properties
    if "render" in roles:
        found["gpu.render"] = properties
    if "card" in roles:
        found["gpu.display"] = {}
    return found


def _hca(device: Device) -> Functions:
    found: Functions = {"rdma.verbs": {}}
    ports = device.details.get("ports")
    for port in ports if isinstance(ports, list) else ():
        name = {"InfiniBand": "rdma.infiniband", "Ethernet": "rdma.ethernet"}.get(str(port.get("link-layer")))
        digits = str(port.get("rate", "")).partition(" ")[0].partition(".")[0]
        rate = int(digits) if digits.isdecimal() else 0
        for each in ("rdma.verbs", name):
            if each:
                known = found.setdefault(each, {"rate": 0}).get("rate", 0)
                found[each]["rate"] = max(rate, known if isinstance(known, int) else 0)
    return found


def problem(device: Device, among: Sequence[Device]) -> str:
    """Why nobody can be given a device, whatever is asked; "" when there is nothing. `among` are all devices."""
    if device.kind == "unix-block":
        return _disk_problem(device, among)
    if _words(device, "parts"):
        return "it is split into parts, which are given one by one"
    if not device.nodes:
        return f"its driver `{device.driver}` gives it no node" if device.driver else "no driver has it"
    return ""


def _disk_problem(device: Device, among: Sequence[Device]) -> str:
    """A disk that is in use as a whole or in part is nobody else's."""
    for each in among:
        if each.id in (device.id, device.part_of) or each.part_of == device.id:
            used = [*_words(each, "mounts"), *_words(each, "used-by")]
            if used:
                return f"the host itself uses {'it' if each is device else f'`{each.id}`'}: {', '.join(used)}"
            if each is not device and each.holders:
                return f"`{each.holders[0].instance}` has `{each.id}`"
    return "" if device.details.get("size") else "nothing is in it"
