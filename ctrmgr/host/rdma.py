# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices: InfiniBand, RoCE and iWARP adapters with their ports, net devices and nodes. Hot."""

from __future__ import annotations

from ctrmgr.host import pci, sysfs

MODE = "/sys/module/ib_core/parameters/netns_mode"
"""`Y` where all network namespaces share RDMA devices, `N` where each is in one."""
GIDS = 16
"""How many GID entries of a port are asked for their net device; the first ones are its own."""


class Port:
    """One port. `state` is `ACTIVE`, `DOWN`, …; `guid` is "" where the link layer has none."""

    __slots__ = ("guid", "link_layer", "netdevs", "number", "rate", "state")

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.state = sysfs.line(f"{path}/state").partition(": ")[2]
        self.link_layer, self.rate = sysfs.line(f"{path}/link_layer"), sysfs.line(f"{path}/rate")
        gid = sysfs.line(f"{path}/gids/0")
        self.guid = _guid(":".join(gid.split(":")[4:])) if self.link_layer == "InfiniBand" else ""
        folder = f"{path}/gid_attrs/ndevs"
        named = (sysfs.line(f"{folder}/{name}") for name in sysfs.names(folder)[:GIDS])
        self.netdevs = sorted(set(filter(None, named)), key=sysfs.natural)


class Hca:
    """One RDMA device. `id` is the PCI address of its function, or its node GUID where it has none (`rxe`, `siw`).

    `nodes` has the roles `verbs`, `umad` and `issm`; `needs` is the connection manager's, which all share.
    """

    __slots__ = ("board", "driver", "driver_version", "firmware", "function", "id", "name", "needs", "netdevs", "node_desc", "node_guid",
                 "node_type", "nodes", "ports", "sys_image_guid")  # fmt: skip

    def __init__(self, name: str, root: str) -> None:
        link = f"{root.rstrip('/')}/sys/class/infiniband/{name}"
        path = sysfs.real(f"{link}/device")
        address = pci.above(path)
        self.name, self.function = name, pci.read(address, root)
        self.node_guid = _guid(sysfs.line(f"{link}/node_guid"))
        self.sys_image_guid = _guid(sysfs.line(f"{link}/sys_image_guid"))
        self.node_desc = sysfs.line(f"{link}/node_desc")
        self.node_type = sysfs.line(f"{link}/node_type").partition(": ")[2]
        self.firmware, self.board = sysfs.line(f"{link}/fw_ver"), sysfs.line(f"{link}/board_id")
        self.driver = self.function.driver if self.function else sysfs.base(f"{path}/driver")
        self.driver_version = self.function.driver_version if self.function else ""
        folder = f"{link}/ports"
        self.ports = [Port(sysfs.integer(n), f"{folder}/{n}") for n in sysfs.names(folder) if sysfs.integer(n) >= 0]
        parents = [sysfs.line(f"{link}/parent")] if not self.function else []
        found = {*sysfs.names(f"{path}/net"), *filter(None, parents)}
        self._place_netdevs(path, found)
        self.netdevs = sorted(found.union(*(port.netdevs for port in self.ports)), key=sysfs.natural)
        self.nodes: list[sysfs.Node] = []
        self.needs: list[sysfs.Node] = []
        self.id = address if self.function else self.node_guid or name
        below = path.rpartition("/")[2]
        if self.function and below != address:
            self.id = f"{address}/{below}"  # a sub-function: many share the PCI function

    @property
    def is_software(self) -> bool:
        """Whether it is nothing but a use of a network link (`rxe`, `siw`), and goes when that moves."""
        return self.node_desc == "rxe" or self.node_desc.startswith("Software iWARP") or not self.function

    def _place_netdevs(self, path: str, names: set[str]) -> None:
        """Give each port the net devices that say they are its: IPoIB has them before it has a GID."""
        for name in names:
            number = sysfs.number(f"{path}/net/{name}/dev_port", 0) + 1
            for port in self.ports:
                if port.number == number and name not in port.netdevs:
                    port.netdevs.append(name)


def hcas(root: str = "/") -> list[Hca]:
    """All RDMA devices, by id."""
    classes = root.rstrip("/") + "/sys/class"
    found = {name: Hca(name, root) for name in sysfs.names(f"{classes}/infiniband")}
    for kind, prefix, role in (("verbs", "uverbs", "verbs"), ("mad", "umad", "umad"), ("mad", "issm", "issm")):
        folder = f"{classes}/infiniband_{kind}"
        for name in sysfs.names(folder):
            hca = found.get(sysfs.line(f"{folder}/{name}/ibdev"))
            node = sysfs.node(root, f"{folder}/{name}", role) if name.startswith(prefix) and hca else None
            if node and hca:
                hca.nodes.append(node)
    manager = sysfs.node(root, f"{classes}/misc/rdma_cm", "rdma_cm")
    for hca in found.values():
        hca.needs = [manager] if manager and hca.nodes else []
    return sorted(found.values(), key=lambda hca: hca.id)


def _guid(word: str) -> str:
    """`506b:4b03:00cb:1234`; "" for none, which the kernel writes as zeros."""
    digits = word.replace(":", "")
    return word if len(digits) == 16 and digits.strip("0") and not digits.strip("0123456789abcdef") else ""
