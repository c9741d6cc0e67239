# SPDX-License-Identifier: GPL-3.0-or-later
"""`usb`: all USB devices that fit, as they are plugged in and out."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved
from ctrmgr.edits import ContainerEdits, DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways
    from ctrmgr.host.usb import UsbDevice

live = True
FIELDS = {
    "id": Field(fields.word, "a name of `ctrmgr device list`: `vendorid:productid:serial`, or its socket"),
    "vendorid": Field(fields.hexa, "its vendor"),
    "productid": Field(fields.hexa, "its product"),
    "serial": Field(fields.word, "its serial number"),
    "busnum": Field(fields.number, "its bus, as `lsusb` has it; changes when it is plugged in again"),
    "devnum": Field(fields.number, "its number on the bus; changes when it is plugged in again"),
    **fields.PLUGGED,
    "failover": fields.FAILOVER,
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """The nodes of all that fit, under the host's names; hubs only when they are named."""
    from ctrmgr.host import usb

    wanted = {key: values[key] for key in FITS if values.get(key)}
    every = usb.devices(root)
    usual = [each for each in every if not each.hub]
    among = every if {"id", "productid", "devnum"} & set(wanted) else usual
    found = [(each, each.node) for each in choose.fitting(among, wanted, FITS) if each.node and each.node.present]
    rule = _rule(wanted, found[0][0] if found else None)
    if not found and (values.get("required") == "true" or not rule):
        raise choose.missing("usb", wanted, usual)
    return Resolved(
        ContainerEdits(device_nodes=[DeviceNode(node.path, type="c") for _, node in found]),
        identity=choose.identity(root, *plugged(every)),
        lease=[id for each, node in found for id in (f"usb:{each.id}", f"node:{node.path}")],
        rule=rule,
    )


def _rule(wanted: Mapping[str, str], first: UsbDevice | None) -> list[str]:
    """What is true of all that fit, whether they are there or not; nothing when only their socket of today would say it."""
    keys = {key: value for key, value in wanted.items() if key != "id"}
    if "id" in wanted and not first:
        vendor, product, serial = (*wanted["id"].split(":", 2), "", "")[:3]
        if not serial or "@" in serial or len(vendor) != 4 or len(product) != 4:
            return []
        keys.update(vendorid=vendor, productid=product, serial=serial)
    elif first and "id" in wanted:
        keys.update(vendorid=first.vendorid, productid=first.productid)
        if "@" in wanted["id"] or not first.serial:
            keys["socket"] = first.name
        else:
            keys["serial"] = first.serial
    return ["usb", *(f"{key}={value}" for key, value in keys.items())]


def plugged(every: list[UsbDevice]) -> list[str]:
    """Files that tell whether anything was plugged in or out: a socket has the next number with every device in it."""
    return ["/sys/bus/usb/devices/", *(f"/sys/bus/usb/devices/{each.name}/devnum" for each in every)]


def _by_id(each: UsbDevice, value: str) -> bool:
    return value in (each.id, each.port, each.name)


FITS = {
    "id": _by_id,
    "vendorid": lambda each, value: each.vendorid == value,
    "productid": lambda each, value: each.productid == value,
    "serial": lambda each, value: each.serial == value,
    "busnum": lambda each, value: str(each.busnum) == value,
    "devnum": lambda each, value: str(each.devnum) == value,
}


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server."""
    from ctrmgr.devices import lxd

    return {
        "id": lxd.mapped("`vendorid`, `productid` and `serial`; a place where it is plugged in is refused"),
        "vendorid": lxd.NATIVE,
        "productid": lxd.NATIVE,
        **dict.fromkeys(("serial", "busnum", "devnum"), lxd.native("device_usb_serial")),
        **lxd.NODE,
        "failover": lxd.FAILOVER,
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type."""
    from ctrmgr.devices import lxd

    own = dict(values)
    if id := own.pop("id", ""):
        vendor, product, serial = (*id.split(":", 2), "", "")[:3]
        if "@" in id or not all(len(part) == 4 and not part.strip("0123456789abcdef") for part in (vendor, product)):
            return lxd.refuse(
                f"{name}.id",
                "a server does not know places where devices are plugged in: say `vendorid` and `productid`",
            )
        said = {"vendorid": vendor, "productid": product, "serial": serial}
        own |= {key: value for key, value in said.items() if value}
    return lxd.plain("usb", name, own, there, lxd_ways())
