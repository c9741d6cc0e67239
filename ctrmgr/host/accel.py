# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute accelerators of the kernel's `accel` class: Qualcomm's Cloud AI (qaic), Intel's NPU (ivpu), Habana's Gaudi. Hot."""

from __future__ import annotations

from ctrmgr.host import pci, sysfs


class Accelerator:
    """One accelerator. `id` is its PCI address, or the name of the device that is none of PCI's; `number` is `accelN`'s."""

    __slots__ = ("driver", "driver_version", "function", "id", "model", "node", "number")

    def __init__(self, number: int, node: sysfs.Node | None, path: str, root: str) -> None:
        address = pci.above(path)
        self.function = pci.read(address, root)
        self.id = address if self.function else "/".join(path.split("/")[-2:])
        self.number, self.node = number, node
        self.driver = self.function.driver if self.function else sysfs.base(f"{path}/driver")
        self.driver_version = pci.module_version(path, self.driver, root)
        # Habana's driver names the product beside its node; the others leave it to the PCI ids
        self.model = sysfs.line(f"{path}/device_type") or sysfs.line(f"{path}/product_name")


def accelerators(root: str = "/") -> list[Accelerator]:
    """All of them, by id."""
    folder = root.rstrip("/") + "/sys/class/accel"
    found = []
    for name in sysfs.names(folder):
        number = sysfs.integer(name[5:]) if name.startswith("accel") else -1
        if number >= 0:
            path = sysfs.real(f"{folder}/{name}/device")
            found.append(Accelerator(number, sysfs.node(root, f"{folder}/{name}", "accel"), path, root))
    return sorted(found, key=lambda accelerator: accelerator.id)
