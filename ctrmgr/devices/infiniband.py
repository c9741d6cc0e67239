# SPDX-License-Identifier: GPL-3.0-or-later
"""`infiniband`: the nodes of an RDMA device (InfiniBand, RoCE, iWARP) for programs that use verbs."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.edits import ContainerEdits, DeviceNode
from ctrmgr.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.host.rdma import Hca

live = True
LATER = "moving the network link into the instance is not done yet; without it the nodes are given"
MODES = {"verbs": 0o666, "rdma_cm": 0o666}
"""What the kernel gives them."""
ROLES = {"verbs": ("verbs",), "full": ("verbs", "umad", "issm")}
FIELDS = {
    "nictype": Field(fields.choice("physical", "sriov"), "`sriov` takes a virtual function of `parent`", refused=LATER),
    "parent": Field(
        fields.word, "the RDMA device or its network link: `mlx5_0`, `ib0`; for a function of its own, that"
    ),
    "id": Field(fields.word, "a name of `ctrmgr device list`: its PCI address, or the node GUID"),
    "pci": Field(fields.address, "PCI address"),
    "vendorid": Field(fields.hexa, "PCI vendor"),
    "productid": Field(fields.hexa, "PCI product"),
    "count": Field(choose.count, "how many of those that fit: a number, or `all`"),
    "access": Field(
        fields.choice(*ROLES),
        "`verbs`; `full` gives umad and issm too: management of the whole fabric",
        default="verbs",
    ),
    **fields.OWNERSHIP,
    **{
        key: Field(str, "known from LXD and Incus", refused=LATER)
        for key in ("name", "hwaddr", "mtu", "node_guid", "port_guid", "vlan", "attached", "connected")
    },
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The verbs nodes of the devices that are meant, and the connection manager's."""
    from ctrmgr.host import rdma

    every = rdma.hcas(root)
    wanted = {key: values[key] for key in (*FITS, "count") if values.get(key)}
    chosen = choose.some("infiniband", choose.fitting(every, wanted, FITS), wanted, every)
    roles = ROLES[values.get("access") or "verbs"]
    nodes: dict[str, DeviceNode] = {}
    files, lease = [], []
    for each in chosen:
        own = [node for node in each.nodes if node.role in roles]
        if not own:
            raise HostError(f"`{each.id}` ({each.name}) has no node for verbs", hint="`modprobe ib_uverbs`")
        nodes.update(
            (node.path, DeviceNode(node.path, type="c", file_mode=MODES.get(node.role))) for node in (*own, *each.needs)
        )
        classes = {"verbs": "infiniband_verbs", "umad": "infiniband_mad", "issm": "infiniband_mad"}
        for node in own:
            device = f"/sys/class/{classes[node.role]}/{node.path.rpartition('/')[2]}"
            files += [choose.of_class(root, device.removeprefix("/sys/class/")), f"{device}/ibdev"]
        files.append(f"/sys/class/infiniband/{each.name}/node_guid")
        lease += [f"rdma:{each.id}", *(f"node:{node.path}" for node in own)]
    return Resolved(ContainerEdits(device_nodes=nodes.values()), identity=choose.identity(root, *files), lease=lease)


def _by_id(each: Hca, value: str) -> bool:
    return value in (each.id, each.name, each.node_guid)


def _by_parent(each: Hca, value: str) -> bool:
    return value == each.name or value in each.netdevs


FITS = {
    "id": _by_id,
    "parent": _by_parent,
    "pci": choose.by_pci,
    "vendorid": choose.by_vendor,
    "productid": choose.by_product,
}
