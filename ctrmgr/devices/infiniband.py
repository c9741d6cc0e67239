# SPDX-License-Identifier: GPL-3.0-or-later
"""`infiniband`: the nodes of an RDMA device (InfiniBand, RoCE, iWARP) for programs that use verbs, and with a `nictype` its network
link, which moves into the instance."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.edits import ContainerEdits, DeviceNode, NetDevice
from ctrmgr.errors import HostError, NotFoundError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.rdma import Hca

live = True
LATER = "it is for virtual machines and bridged links"
MODES = {"verbs": 0o666, "rdma_cm": 0o666}
"""What the kernel gives them."""
GUIDS = ("node_guid", "port_guid")
ROLES = {"verbs": ("verbs",), "full": ("verbs", "umad", "issm")}


def _address(value: str) -> str:
    """A hardware address: 6 bytes of an Ethernet link, 20 of InfiniBand's, or of these the last 8, which are its GUID."""
    parts = value.lower().split(":")
    if len(parts) not in (6, 8, 20) or any(len(part) != 2 or part.strip("0123456789abcdef") for part in parts):
        raise ValueError("is not a hardware address of 6, 8 or 20 bytes, such as 52:54:00:12:34:56")
    return ":".join(parts)


def _mtu(value: str) -> str:
    if not (value.isascii() and value.isdecimal()) or not 68 <= int(value) <= 65535:
        raise ValueError("is not an MTU between 68 and 65535")
    return str(int(value))


def _guid(value: str) -> str:
    parts = value.lower().split(":")
    if len(parts) != 8 or any(len(part) != 2 or part.strip("0123456789abcdef") for part in parts):
        raise ValueError("is not a GUID of 8 bytes, such as 00:11:22:33:44:55:66:77")
    if len(set(parts)) == 1 and parts[0] in ("00", "ff"):
        raise ValueError("is nobody's GUID")
    return ":".join(parts)


