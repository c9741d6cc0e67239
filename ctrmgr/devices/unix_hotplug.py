# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-hotplug`: what USB devices bring (serial ports, disks, cameras, …), all that fits, as it comes and goes."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.devices.usb import plugged
from ctrmgr.edits import ContainerEdits, DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.usb import UsbDevice

live = True
FIELDS = {
    "vendorid": Field(fields.hexa, "vendor of the USB device"),
    "productid": Field(fields.hexa, "its product"),
    "serial": Field(fields.word, "its serial number; ours"),
    "subsystem": Field(fields.word, "the kernel's class: tty, block, hidraw, video4linux, …"),
    **fields.PLUGGED,
    "failover": fields.FAILOVER,
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The nodes that are below the devices that fit. Raises ValueError without any key to choose by."""
    from ctrmgr.host import usb

    wanted = {key: values[key] for key in ("vendorid", "productid", "serial", "subsystem") if values.get(key)}
    if not wanted:
        raise ValueError("it says neither `vendorid`, `productid`, `serial` nor `subsystem`")
    every = usb.devices(root)
    sticks = [each for each in every if each.children]
    found = [
        (each, child.node)
        for each in sticks
        if all(getattr(each, key) == value for key, value in wanted.items() if key != "subsystem")
        for child in each.children
        if wanted.get("subsystem", child.subsystem) == child.subsystem and child.node.present
    ]
    if not found and values.get("required") == "true":
        raise choose.missing("unix-hotplug", wanted, sticks)
    return Resolved(
        ContainerEdits(device_nodes=[DeviceNode(node.path, type=node.kind[0]) for _, node in found]),
        identity=choose.identity(root, *plugged(every), *(f"/sys/class/{kind}/" for kind in _kinds(every))),
        lease=[f"node:{node.path}" for _, node in found],
        rule=["unix-hotplug", *(f"{key}={value}" for key, value in wanted.items())],
    )


def _kinds(every: list[UsbDevice]) -> list[str]:
    """The classes of what they bring: a driver that is loaded later adds to one of them."""
    return sorted({child.subsystem for each in every for child in each.children} | {"tty", "block", "hidraw"})


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server."""
    from ctrmgr.devices import lxd

    return {
        "vendorid": lxd.NATIVE,
        "productid": lxd.NATIVE,
        "serial": lxd.refused("a server does not choose by it"),
        "subsystem": lxd.native("unix_device_hotplug_subsystem_device_option"),
        **lxd.NODE,
        "ownership.inherit": lxd.native("unix_device_hotplug_ownership_inherit", off=lxd.FALSE),
        "failover": lxd.FAILOVER,
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type."""
    from ctrmgr.devices import lxd

    return lxd.plain("unix-hotplug", name, values, there, lxd_ways())
