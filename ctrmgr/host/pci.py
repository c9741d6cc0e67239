# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI functions: what they are, who drives them, and how near one is to another. Hot."""

from __future__ import annotations

import os

from ctrmgr.host import sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

RELATIONS = ("SAME", "PIX", "PXB", "PHB", "NODE", "SYS")
"""How near two functions are, nearest first, in the words of `nvidia-smi topo`: the same device; at most one PCIe bridge
between them; several bridges; the same host bridge; the same NUMA node; none of these."""

MEANING = {
    "SAME": "one device",
    "PIX": "one PCIe switch between them",
    "PXB": "several PCIe switches between them",
    "PHB": "through the CPU's host bridge",
    "NODE": "through the CPUs of one NUMA node",
    "SYS": "between NUMA nodes",
}

IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/usr/share/pci.ids")


class Function:
    """One PCI function. Ids are four hexadecimal digits, `class_id` is six; what is not known is "", numbers are -1."""

    __slots__ = ("address", "class_id", "device", "driver", "driver_version", "host_bridge", "iommu_group", "numa", "numvfs",
                 "parents", "path", "physfn", "subdevice", "subvendor", "totalvfs", "vendor", "virtfns")  # fmt: skip

    def __init__(self, address: str, path: str, root: str = "/") -> None:
        self.address, self.path = address, path
        self.vendor, self.device = sysfs.hexa(f"{path}/vendor"), sysfs.hexa(f"{path}/device")
        self.subvendor = sysfs.hexa(f"{path}/subsystem_vendor")
        self.subdevice = sysfs.hexa(f"{path}/subsystem_device")
        self.class_id = sysfs.hexa(f"{path}/class")
        self.driver = sysfs.base(f"{path}/driver")
        self.driver_version = module_version(path, self.driver, root)
        self.numa = sysfs.number(f"{path}/numa_node")
        self.iommu_group = sysfs.base(f"{path}/iommu_group")
        parts = path.split("/")
        self.parents: tuple[str, ...] = tuple(part for part in parts[:-1] if is_address(part))
        """Addresses of the bridges above it, the root port first."""
        self.host_bridge = next((part for part in parts if part.startswith("pci") and ":" in part), "")
        self.physfn = sysfs.base(f"{path}/physfn")
        """The address of the function that this is a virtual one of."""
        links = [name for name in sysfs.names(path) if name.startswith("virtfn")]
        self.virtfns: tuple[str, ...] = tuple(filter(None, (sysfs.base(f"{path}/{name}") for name in links)))
        self.numvfs = sysfs.number(f"{path}/sriov_numvfs", 0)
        self.totalvfs = sysfs.number(f"{path}/sriov_totalvfs", 0)

    @property
    def ids(self) -> str:
        """`10de:2330`."""
        return f"{self.vendor}:{self.device}"

    @property
    def switch(self) -> str:
        """The root port or host bridge below which it is: peers below the same one need not cross the CPU."""
        return self.parents[0] if self.parents else self.host_bridge


def is_address(word: str) -> bool:
    """`0000:65:00.0`; domains behind a volume management device have more digits (`10000:e1:00.0`)."""
    domain, _, rest = word.partition(":")
    digits = "0123456789abcdefABCDEF"
    return (
        len(domain) >= 4
        and len(rest) == 7
        and rest[2] == ":"
        and rest[5] == "."
        and not (domain + rest[:2] + rest[3:5]).strip(digits)
        and rest[6] in "01234567"
    )


def canonical(word: str) -> str:
    """An address as sysfs spells it: `65:00.0` and NVIDIA's `00000000:65:00.0` too; "" when it is none."""
    word = word.lower()
    if word.count(":") == 1:
        word = "0000:" + word
    domain, _, rest = word.partition(":")
    if len(domain) > 4:
        word = f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
    return word if is_address(word) else ""


def module_version(path: str, driver: str, root: str = "/") -> str:
    """What the driver's module says its version is; drivers of the kernel itself mostly have none."""
    for folder in (f"{path}/driver/module", f"{root.rstrip('/')}/sys/module/{driver.replace('-', '_')}"):
        version = sysfs.line(f"{folder}/version") if driver else ""
        if version:
            return version
    return ""


def read(address: str, root: str = "/") -> Function | None:
    """One function, or None when the machine has none at that address."""
    link = f"{root.rstrip('/')}/sys/bus/pci/devices/{address}"
    return Function(address, sysfs.follow(link), root) if is_address(address) and os.path.isdir(link) else None


def addresses(root: str = "/", base_class: str = "") -> list[str]:
    """The addresses of all functions, or of those of a base class: `03` is the displays."""
    folder = root.rstrip("/") + "/sys/bus/pci/devices"
    return [
        name
        for name in sorted(sysfs.names(folder))
        if is_address(name) and (not base_class or sysfs.hexa(f"{folder}/{name}/class").rjust(6, "0")[:2] == base_class)
    ]


def functions(root: str = "/") -> list[Function]:
    """All functions, by address."""
    found = (read(address, root) for address in addresses(root))
    return [function for function in found if function is not None]


def above(path: str) -> str:
    """The address of the PCI function that a device directory of sysfs is below or is, or ""."""
    return next((part for part in reversed(sysfs.real(path).split("/")) if is_address(part)), "")


def relation(one: Function, other: Function) -> str:
    """One of `RELATIONS`."""
    # virtual functions are on the bus of their physical one, mostly under another device number
    if (one.physfn or one.address)[:-1] == (other.physfn or other.address)[:-1]:
        return "SAME"
    common = 0
    for left, right in zip(one.parents, other.parents, strict=False):
        if left != right:
            break
        common += 1
    if common:
        # A switch is an upstream port with downstream ports below it: two of its ports are one bridge apart.
        apart = len(one.parents) + len(other.parents) - 2 * common
        return "PIX" if apart <= 2 else "PXB"
    if one.host_bridge and one.host_bridge == other.host_bridge:
        return "PHB"
    return "NODE" if one.numa == other.numa and one.numa >= 0 else "SYS"


class Names:
    """The machine's copy of pci.ids, looked into as it is: parsing all of it would cost more than the few answers."""

    __slots__ = ("_text",)

    def __init__(self, root: str = "/", places: Sequence[str] = IDS) -> None:
        self._text = ""
        for place in places:
            try:
                with open(root.rstrip("/") + place, encoding="utf-8", errors="replace") as file:
                    self._text = "\n" + file.read()
                break
            except OSError:
                continue

    def vendor(self, vendor: str) -> str:
        """A vendor's name, or its number."""
        return self._find(f"\n{vendor}  ", 0, len(self._text))[0] or vendor

    def device(self, vendor: str, device: str) -> str:
        """A device's name, or `vendor:device`."""
        _, start = self._find(f"\n{vendor}  ", 0, len(self._text))
        end = start
        while start >= 0:
            # the vendor's part ends before the first line that begins with neither a tab nor a comment
            end = self._text.find("\n", end + 1)
            if end < 0 or self._text[end + 1 : end + 2] not in ("\t", "#"):
                break
        name = self._find(f"\n\t{device}  ", start, end if end >= 0 else len(self._text))[0] if start >= 0 else ""
        return name or f"{vendor}:{device}"

    def _find(self, key: str, start: int, end: int) -> tuple[str, int]:
        if len(key.strip("\n\t ")) != 4:
            return "", -1
        place = self._text.find(key, start, end)
        if place < 0:
            return "", -1
        stop = self._text.find("\n", place + 1)
        stop = len(self._text) if stop < 0 else stop
        return sysfs.clean(self._text[place + len(key) : stop]), stop
