# SPDX-License-Identifier: GPL-3.0-or-later
"""`accel`: a compute accelerator of the kernel's `accel` class (Qualcomm Cloud AI, Intel NPU, Habana Gaudi); ours."""

from __future__ import annotations

from ctrmgr.devices import choose, fields, partition
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.edits import ContainerEdits, DeviceNode
from ctrmgr.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.accel import Accelerator

live = True
FIELDS = {
    "id": Field(fields.word, "a name of `ctrmgr device list`, `accelN`, or its number"),
    "pci": Field(fields.address, "PCI address"),
    "vendorid": Field(fields.hexa, "PCI vendor"),
    "productid": Field(fields.hexa, "PCI product"),
    "driver": Field(fields.word, "the driver in the kernel: qaic, intel_vpu, habanalabs"),
    "count": Field(choose.count, "how many of those that fit: a number, or `all`"),
    "partition": partition.FIELD,
    **fields.OWNERSHIP,
    "failover": fields.FAILOVER,
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The nodes of the accelerators that are meant."""
    from ctrmgr.host import accel

    every = accel.accelerators(root)
    wanted = {key: values[key] for key in (*FITS, "count") if values.get(key)}
    chosen = choose.some("accel", choose.fitting(every, wanted, FITS), wanted, every)
    nodes, files, lease = [], [], []
    for each in chosen:
        if each.node is None:
            raise HostError(f"`{each.id}` has no node: its driver is `{each.driver}`")
        nodes.append(DeviceNode(each.node.path, type="c"))
        files.append(choose.of_class(root, f"accel/accel{each.number}"))
        lease += [f"pci:{each.id}", f"node:{each.node.path}"]
    return Resolved(ContainerEdits(device_nodes=nodes), identity=choose.identity(root, *files), lease=lease)


def _by_id(each: Accelerator, value: str) -> bool:
    return value in (each.id, f"accel{each.number}", str(each.number), f"/dev/accel/accel{each.number}")


FITS = {
    "id": _by_id,
    "pci": choose.by_pci,
    "vendorid": choose.by_vendor,
    "productid": choose.by_product,
    "driver": lambda each, value: each.driver.replace("-", "_") == value.replace("-", "_"),
}


# On servers


def lxd_ways() -> Ways:
    """Servers have no such type."""
    from ctrmgr.devices import lxd

    means = lxd.mapped(
        "on a server of this machine the nodes that it means, as `unix-char`; no server tells of its accelerators"
    )
    return {
        **dict.fromkeys(("id", "pci", "vendorid", "productid", "driver", "count"), means),
        "partition": lxd.PARTITION,
        **lxd.NODE,
        "required": lxd.mapped("`false`: left away when it is not there"),
        "failover": lxd.FAILOVER,
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """The nodes one by one."""
    from ctrmgr.devices import lxd

    if not there.root:
        return lxd.refuse(name, f"no server has the type `accel`, and {lxd.ELSEWHERE}")
    return lxd.of_this_machine("accel", name, values, there)
