# SPDX-License-Identifier: GPL-3.0-or-later
"""What each kind of device of this machine looks like to whoever wants to pass it: one vocabulary over all readers."""

from __future__ import annotations

from ctrmgr.host import accel, block, char, gpu, pci, rdma, sysfs, tpm, usb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


KINDS = ("gpu", "accel", "infiniband", "unix-block", "usb", "unix-char")
"""In the order in which they are listed; the names are those of LXD's device types, and `accel`."""


class Holder:
    """An instance that has a device: `device` is its name there, `lease` how it is shared. Not `live`: it gets it with its next
    start."""

    __slots__ = ("device", "instance", "lease", "live")

    def __init__(self, instance: str, device: str, live: bool, lease: str = "shared") -> None:
        self.instance, self.device, self.live, self.lease = instance, device, live, lease

    def __str__(self) -> str:
        words = self.instance if self.lease == "shared" else f"{self.instance} {self.lease}"
        return words if self.live else f"({words})"


class Device:
    """A device of this machine.

    `id` names it whatever its number is after the next boot; `name` is what the kernel calls it today, and `aliases` are other
    words for it (UUID, serial number, socket, links), not all of them for it alone. `nodes` are its own, `needs` are those that it shares with others and cannot be used without. `numa` is -1
    where the machine does not say. `part_of` is the id of the device that it is a part of: a partition, or a slice of a GPU.
    """

    __slots__ = (
        "aliases",
        "details",
        "driver",
        "driver_version",
        "function",
        "holders",
        "id",
        "kind",
        "model",
        "name",
        "needs",
        "nodes",
        "notable",
        "numa",
        "part_of",
        "vendor",
    )

    def __init__(
        self,
        kind: str,
        id: str,
        name: str,
        *,
        model: str = "",
        vendor: str = "",
        driver: str = "",
        driver_version: str = "",
        function: pci.Function | None = None,
        nodes: Iterable[sysfs.Node] = (),
        needs: Iterable[sysfs.Node] = (),
        aliases: Iterable[str] = (),
        part_of: str = "",
        details: Mapping[str, object] | None = None,
        notable: bool = True,
    ) -> None:
        self.kind, self.id, self.name, self.model, self.vendor = kind, id, name, model, vendor
        self.driver, self.driver_version = driver, driver_version
        self.function, self.part_of = function, part_of
        self.nodes, self.needs = list(nodes), list(needs)
        self.aliases = [alias for alias in dict.fromkeys(aliases) if alias and alias not in (id, name)]
        self.details = {key: value for key, value in (details or {}).items() if value not in ("", [], None, False)}
        self.notable = notable
        """Whether a list shows it without being asked for all: consoles and the kernel's memory are not."""
        self.numa = function.numa if function else -1
        self.holders: list[Holder] = []

    @property
    def pci(self) -> str:
        """The address of its PCI function, or ""."""
        return self.function.address if self.function else ""

    def __repr__(self) -> str:
        return f"Device({self.kind!r}, {self.id!r})"

    def fields(self) -> dict[str, object]:
        """All that is known of it, as plain data."""
        function = self.function
        found: dict[str, object] = {
            "kind": self.kind,
            "id": self.id,
            "name": self.name,
            "model": self.model,
            "vendor": self.vendor,
            "driver": self.driver,
            "version": self.driver_version,
            "pci": self.pci,
            "numa": self.numa,
            "nodes": [_node(node) for node in self.nodes],
            "needs": [_node(node) for node in self.needs],
            "aliases": self.aliases,
            "part-of": self.part_of,
        }
        if function:
            found["pci-ids"] = function.ids
            found["pci-parents"] = list(function.parents)
            found["iommu-group"] = function.iommu_group
            found["physical-function"] = function.physfn
            found["virtual-functions"] = list(function.virtfns)
        found.update(self.details)
        found["holders"] = [
            {"instance": each.instance, "device": each.device, "live": each.live, "lease": each.lease}
            for each in self.holders
        ]
        return found


def _node(node: sysfs.Node) -> dict[str, object]:
    return {
        "path": node.path,
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "role": node.role,
        "present": node.present,
    }


def _model(known: str, function: pci.Function | None, names: pci.Names) -> str:
    return known or (names.device(function.vendor, function.device) if function else "")


def _vendor(known: str, function: pci.Function | None, names: pci.Names) -> str:
    return known if known in gpu.VENDORS.values() or not function else names.vendor(function.vendor)


def gpus(root: str, names: pci.Names) -> list[Device]:
    found = []
    for each in gpu.gpus(root):
        model, vendor = _model(each.model, each.function, names), _vendor(each.vendor, each.function, names)
        name = f"nvidia{each.minor}" if each.minor >= 0 else f"card{each.card}" if each.card >= 0 else each.id
        found.append(
            Device(
                "gpu",
                each.id,
                name,
                model=model,
                function=each.function,
                nodes=each.nodes,
                needs=each.needs,
                aliases=[each.uuid],
                details={"uuid": each.uuid, **each.details, "parts": [part.id for part in each.parts]},
                driver=each.driver,
                driver_version=each.driver_version,
                vendor=vendor,
            )
        )
        found += [
            Device(
                "gpu",
                part.id,
                f"{name}/{part.name}",
                model=model,
                function=each.function,
                nodes=part.nodes,
                needs=part.needs,
                aliases=[part.uuid],
                part_of=each.id,
                details={"part": part.kind, "uuid": part.uuid},
                driver=each.driver,
                driver_version=each.driver_version,
                vendor=vendor,
            )
            for part in each.parts
        ]
    return found


