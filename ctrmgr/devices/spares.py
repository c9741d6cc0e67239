# SPDX-License-Identifier: GPL-3.0-or-later
"""`failover: same-model`: the rules by which a monitor finds other hardware of the same model for what is gone. Cold."""

from __future__ import annotations

import os

from ctrmgr.errors import NotFoundError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = (("idVendor", "idProduct"), ("vendor", "device"))
"""Files that say what model a directory of sysfs is: of USB, of PCI and other buses."""


def rules(name: str, found: Sequence[Sequence[str]], root: str = "/") -> list[list[str]]:
    """One for each node of a device's rows that belongs to hardware; `unit` says which of them are of one piece.

    Raises NotFoundError when there is none yet, UnsupportedError for nodes that the kernel does not tell of.
    """
    made: list[list[str]] = []
    units: list[str] = []
    nodes = [row for row in found if row[0] == "device"]
    if not nodes:
        raise NotFoundError("`failover` needs the device at first: there is nothing yet whose model could be known")
    for row in nodes:
        if row[3].startswith("/dev/nvidia"):
            raise UnsupportedError(
                "`failover`: NVIDIA's library opens each GPU's node by the number that the driver gives it: another GPU under"
                " the path of this one would not be found"
            )
        place = _place(row, root)
        if row[2] == "block":
            raise UnsupportedError(f"`failover`: `{row[3]}` is a disk, and another disk has other data")
        hardware, vendor, model = _model(place, root)
        if not hardware:
            continue  # a node that is everybody's, such as /dev/kfd
        if hardware not in units:
            units.append(hardware)
        kind = os.path.basename(os.path.realpath(f"{place}/subsystem"))
        stem = "" if kind == "usb" else os.path.basename(place).rstrip("0123456789")
        words = {"class": kind, "name": stem, "vendor": vendor, "model": model, "unit": str(units.index(hardware))}
        path = row[4].removeprefix("/dev/")
        made.append(
            ["hotplug", name, *row[5:9], "model", *(f"{key}={value}" for key, value in words.items()), f"path={path}"]
        )
    if not made:
        raise UnsupportedError("`failover`: none of its nodes belongs to hardware whose model the kernel knows")
    return made


def _place(row: Sequence[str], root: str) -> str:
    """The directory of a node in sysfs."""
    top = root.rstrip("/")
    try:
        number = os.stat(top + row[3]).st_rdev
        return os.path.realpath(f"{top}/sys/dev/{row[2]}/{os.major(number)}:{os.minor(number)}", strict=True)
    except OSError:
        raise UnsupportedError(
            f"`failover`: the kernel tells nobody when `{row[3]}` comes or goes", hint="its driver is not in sysfs"
        ) from None


def _model(place: str, root: str) -> tuple[str, str, str]:
    """The nearest directory above that has a model, its vendor and its product; nothing when there is none."""
    top = os.path.realpath(f"{root.rstrip('/')}/sys/devices")
    while place.startswith(f"{top}/"):
        for files in MODELS:
            try:
                vendor, model = (_text(f"{place}/{file}") for file in files)
            except OSError:
                continue
            return place, vendor, model
        place = os.path.dirname(place)
    return "", "", ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