FIELDS = {
    "nictype": Field(
        fields.choice("physical", "sriov"),
        "move the network link into the instance: `parent` itself, or (`sriov`) a free virtual function of it; without it the "
        "nodes alone are given",
    ),
    "parent": Field(
        fields.word, "the RDMA device or its network link: `mlx5_0`, `ib0`; for a function of its own, that"
    ),
    "name": Field(fields.link, "name of the link inside; without it the host's"),
    "hwaddr": Field(_address, "hardware address of the link inside; of InfiniBand's 20 bytes the last 8 will do"),
    "node_guid": Field(_guid, "of a virtual function of InfiniBand, with a `nictype`: GUID of its RDMA device"),
    "port_guid": Field(_guid, "of a virtual function of InfiniBand, with a `nictype`: GUID of its port"),
    "mtu": Field(_mtu, "maximum packet of the link inside; without it as it is"),
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
    "failover": fields.FAILOVER,
    **{key: Field(str, "known from LXD and Incus", refused=LATER) for key in ("vlan", "attached", "connected")},
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The verbs nodes of the devices that are meant, and the connection manager's."""
    from ctrmgr.host import rdma

    every = rdma.hcas(root)
    wanted = {key: values[key] for key in (*FITS, "count") if values.get(key)}
    kind = values.get("nictype", "")
    if not kind and (other := [key for key in ("name", "hwaddr", "mtu", *GUIDS) if key in values]):
        raise ValueError(f"`{other[0]}` is of the network link, which moves in with `nictype` only")
    if kind and "count" in wanted:
        raise ValueError("with a `nictype` it is one device, and `count` is for the nodes of several")
    if kind == "sriov":
        chosen = [_free_function(every, wanted)]
    else:
        chosen = choose.some("infiniband", choose.fitting(every, wanted, FITS), wanted, every)
    roles = ROLES[values.get("access") or "verbs"]
    guids = _guids(chosen[0], values) if any(values.get(key) for key in GUIDS) else []
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
        files += [f"/sys/class/infiniband/{each.name}/node_guid"] if not guids else []
        lease += [f"rdma:{each.id}", *(f"node:{node.path}" for node in own)]
    links = [_link(each, values, wanted.get("parent", "")) for each in chosen if kind]
    # an address that has the GUID in it changes with that
    files += [f"/sys/class/net/{link.host_interface_name}/{'dev_port' if guids else 'address'}" for link in links]
    return Resolved(
        ContainerEdits(device_nodes=nodes.values(), net_devices=links),
        identity=choose.identity(root, *files, rdma.MODE),
        lease=lease,
        rdma=[each.name for each in chosen],
        guids=guids,
    )


def _guids(hca: Hca, values: Mapping[str, str]) -> list[str]:
    """The function's address and its GUIDs. Raises UnsupportedError for one that has no such."""
    if not hca.function or not hca.function.physfn:
        raise UnsupportedError(f"`{hca.name}` is no virtual function: only a virtual function's GUIDs can be set")
    if any(port.link_layer != "InfiniBand" for port in hca.ports):
        raise UnsupportedError(
            f"`{hca.name}` is on Ethernet: only an InfiniBand function's GUIDs can be set",
            hint="there they follow `hwaddr`",
        )
    return [hca.function.address, *(values.get(key, "") for key in GUIDS)]


def _link(hca: Hca, values: Mapping[str, str], parent: str) -> NetDevice:
    """The network link of a device that is to move. Raises NotFoundError, ValueError, UnsupportedError."""
    if hca.is_software:
        raise UnsupportedError(
            f"`{hca.name}` is made of software on `{', '.join(hca.netdevs)}`: the kernel removes it when that link moves",
            hint="leave `nictype` out: its nodes work without; or give the link as `type: nic, nictype: physical`",
        )
    found = [parent] if parent in hca.netdevs else hca.netdevs
    if not found:
        raise NotFoundError(f"`{hca.name}` has no network link on this host now", hint="an instance may have it")
    if len(found) > 1:
        raise ValueError(f"`{hca.name}` has {len(found)} network links: say as `parent` which: {', '.join(found)}")
    return NetDevice(found[0], values.get("name") or found[0])


def _free_function(every: list[Hca], wanted: dict[str, str]) -> Hca:
    """A virtual function whose link no instance has: that would have taken it from the host."""
    owner = choose.only("infiniband", choose.fitting(every, wanted, FITS), wanted, every)
    virtual = owner.function.virtfns if owner.function else ()
    there = [each for each in every if each.function and each.function.address in virtual]
    free = [each for each in there if each.netdevs]
    if not virtual:
        raise NotFoundError(
            f"`{owner.name}` has no virtual functions",
            hint=f"`echo 4 > /sys/class/infiniband/{owner.name}/device/sriov_numvfs`",
        )
    if not free:
        said = f"of the {len(virtual)} virtual functions of `{owner.name}` none has an RDMA device and a network link on this host now"
        raise NotFoundError(said, hint="instances may have them: `ctrmgr device list infiniband`")
    return free[0]


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


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server: with a `nictype` LXD's type, without the nodes one by one."""
    from ctrmgr.devices import lxd

    told = "by what the server tells of its network cards"
    choice = lxd.mapped(f"`parent`, or the nodes, {told}, or of this machine's if that is the server's")
    guid = lxd.native("infiniband_sriov_guid")
    nodes = "of the nodes; with a `nictype` refused, they are as the server makes them"
    return {
        "nictype": lxd.native(why=f"without it the verbs nodes as `unix-char`, {told}"),
        "parent": lxd.NATIVE,
        "name": lxd.NATIVE,
        "hwaddr": lxd.NATIVE,
        "mtu": lxd.NATIVE,
        **dict.fromkeys(("id", "pci", "vendorid", "productid"), choice),
        "count": lxd.mapped(f"so many, {told}"),
        "access": lxd.mapped("of the nodes; `full` with a `nictype` is refused"),
        **{key: lxd.native(why=nodes) for key in ("uid", "gid", "mode")},
        "user": lxd.mapped("`uid`", to="uid"),
        "group": lxd.mapped("`gid`", to="gid"),
        "ownership.inherit": lxd.INHERIT,
        "required": lxd.REQUIRED,
        "lease": lxd.LEASE,
        "failover": lxd.FAILOVER,
        "node_guid": guid,
        "port_guid": guid,
        **dict.fromkeys(("vlan", "attached", "connected"), lxd.refused("no server has it for this type")),
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """A network link and what belongs to it, or the nodes."""
    from ctrmgr.devices import infiniband_there

    return infiniband_there.device(name, values, there, lxd_ways())