def accelerators(root: str, names: pci.Names) -> list[Device]:
    return [
        Device(
            "accel",
            each.id,
            f"accel{each.number}",
            model=_model(each.model, each.function, names),
            driver=each.driver,
            driver_version=each.driver_version,
            vendor=_vendor("", each.function, names),
            function=each.function,
            nodes=[each.node] if each.node else [],
        )
        for each in accel.accelerators(root)
    ]


def hcas(root: str, names: pci.Names) -> list[Device]:
    found = []
    for hca in rdma.hcas(root):
        ports: list[object] = [
            {
                "port": port.number,
                "state": port.state,
                "link-layer": port.link_layer,
                "rate": port.rate,
                "guid": port.guid,
                "netdevs": port.netdevs,
            }
            for port in hca.ports
        ]
        details: dict[str, object] = {
            "node-guid": hca.node_guid,
            "system-image-guid": hca.sys_image_guid,
            "firmware": hca.firmware,
            "board": hca.board,
            "netdevs": hca.netdevs,
            "ports": ports,
        }
        found.append(
            Device(
                "infiniband",
                hca.id,
                hca.name,
                model=_model("", hca.function, names) or hca.name,
                driver=hca.driver,
                driver_version=hca.driver_version,
                vendor=_vendor("", hca.function, names),
                function=hca.function,
                nodes=hca.nodes,
                needs=hca.needs,
                aliases=[hca.node_guid, *hca.netdevs],
                details=details,
            )
        )
    return found


def disks(root: str) -> list[Device]:
    return [_disk(each) for disk in block.disks(root) for each in (disk, *disk.partitions)]


def _disk(disk: block.Disk) -> Device:
    details: dict[str, object] = {
        "size": disk.size,
        "transport": disk.transport,
        "serial": disk.serial,
        "wwn": disk.wwn,
        "diskseq": disk.diskseq,
        "read-only": disk.readonly,
        "removable": disk.removable,
        "partuuid": disk.partuuid,
        "backing-file": disk.backing,
        "mounts": disk.mounts,
        "used-by": disk.holders,
    }
    model = disk.model or disk.backing or disk.transport
    aliases = [disk.partuuid, *disk.links] if disk.parent else [disk.serial, *disk.links]
    parent = disk.id.rpartition("-part")[0] if disk.parent else ""
    return Device(
        "unix-block",
        disk.id,
        disk.name,
        model=model,
        driver=disk.driver,
        function=disk.function,
        driver_version=disk.function.driver_version if disk.function and disk.function.driver == disk.driver else "",
        nodes=[disk.node] if disk.node else [],
        aliases=aliases,
        part_of=parent,
        details=details,
    )


def usb_devices(root: str, found: Iterable[usb.UsbDevice]) -> list[Device]:
    return [
        Device(
            "usb",
            each.id,
            each.name,
            model=each.product,
            vendor=each.manufacturer,
            driver=each.driver,
            function=pci.read(pci.above(each.path), root),
            nodes=[each.node] if each.node else [],
            aliases=[each.port, f"{each.vendorid}:{each.productid}"],
            details={
                "vendorid": each.vendorid,
                "productid": each.productid,
                "serial": each.serial,
                "port": each.port,
                "busnum": each.busnum,
                "devnum": each.devnum,
                "speed": each.speed,
                "brings": [child.node.path for child in each.children],
            },
            notable=not each.hub,
        )
        for each in found
    ]


def chars(root: str, sticks: Iterable[usb.UsbDevice]) -> list[Device]:
    brought = {child.node.path: (each, child) for each in sticks for child in each.children}
    ids: dict[str, int] = {}
    for each, child in brought.values():
        key = f"{each.id}/{child.interface}/{child.subsystem}"
        ids[key] = ids.get(key, 0) + 1
    found = []
    for device in char.devices(root):
        if device.subsystem == "usb":
            continue
        id, model, owner_id = device.id, device.subsystem, ""
        if device.id in brought:
            owner, child = brought[device.id]
            id = f"{owner.id}/{child.interface}/{child.subsystem}"
            id = f"{id}/{child.name}" if ids[id] > 1 else id
            owner_id, model = owner.id, owner.product
        if tpm.is_emulated(device.path):
            model = "emulated TPM 2.0"
        function = pci.read(device.address, root) if device.address else None
        found.append(
            Device(
                "unix-char",
                id,
                device.name,
                model=model,
                driver=device.driver,
                function=function,
                nodes=[device.node],
                details={"subsystem": device.subsystem, "usb": owner_id},
                # cards and render nodes that are in no GPU are those of partitions that are not in use
                notable=device.plain and device.subsystem != "drm",
            )
        )
    return found
