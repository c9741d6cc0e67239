# SPDX-License-Identifier: GPL-3.0-or-later
"""USB devices, and the serial ports, cameras and disks that they bring. Hot."""

from __future__ import annotations

import os

from ctrmgr.host import pci, sysfs

HUB = "09"
DEPTH = 8
"""How far below a device its children are: interface, host, target, disk, partition, and some air."""


class Child:
    """What a USB device brings: a `tty`, `hidraw`, `video4linux`, `block`, … with a node of its own."""

    __slots__ = ("interface", "name", "node", "subsystem")

    def __init__(self, name: str, subsystem: str, interface: str, node: sysfs.Node) -> None:
        self.name, self.subsystem, self.interface, self.node = name, subsystem, interface, node


class UsbDevice:
    """One device. `id` is `vendorid:productid:serial`; without a serial number, or when another has the same,
    `vendorid:productid@port`. `port` is where it is plugged in, in udev's words (`pci-0000:00:14.0-usb-0:1.2`).
    """

    __slots__ = ("busnum", "children", "devnum", "driver", "hub", "id", "manufacturer", "name", "node", "path", "port",
                 "product", "productid", "serial", "speed", "vendorid")  # fmt: skip

    def __init__(self, name: str, path: str, root: str) -> None:
        self.name, self.path = name, path
        self.vendorid, self.productid = sysfs.hexa(f"{path}/idVendor"), sysfs.hexa(f"{path}/idProduct")
        self.serial, self.product = sysfs.line(f"{path}/serial"), sysfs.line(f"{path}/product")
        self.manufacturer = sysfs.line(f"{path}/manufacturer")
        self.busnum, self.devnum = sysfs.number(f"{path}/busnum"), sysfs.number(f"{path}/devnum")
        self.speed = sysfs.line(f"{path}/speed")
        self.hub = sysfs.line(f"{path}/bDeviceClass") == HUB
        self.node = sysfs.node(root, path, "usb")
        self.port = port_of(path)
        self.children: list[Child] = []
        if not self.hub:
            _children(self, path, "", root, DEPTH)
        self.driver = next(filter(None, (sysfs.base(f"{path}/{inner}/driver") for inner in _interfaces(self))), "")
        serial = "".join(letter if letter not in " \t@" else "_" for letter in self.serial)
        self.id = f"{self.vendorid}:{self.productid}" + (f":{serial}" if serial else f"@{self.port}")


def devices(root: str = "/") -> list[UsbDevice]:
    """All devices, hubs too, in the order of their buses and ports."""
    folder = root.rstrip("/") + "/sys/bus/usb/devices"
    found = [
        UsbDevice(name, sysfs.follow(f"{folder}/{name}"), root)
        for name in sysfs.names(folder)
        if ":" not in name and os.path.exists(f"{folder}/{name}/idVendor")
    ]
    count: dict[str, int] = {}
    for device in found:
        count[device.id] = count.get(device.id, 0) + 1
    for device in found:
        if count[device.id] > 1 and device.serial:  # makers give a whole series one number
            device.id = f"{device.id}@{device.port}"
    return found


def above(path: str) -> str:
    """The directory of the USB device that a device directory of sysfs is below, or ""."""
    parts = path.split("/")
    for index in range(len(parts), 0, -1):
        bus, _, ports = parts[index - 1].partition("-")
        if bus.isdecimal() and ports[:1].isdecimal() and ":" not in ports:
            return "/".join(parts[:index])
    return ""


def port_of(path: str) -> str:
    """Where a device directory of USB is plugged in.

    The bus number is the order in which controllers were found: the controller's own address takes its place.
    """
    bus, _, ports = path.rpartition("/")[2].partition("-")
    if not ports:
        return f"{_controller(path)}-usb-{bus.removeprefix('usb')}"
    # a controller has one bus for each generation: port 1 of both may be the same socket, with two devices in it
    version = sysfs.line(f"{path.partition(f'/usb{bus}/')[0]}/usb{bus}/version").partition(".")[0]
    return f"{_controller(path)}-usb{f'v{version}' if version not in ('', '1', '2') else ''}-0:{ports}"


def _controller(path: str) -> str:
    address = pci.above(path)
    if address:
        return f"pci-{address}"
    above = path.partition("/usb")[0].rpartition("/")[2]
    return f"platform-{above}" if above else "usb"


def _interfaces(device: UsbDevice) -> list[str]:
    return [inner for inner in sysfs.names(device.path) if inner.startswith(f"{device.name}:")]


def _children(device: UsbDevice, path: str, interface: str, root: str, depth: int) -> None:
    try:
        entries = sorted((entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)), key=_by_name)
    except OSError:
        return
    for entry in entries:
        name = entry.name
        inner = name if name.startswith(f"{device.name}:") else interface
        if not inner or not name.isprintable():
            continue  # what is below the device but in none of its interfaces is another device, or power management
        subsystem = sysfs.base(f"{entry.path}/subsystem")
        if subsystem and os.path.exists(f"{entry.path}/dev"):
            kind = "block" if subsystem == "block" else "char"
            node = sysfs.node(root, entry.path, subsystem, kind=kind)
            if node:
                device.children.append(Child(name, subsystem, inner.partition(":")[2], node))
        if depth > 0:
            _children(device, entry.path, inner, root, depth - 1)


def _by_name(entry: os.DirEntry[str]) -> list[tuple[int, str]]:
    return sysfs.natural(entry.name)
