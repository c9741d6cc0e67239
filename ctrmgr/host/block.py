# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks and partitions: which one it is whatever its name is today, and who uses it. Hot."""

from __future__ import annotations

import os

from ctrmgr.host import pci, sysfs, usb

SECTOR = 512
"""What `size` counts, whatever the disk's own sectors are."""
VIRTUAL = ("loop", "zram", "ram", "nbd", "md", "rbd", "drbd", "null", "bcache")


class Disk:
    """A disk, or (`parent` is the disk's name) one of its partitions.

    `name` is the kernel's, which changes between boots; `id` is what does not: the WWN, the serial number, the place where it
    is plugged in, and only where there is none of these, as with loop devices, the name. `diskseq` is different for every
    medium that ever had the name.
    """

    __slots__ = ("backing", "diskseq", "driver", "function", "holders", "id", "links", "model", "mounts", "name", "node",
                 "parent", "partitions", "partuuid", "path", "readonly", "removable", "serial", "size", "transport",
                 "wwn")  # fmt: skip

    model: str
    serial: str
    wwn: str
    id: str
    transport: str
    driver: str
    diskseq: int
    removable: bool
    function: pci.Function | None

    def __init__(self, name: str, path: str, root: str, parent: Disk | None = None) -> None:
        self.name, self.path, self.parent = name, path, parent.name if parent else ""
        self.node = sysfs.node(root, path, "disk", kind="block")
        self.size = max(sysfs.number(f"{path}/size", 0), 0) * SECTOR
        self.diskseq = parent.diskseq if parent else sysfs.number(f"{path}/diskseq")
        self.readonly = sysfs.number(f"{path}/ro", 0) == 1
        self.removable = parent.removable if parent else sysfs.number(f"{path}/removable", 0) == 1
        self.partuuid = sysfs.uevent(path).get("PARTUUID", "") if parent else ""
        self.backing = sysfs.text(f"{path}/loop/backing_file")
        self.holders = sysfs.names(f"{path}/holders")
        self.mounts: list[str] = []
        self.links: list[str] = []
        self.partitions: list[Disk] = []
        if parent:
            self.model, self.serial, self.wwn = parent.model, parent.serial, parent.wwn
            self.transport, self.driver, self.function = parent.transport, parent.driver, parent.function
            self.id = f"{parent.id}-part{sysfs.number(f'{path}/partition', 0)}"
            return
        device = f"{path}/device"
        vendor = sysfs.line(f"{device}/vendor")
        model = sysfs.line(f"{device}/model") or sysfs.line(f"{device}/name")
        # libata writes `ATA` there, virtio the number of its PCI vendor
        self.model = model if vendor == "ATA" or vendor.startswith("0x") else f"{vendor} {model}".strip()
        stick = usb.above(path) if "/usb" in path else ""
        self.serial = sysfs.line(f"{path}/serial") or sysfs.line(f"{device}/serial") or _page80(device)
        if stick:  # the disk behind a bridge may say nothing, or the same as all others of its kind
            self.serial = sysfs.line(f"{stick}/serial")
        self.wwn = sysfs.line(f"{path}/wwid") or sysfs.line(f"{device}/wwid")
        self.function = pci.read(pci.above(_controller(path)), root)
        self.transport = _transport(name, sysfs.real(path))
        self.driver = sysfs.base(f"{device}/driver") or (self.function.driver if self.function else "")
        self.id = _identity(self)
        for inner in sysfs.names(path):
            if inner.startswith(name) and os.path.exists(f"{path}/{inner}/partition"):
                self.partitions.append(Disk(inner, f"{path}/{inner}", root, self))


def disks(root: str = "/") -> list[Disk]:
    """All disks with their partitions, by name."""
    folder = root.rstrip("/") + "/sys/block"
    found = []
    for name in sysfs.names(folder):
        path = sysfs.follow(f"{folder}/{name}")
        if sysfs.number(f"{path}/hidden", 0) != 1:  # a path of a multipath NVMe namespace has no node
            found.append(Disk(name, path, root))
    _tell_apart(found)
    _uses(found, root)
    return found


def at(path: str, root: str = "/") -> Disk | None:
    """The disk or partition that a node, or a link to one, is now; None when the kernel announces none of that name."""
    prefix = root.rstrip("/")
    name = sysfs.real(prefix + path).rpartition("/")[2]
    folder = sysfs.real(f"{prefix}/sys/class/block/{name}")
    if not os.path.exists(f"{folder}/dev"):  # older kernels, and recorded machines
        owners = [f"{prefix}/sys/block/{disk}" for disk in sysfs.names(f"{prefix}/sys/block") if name.startswith(disk)]
        places = [
            sysfs.follow(owner) if owner.endswith(f"/{name}") else f"{sysfs.follow(owner)}/{name}" for owner in owners
        ]
        folder = next((place for place in places if os.path.exists(f"{place}/dev")), "")
    if not folder:
        return None
    if not os.path.exists(f"{folder}/partition"):
        return Disk(name, folder, root)
    whole = Disk(folder.split("/")[-2], folder.rpartition("/")[0], root)
    return next((part for part in whole.partitions if part.name == name), None)


def used(disk: Disk, root: str = "/") -> list[str]:
    """Where the host has it mounted, as far as this process sees, or what is built on it; swap, too."""
    _uses([disk], root)
    return [*disk.mounts, *disk.holders]


