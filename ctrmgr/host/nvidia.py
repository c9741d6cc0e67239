# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's driver says in `/proc`: it has no nodes in sysfs, and its MIG slices are capabilities there. Hot."""

from __future__ import annotations

from ctrmgr.host import pci, sysfs

MAJOR, CONTROL_MINOR, MODESET_MINOR = 195, 255, 254
MINORS = 256


class Card:
    """One GPU of the driver. `minor` is -1 and `uuid` is "" as long as the driver has not set the GPU up."""

    __slots__ = ("address", "excluded", "firmware", "minor", "model", "uuid")

    def __init__(self, address: str, information: str) -> None:
        given = sysfs.fields(information.split("\n"), ":")
        minor = sysfs.integer(given.get("Device Minor", ""))
        uuid = given.get("GPU UUID", "")
        self.address, self.model = address, given.get("Model", "")
        self.minor = minor if minor < MINORS else -1
        self.uuid = uuid if uuid.startswith("GPU-") and not uuid[4:].strip("0123456789abcdefABCDEF-") else ""
        self.firmware = given.get("GPU Firmware", "")
        self.excluded = given.get("GPU Excluded", "No") == "Yes"


class Slice:
    """A compute instance of a MIG GPU, and the capability that each of its two levels has as a node."""

    __slots__ = ("ci", "gi", "minors")

    def __init__(self, gi: int, ci: int, minors: tuple[int, int]) -> None:
        self.gi, self.ci, self.minors = gi, ci, minors


def cards(root: str = "/") -> list[Card]:
    """The GPUs that the driver has, by address."""
    folder = root.rstrip("/") + "/proc/driver/nvidia/gpus"
    return [
        Card(address, sysfs.text(f"{folder}/{name}/information"))
        for name in sysfs.names(folder)
        if (address := pci.canonical(name))
    ]


def version(root: str = "/") -> str:
    """The driver's: `535.129.03`."""
    first = sysfs.line(root.rstrip("/") + "/proc/driver/nvidia/version")
    return next((word for word in first.split() if word[0].isdecimal() and "." in word), "")


def slices(minor: int, root: str = "/") -> list[Slice]:
    """The compute instances of the GPU with this minor; none when it is not in MIG mode, or not divided."""
    top = f"{root.rstrip('/')}/proc/driver/nvidia/capabilities/gpu{minor}/mig"
    found = []
    for gi, folder in _instances(top, "gi"):
        for ci, inner in _instances(folder, "ci"):
            minors = (_capability(folder), _capability(inner))
            if min(minors) >= 0:
                found.append(Slice(gi, ci, minors))
    return found


def _instances(folder: str, prefix: str) -> list[tuple[int, str]]:
    numbers = ((sysfs.integer(name.removeprefix(prefix)), name) for name in sysfs.names(folder) if name != prefix)
    return [(number, f"{folder}/{name}") for number, name in numbers if number >= 0 and name == f"{prefix}{number}"]


def _capability(folder: str) -> int:
    given = sysfs.fields(sysfs.text(f"{folder}/access").split("\n"), ":")
    return sysfs.integer(given.get("DeviceFileMinor", ""))


def card_node(card: Card, root: str = "/") -> sysfs.Node | None:
    """`/dev/nvidiaN`."""
    if card.minor < 0:
        return None
    major = _major(sysfs.majors(root))
    return sysfs.plain_node(root, f"/dev/nvidia{card.minor}", "gpu", major, card.minor)


def shared_nodes(root: str = "/") -> list[sysfs.Node]:
    """The nodes that every program needs beside its GPU's own. CUDA wants the first two, displays the last."""
    majors = sysfs.majors(root)
    found = [sysfs.plain_node(root, "/dev/nvidiactl", "control", _major(majors), CONTROL_MINOR)]
    uvm = majors.get("nvidia-uvm", -1)
    if uvm >= 0:
        found.append(sysfs.plain_node(root, "/dev/nvidia-uvm", "uvm", uvm, 0))
        found.append(sysfs.plain_node(root, "/dev/nvidia-uvm-tools", "uvm-tools", uvm, 1))
    if "nvidia-modeset" in majors:
        major = majors["nvidia-modeset"]
        found.append(sysfs.plain_node(root, "/dev/nvidia-modeset", "modeset", major, MODESET_MINOR))
    return found


def slice_nodes(part: Slice, root: str = "/") -> list[sysfs.Node]:
    """The two capability nodes of a compute instance; none when the driver has no major for them."""
    major = sysfs.majors(root).get("nvidia-caps", -1)
    return [
        sysfs.plain_node(root, f"/dev/nvidia-caps/nvidia-cap{minor}", role, major, minor)
        for minor, role in zip(part.minors, ("cap-gi", "cap-ci"), strict=True)
        if major >= 0
    ]


def _major(majors: dict[str, int]) -> int:
    # The name of the first entry has changed between drivers; the number is registered and has not.
    return majors.get("nvidia-frontend", majors.get("nvidia", MAJOR))
