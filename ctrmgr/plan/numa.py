# SPDX-License-Identifier: GPL-3.0-or-later
"""`limits.cpu.nodes: devices` → the NUMA nodes that the instance's devices are at, now and as they come and go. Cold."""

from __future__ import annotations

from ctrmgr.errors import HostError
from ctrmgr.host import pci, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.host.machine import Host

    Rows = Sequence[Sequence[str]]

KEY, DEVICES = "limits.cpu.nodes", "devices"
FOLLOWS = "follows-devices"
"""The row that says so in a plan, with what `limits.cpu` is: attach and detach know no keys."""


def placed(config: Mapping[str, str], rows: Rows, host: Host, stays: Rows = ()) -> Mapping[str, str]:
    """The configuration with the nodes of the devices (in their plan's `rows`) in place of `devices`; with those of the plan that it
    has (`stays`) where none of them says where it is, if that follows devices, too; with all as long as one is still to be chosen.

    Raises HostError when nothing says where it is to be, on a machine with several nodes.
    """
    if config.get(KEY) != DEVICES:
        return config
    found = sorted(nodes(rows, host) & set(host.nodes))
    if not found and len(host.nodes) == 1:
        found = list(host.nodes)
    if not found and any(row[0] == FOLLOWS for row in stays):
        memory = next((row[3] for row in stays if is_place(row) and row[2] == "cpuset.mems"), "")
        found = [int(word) for word in memory.split(",") if word.isdecimal() and int(word) in host.nodes]
    if not found and _waits(rows):
        found = list(host.nodes)
    if not found:
        raise HostError(
            f"`{KEY}: {DEVICES}`: none of its devices is at a NUMA node that is known now",
            hint="name the nodes, or `balanced`",
        )
    return {**config, KEY: ",".join(map(str, found))}


def follows(config: Mapping[str, str], limits: Rows) -> list[list[str]]:
    """The row for a plan with these limits, unless it does without (`limits.enforcement: best-effort`)."""
    is_placed = config.get(KEY) == DEVICES and any(is_place(row) or row[0] == "@cpus" for row in limits)
    return [[FOLLOWS, config.get("limits.cpu", "")]] if is_placed else []


def is_place(row: Sequence[str]) -> bool:
    """Whether a row of a plan says on which CPUs and nodes the instance is."""
    return row[0] == "cgroup-file" and row[2] in ("cpuset.cpus", "cpuset.mems")


def watched(rows: Rows, host: Host) -> list[list[str]]:
    """What must still be so for the devices to be where they were: they may be moved, or the host may be told where they are."""
    top = host.root.rstrip("/")
    found: list[list[str]] = []
    for row in rows:
        files = [f"/sys/bus/pci/devices/{each}/numa_node" for each in _addresses(row, host) if pci.is_address(each)]
        if files and row[0] == "identity":
            disk = sysfs.real(f"{top}{row[2].rpartition('/')[0]}")
            files.append(f"{disk[len(sysfs.real(top) if top else '') :]}/dev")
        for file in files:
            said = ["identity", row[1], file, sysfs.known(top + file)]
            found += [] if said in found else [said]
    return found


def _waits(rows: Rows) -> bool:
    """Whether a device is still to be chosen, at the start."""
    chosen = {row[1] for row in rows if row[0] in ("lease", "device")}
    return any(row[0] == "request" and row[1] not in chosen for row in rows)


def nodes(rows: Rows, host: Host) -> set[int]:
    """Those that the devices of these rows are at."""
    return {node for node in (_node(address, host) for row in rows for address in _addresses(row, host)) if node >= 0}


def _addresses(row: Sequence[str], host: Host) -> list[str]:
    """The PCI functions that a row tells of: what is leased, or the disk, and the disk that it must still be."""
    if row[0] == "lease":
        kind, _, id = row[2].partition(":")
        if kind == "block":
            return [pci.above(f"{host.root.rstrip('/')}/sys/dev/block/{id}")]
        return [id.partition("/")[0]] if kind in ("pci", "rdma") else []
    if row[0] == "identity" and row[2].startswith("/sys/block/"):
        return [pci.above(f"{host.root.rstrip('/')}{row[2].rpartition('/')[0]}")]
    return []


def _node(address: str, host: Host) -> int:
    link = f"{host.root.rstrip('/')}/sys/bus/pci/devices/{address}"
    return sysfs.number(f"{link}/numa_node") if pci.is_address(address) else -1