def with_id(id: str, root: str = "/") -> list[Disk]:
    """The disks and partitions with an id; several paths to one disk have it all."""
    every = [each for disk in disks(root) for each in (disk, *disk.partitions)]
    return [each for each in every if id in (each.id, each.id.replace(f"@{each.parent or each.name}", ""))]


def _controller(path: str) -> str:
    """A device directory below the PCI function; NVMe namespaces with multipath are below none themselves."""
    if "/nvme-subsystem/" in path:
        folder = path.rpartition("/")[0]
        for name in sysfs.names(folder):
            if name.startswith("nvme") and sysfs.integer(name[4:]) >= 0:
                return sysfs.real(f"{folder}/{name}")
    return path


def _transport(name: str, path: str) -> str:
    if name.startswith("dm-"):
        return "dm"
    for prefix in VIRTUAL:
        if name.startswith(prefix):
            return prefix
    parts = path.split("/")
    if name.startswith("nvme"):
        return sysfs.line(f"{_controller(path)}/device/transport") or sysfs.line(f"{_controller(path)}/transport")
    for part in reversed(parts):
        for prefix, transport in (("usb", "usb"), ("ata", "sata"), ("virtio", "virtio"), ("mmc", "mmc")):
            if part.startswith(prefix) and sysfs.integer(part[len(prefix) :]) >= 0:
                return transport
    return "sas" if any(part.startswith("end_device-") for part in parts) else "scsi" if name[:2] == "sd" else ""


def _page80(device: str) -> str:
    """The serial number of a SCSI disk: a page of vital product data with four bytes in front."""
    try:
        with open(f"{device}/vpd_pg80", "rb") as file:
            data = file.read(256)
    except OSError:
        return ""
    return " ".join(sysfs.clean(data[4:].decode("ascii", "replace")).split()) if data[1:2] == b"\x80" else ""


def _identity(disk: Disk) -> str:
    if disk.wwn.startswith("nvme.") and disk.serial:
        # the kernel's own, in hexadecimal, where the namespace has none: udev's is the same to be read
        return _word(f"nvme-{disk.model} {disk.serial} {sysfs.number(f'{disk.path}/nsid', 1)}")
    if disk.wwn:
        return _word(disk.wwn)
    uuid = sysfs.line(f"{disk.path}/dm/uuid") or sysfs.line(f"{disk.path}/md/uuid")
    if uuid:
        return _word(f"{disk.transport}-uuid-{uuid}")
    if disk.serial:
        # the boot areas of an eMMC are disks beside it, with the same number
        area = disk.name[6:].lstrip("0123456789") if disk.name.startswith("mmcblk") else ""
        return _word("-".join(filter(None, (disk.transport, f"{disk.model} {disk.serial}".strip(), area))))
    stick = usb.above(disk.path) if disk.transport == "usb" else ""
    if stick:
        return usb.port_of(stick)
    if disk.function:
        parts = sysfs.base(f"{disk.path}/device").split(":")
        return f"pci-{disk.function.address}" + (f"-scsi-{':'.join(parts[1:])}" if len(parts) == 4 else "")
    return disk.name


def _word(text: str) -> str:
    """One word of letters that a shell leaves alone, as udev makes its links' names."""
    return "_".join("".join(letter if letter.isalnum() or letter in "#+-.:=@_" else " " for letter in text).split())


def _tell_apart(found: list[Disk]) -> None:
    """Two paths to one disk have its WWN both: their names tell them apart."""
    count: dict[str, int] = {}
    for disk in found:
        count[disk.id] = count.get(disk.id, 0) + 1
    for disk in found:
        if count[disk.id] > 1:
            disk.id = f"{disk.id}@{disk.name}"
            for part in disk.partitions:
                part.id = f"{disk.id}-part{part.id.rpartition('-part')[2]}"


def _uses(found: list[Disk], root: str) -> None:
    """Fill in mounts, swap and the links that udev has made."""
    prefix = root.rstrip("/")
    by_number: dict[tuple[int, int], Disk] = {}
    by_name: dict[str, Disk] = {}
    for disk in (each for whole in found for each in (whole, *whole.partitions)):
        by_name[disk.name] = disk
        if disk.node:
            by_number[disk.node.major, disk.node.minor] = disk
    for row in sysfs.rows(prefix + "/proc/self/mountinfo"):
        words, _, tail = row.partition(" - ")
        fields, source = words.split(" "), tail.split(" ")[1:2]
        number = sysfs.numbers(fields[2]) if len(fields) > 4 else None
        # btrfs has numbers of its own: its source says more
        user = (by_number.get(number) if number else None) or by_name.get("".join(source).removeprefix("/dev/"))
        if user and len(fields) > 4:
            user.mounts.append(sysfs.unescape(fields[4]))
    for row in sysfs.rows(prefix + "/proc/swaps")[1:]:
        user = by_name.get(row.split(" ")[0].removeprefix("/dev/"))
        if user:
            user.mounts.append("[SWAP]")
    for kind in ("by-id", "by-path", "by-partuuid", "by-uuid", "by-label"):
        for name in sysfs.names(f"{prefix}/dev/disk/{kind}"):
            user = by_name.get(sysfs.base(f"{prefix}/dev/disk/{kind}/{name}"))
            if user:
                user.links.append(f"/dev/disk/{kind}/{name}")
