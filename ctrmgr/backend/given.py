# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance has of its devices just now, and what became of them since another look. Cold."""

from __future__ import annotations

from ctrmgr.backend import record
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Devices = dict[str, dict[str, object]]
    Nodes = dict[tuple[str, str], str]

NODES = ("char", "block")
OWN_NAMES = ("/dev/nvidia", "/dev/infiniband/", "/dev/dri/")
"""Below these a node that takes the place of another may have a name of its own."""


def now(name: str, timeout: float) -> tuple[Devices, Nodes]:
    """Device → what it is; and (device, path inside) of each node → its number on the host, of each link that moved → its name
    there. Raises ConflictError."""
    parts = control.ask(record.run_home(name), control.DEVICES, timeout=timeout).devices()
    devices: Devices = {
        part.name: {"kind": f"unix-{part.kind}", "path": part.path, "number": f"{part.major}:{part.minor}"}
        for part in sorted(parts, key=lambda part: part.kind in NODES)  # by its nodes, if it has any
    }
    nodes = {(part.name, part.path): f"{part.major}:{part.minor}" for part in parts if part.kind in NODES}
    nodes |= {(part.name, part.path): part.user for part in parts if part.kind == "netdev"}
    return devices, nodes


def moved(old: Nodes, new: Nodes, stayed: set[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """What happened to nodes of devices that the instance had before and has still: the event, and its details."""
    came = {place: number for place, number in new.items() if place not in old and place[0] in stayed}
    instead: dict[tuple[str, str], tuple[str, str]] = {}
    for place in sorted(set(old) - set(new)):
        other = next((each for each in sorted(came) if _is_spare(place, each)), None)
        if other:
            instead[other] = place
            del came[other]
    for device, path in sorted({*old, *new} - set(instead.values())):
        place = instead.get((device, path), (device, path))
        before, after = old.get(place, ""), new.get((device, path), "")
        if device in stayed and (before != after or place[1] != path):
            event = "replaced" if before and after else "plugged" if after else "unplugged"
            was = {"was": before} if before and after else {}
            was |= {"was_path": place[1]} if place[1] != path else {}
            yield event, {"device": device, "path": path, "number": after or before, **was}


def _is_spare(gone: tuple[str, str], came: tuple[str, str]) -> bool:
    """Whether a node is of the same device and kind as one that has gone."""
    (device, old), (other, new) = gone, came
    digits = "0123456789"
    return device == other and old.startswith(OWN_NAMES) and old.rstrip(digits) == new.rstrip(digits)
