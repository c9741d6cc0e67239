# SPDX-License-Identifier: GPL-3.0-or-later
"""Which version of the specification has which field."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctrmgr.cdi.model import CdiSpec, EditsSpec

KNOWN = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""In order. Before 0.3.0 nothing was released."""

OLDEST, NEWEST = KNOWN[0], KNOWN[-1]
WITHOUT_CMT = "1.1.0"
"""Dropped `enableCMT` and `enableMBM`."""

Path = tuple[str, ...]


def number(version: str) -> tuple[int, ...]:
    """`v0.6.0` and `0.6.0` as something that can be compared. Raises ValueError."""
    parts = version.removeprefix("v").split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise ValueError(f"(`{version}`) is not a version")
    return tuple(int(part) for part in parts)


def check(version: str) -> str:
    """The version. Raises ValueError for one that we do not know."""
    asked = number(version)
    if asked > number(NEWEST):
        raise ValueError(f"`{version}` is newer than {NEWEST}, the newest version that is known here")
    if asked < number(OLDEST):
        raise ValueError(f"`{version}` is older than {OLDEST}, the first version that was released")
    if version.removeprefix("v") not in KNOWN:
        raise ValueError(f"`{version}` was never released: there are {', '.join(KNOWN)}")
    return version


def needs(spec: CdiSpec) -> Iterator[tuple[str, Path, str]]:
    """(version, key path, what) of everything in a spec that the oldest version does not have."""
    if "." in spec.kind.partition("/")[2]:
        yield "0.6.0", ("kind",), "a dot in the class"
    if spec.annotations:
        yield "0.6.0", ("annotations",), "this"
    for index, device in enumerate(spec.devices):
        path = ("devices", str(index))
        if device.name[0].isdigit():
            yield "0.5.0", (*path, "name"), "a digit as the first letter"
        if device.annotations:
            yield "0.6.0", (*path, "annotations"), "this"
        yield from _of_edits(device.container_edits, (*path, "containerEdits"))
    yield from _of_edits(spec.container_edits, ("containerEdits",))


def _of_edits(edits: EditsSpec, path: Path) -> Iterator[tuple[str, Path, str]]:
    for index, mount in enumerate(edits.mounts):
        if mount.type:
            yield "0.4.0", (*path, "mounts", str(index), "type"), "this"
    for index, node in enumerate(edits.device_nodes):
        if node.host_path:
            yield "0.5.0", (*path, "deviceNodes", str(index), "hostPath"), "this"
    if edits.additional_gids:
        yield "0.7.0", (*path, "additionalGids"), "this"
    if edits.intel_rdt:
        yield "0.7.0", (*path, "intelRdt"), "this"
        if edits.intel_rdt.schemata:
            yield "1.1.0", (*path, "intelRdt", "schemata"), "this"
        if edits.intel_rdt.enable_monitoring:
            yield "1.1.0", (*path, "intelRdt", "enableMonitoring"), "this"
    if edits.net_devices:
        yield "1.1.0", (*path, "netDevices"), "this"


def dropped(spec: CdiSpec) -> Iterator[Path]:
    """The key paths of what version 1.1.0 has no more."""
    every = [
        (("devices", str(index), "containerEdits"), device.container_edits) for index, device in enumerate(spec.devices)
    ]
    for path, edits in [*every, (("containerEdits",), spec.container_edits)]:
        if edits.intel_rdt and edits.intel_rdt.enable_cmt:
            yield (*path, "intelRdt", "enableCMT")
        if edits.intel_rdt and edits.intel_rdt.enable_mbm:
            yield (*path, "intelRdt", "enableMBM")


def lowest(spec: CdiSpec) -> str:
    """The oldest version that has all that a spec uses."""
    return max((version for version, _, _ in needs(spec)), key=number, default=OLDEST)
