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


def now(name: str, timeout: float) -> tuple[Devices, Nodes]:
    """Device → what it is; and (device, path inside) of each node → its number on the host. Raises ConflictError."""
    parts = control.ask(record.run_home(name), control.DEVICES, timeout=timeout).devices()
    devices: Devices = {
        part.name: {"kind": f"unix-{part.kind}", "path": part.path, "number": f"{part.major}:{part.minor}"}
        for part in sorted(parts, key=lambda part: part.kind in NODES)  # by its nodes, if it has any
    }
    nodes = {(part.name, part.path): f"{part.major}:{part.minor}" for part in parts if part.kind in NODES}
    return devices, nodes


def moved(old: Nodes, new: Nodes, stayed: set[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """What happened to nodes of devices that the instance had before and has still: the event, and its details."""
    for device, path in sorted({*old, *new}):
        before, after = old.get((device, path), ""), new.get((device, path), "")
        if device in stayed and before != after:
            event = "replaced" if before and after else "plugged" if after else "unplugged"
            was = {"was": before} if before and after else {}
            yield event, {"device": device, "path": path, "number": after or before, **was}
