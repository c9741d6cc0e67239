# SPDX-License-Identifier: GPL-3.0-or-later
"""How near the devices of this machine are to each other: NUMA node, host bridge, PCIe switch, and the best pairs."""

from __future__ import annotations

from ctrmgr.backend.inventory import KINDS
from ctrmgr.host import pci, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.inventory import Device

DRAWN = ("gpu", "accel", "infiniband", "unix-block", "usb")
ELSEWHERE = "not below PCI"
"""Stands for a host bridge with what a plugin reports of none."""
MEANING = pci.MEANING


class Switch:
    """What is below one root port of a host bridge; `port` is "" for what needs no switch."""

    __slots__ = ("devices", "port")

    def __init__(self, port: str) -> None:
        self.port = port
        self.devices: list[Device] = []


class Bridge:
    """A host bridge of a NUMA node."""

    __slots__ = ("name", "switches")

    def __init__(self, name: str) -> None:
        self.name = name
        self.switches: dict[str, Switch] = {}


class NumaNode:
    """A NUMA node; -1 is a machine that has only one, or does not say. `cpus` is as in `0-47,96-143`."""

    __slots__ = ("bridges", "cpus", "number")

    def __init__(self, number: int, cpus: str) -> None:
        self.number, self.cpus = number, cpus
        self.bridges: dict[str, Bridge] = {}


class Pair:
    """A GPU and the RDMA device that is nearest to it."""

    __slots__ = ("gpu", "hca", "relation")

    def __init__(self, gpu: Device, hca: Device, relation: str) -> None:
        self.gpu, self.hca, self.relation = gpu, hca, relation


def numa_nodes(devices: Sequence[Device], root: str = "/") -> list[NumaNode]:
    """The devices that are below a PCI host bridge, in their places, and what plugins report; parts of others are not shown."""
    found: dict[int, NumaNode] = {}
    for device in devices:
        function = device.function
        if device.part_of or not device.notable:
            continue
        if device.kind in KINDS and (function is None or device.kind not in DRAWN):
            continue
        if device.numa not in found:
            cpus = sysfs.line(f"{root.rstrip('/')}/sys/devices/system/node/node{max(device.numa, 0)}/cpulist")
            found[device.numa] = NumaNode(device.numa, cpus)
        place = function.host_bridge if function else ELSEWHERE
        bridge = found[device.numa].bridges.setdefault(place, Bridge(place))
        port = function.parents[0] if function and len(function.parents) > 1 else ""
        bridge.switches.setdefault(port, Switch(port)).devices.append(device)
    for node in found.values():
        node.bridges = dict(sorted(node.bridges.items()))
        for bridge in node.bridges.values():
            bridge.switches = dict(sorted(bridge.switches.items()))
            for switch in bridge.switches.values():
                switch.devices.sort(key=_order)
    return [found[number] for number in sorted(found)]


def _order(device: Device) -> tuple[str, int, str]:
    return device.pci, DRAWN.index(device.kind) if device.kind in DRAWN else len(DRAWN), device.id


def pairs(devices: Sequence[Device]) -> list[Pair]:
    """For each GPU that computes, the RDMA devices that are nearest: those that GPUDirect serves best.

    Virtual functions are as near as their physical one, which stands for them.
    """
    hcas = [device for device in devices if device.kind == "infiniband" and device.function]
    found = []
    for gpu in devices:
        computes = any(node.role in ("gpu", "render") for node in gpu.nodes)
        if gpu.kind != "gpu" or gpu.part_of or not gpu.function or not computes:
            continue
        ranked = [
            (pci.RELATIONS.index(relation), Pair(gpu, hca, relation))
            for hca in hcas
            if hca.function and not hca.function.physfn
            for relation in (pci.relation(gpu.function, hca.function),)
        ]
        best = min((rank for rank, _ in ranked), default=0)
        found += [pair for rank, pair in ranked if rank == best]
    return found


def fields(nodes: Sequence[NumaNode], best: Sequence[Pair]) -> dict[str, object]:
    """The same as plain data."""
    return {
        "numa-nodes": [
            {
                "numa": node.number,
                "cpus": node.cpus,
                "host-bridges": [
                    {
                        "host-bridge": bridge.name,
                        "ports": [
                            {
                                "port": switch.port,
                                "devices": [
                                    {"kind": device.kind, "id": device.id, "name": device.name, "model": device.model}
                                    for device in switch.devices
                                ],
                            }
                            for switch in bridge.switches.values()
                        ],
                    }
                    for bridge in node.bridges.values()
                ],
            }
            for node in nodes
        ],
        "pairs": [{"gpu": pair.gpu.id, "infiniband": pair.hca.id, "relation": pair.relation} for pair in best],
    }
