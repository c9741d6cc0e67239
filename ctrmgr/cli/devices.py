# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr device …`: what this machine has that an instance can be given."""

from __future__ import annotations

import sys

from ctrmgr.backend import catalog, inventory, topology
from ctrmgr.cli import finding, table
from ctrmgr.cli.command import Argument, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.inventory import Device
    from ctrmgr.cli.command import Args

COLUMNS = ("kind", "id", "name", "model", "driver", "pci", "numa", "nodes", "held by")
SPARE = ("numa", "driver", "pci", "name", "model")


def device_list(args: Args) -> None:
    every = args.flag("all")
    chosen = [device for device in everything(args.positional) if device.notable or every]
    form = args.one("format", "table")
    if form in ("json", "yaml"):
        table.print_rows((), [device.fields() for device in chosen], form)
    else:
        table.print_rows(COLUMNS, [row(device) for device in chosen], form, spare=SPARE)


def everything(kinds: Sequence[str] = ()) -> list[Device]:
    """What there is; a plugin that could not be asked is a line on stderr."""
    found, wrong = catalog.everything(kinds)
    for error in wrong:
        print(f"warning: {error.message}", file=sys.stderr)
    return found


def row(device: Device) -> dict[str, object]:
    """A device in one line."""
    return {
        "kind": device.kind,
        "id": device.id,
        "name": device.name,
        "model": device.model,
        "driver": f"{device.driver} {device.driver_version}".strip(),
        "pci": device.pci,
        "numa": device.numa if device.numa >= 0 else "",
        "nodes": [node.path for node in device.nodes if node.present],
        "held by": _users(device),
    }


def _users(device: Device) -> list[str]:
    """Each once, however many of its devices are made of this one."""
    return list(dict.fromkeys([*map(str, device.holders), *_host(device)]))


def _host(device: Device) -> list[str]:
    """What the host itself does with a disk: passing it on as well would destroy what is on it."""
    found: list[str] = []
    for key in ("mounts", "used-by"):
        words = device.details.get(key)
        found += [f"host:{word}" for word in words] if isinstance(words, list) else []
    return found


def device_show(args: Args) -> None:
    device = catalog.find(args.positional[0], everything())
    form = args.one("format", "table")
    fields = device.fields()
    if form in ("json", "yaml"):
        table.print_object(fields, form)
        return
    lines: dict[str, object] = {}
    for key, value in fields.items():
        if value in ("", [], -1):
            continue
        if key in ("nodes", "needs"):
            nodes = device.nodes if key == "nodes" else device.needs
            value = [
                f"{node.path} ({node.role}, {node.kind} {node.major}:{node.minor}{'' if node.present else ', not made yet'})"
                for node in nodes
            ]
        elif key == "holders":
            value = [
                f"{each.instance} as {each.device}{'' if each.live else ' (at its start)'}" for each in device.holders
            ]
        elif isinstance(value, dict):
            value = [f"{name} {_words(given)}".strip() for name, given in value.items()]
        elif isinstance(value, list):
            value = [_words(each) for each in value]
        elif key in ("size", "vram") and str(value).isdecimal():
            value = f"{value} ({table.size(int(str(value)))})"
        lines[key] = value
    table.print_object(lines, form)


def _words(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return " ".join(
        f"{key} {','.join(each) if isinstance(each, list) else each}" for key, each in value.items() if each
    )


def device_tree(args: Args) -> None:
    devices = everything()
    nodes, best = topology.numa_nodes(devices), topology.pairs(devices)
    form = args.one("format", "table")
    if form == "table":
        print("\n".join(drawn(nodes, best)))
    elif form == "csv":
        columns = ("numa", "host-bridge", "port", "kind", "id", "name", "model")
        table.print_rows(columns, flat(nodes), form)
    else:
        table.print_object(topology.fields(nodes, best), form)


def flat(nodes: list[topology.NumaNode]) -> list[dict[str, object]]:
    """One row for each device of the tree."""
    return [
        {"numa": node.number, "host-bridge": bridge.name, "port": switch.port, **row(device)}
        for node in nodes
        for bridge in node.bridges.values()
        for switch in bridge.switches.values()
        for device in switch.devices
    ]


def drawn(nodes: list[topology.NumaNode], best: list[topology.Pair]) -> list[str]:
    """The lines of the tree, and below it the pairs of GPU and RDMA device that are nearest."""
    lines: list[str] = []
    for node in nodes:
        cpus = f" (CPUs {node.cpus})" if node.cpus else ""
        lines.append(f"NUMA {node.number}{cpus}" if node.number >= 0 else f"this machine{cpus}")
        bridges = [(bridge.name, _below(bridge)) for bridge in node.bridges.values()]
        _draw(bridges, "", lines)
    if not lines:
        lines.append("no device below PCI")
    if best:
        lines.append("best GPU and RDMA pairs:")
        lines += [
            f"  {pair.gpu.id} {pair.gpu.name} – {pair.hca.id} {pair.hca.name}: {pair.relation}, {topology.MEANING[pair.relation]}"
            for pair in best
        ]
    return lines


Branch = tuple[str, list["Branch"]]


def _below(bridge: topology.Bridge) -> list[Branch]:
    found: list[Branch] = []
    for switch in bridge.switches.values():
        leaves: list[Branch] = [(_leaf(device), []) for device in switch.devices]
        found += [(f"{switch.port} (root port)", leaves)] if switch.port else leaves
    return found


def _leaf(device: Device) -> str:
    used = _users(device)
    holders = f" [{', '.join(used)}]" if used else ""
    words = " ".join(dict.fromkeys(filter(None, (device.pci, device.kind, device.name, device.model))))
    parts = device.details.get("parts")
    return words + (f", {len(parts)} parts" if isinstance(parts, list) else "") + holders


def _draw(branches: list[Branch], indent: str, lines: list[str]) -> None:
    for number, (title, below) in enumerate(branches, 1):
        last = number == len(branches)
        lines.append(f"{indent}{'└' if last else '├'}─ {title}")
        _draw(below, indent + ("   " if last else "│  "), lines)


COMMANDS = (
    Command(
        "device list",
        "devices of this machine that an instance can be given",
        device_list,
        arguments=(
            Argument(
                "KIND",
                f"only {', '.join(inventory.KINDS)}, or a plugin's type",
                required=False,
                repeat=True,
                complete="device-kind",
            ),
        ),
        options=(Option("all", "also hubs, consoles and the kernel's own nodes"),),
        help="An instance in parentheses is stopped, and gets the device with its next start.",
    ),
    Command(
        "device show",
        "all that is known of one device",
        device_show,
        arguments=(
            Argument("ID", "its id, or another name that fits one device: node, PCI address, UUID", complete="device"),
        ),
    ),
    Command(
        "device tree",
        "which devices are near each other: NUMA node, host bridge, PCIe switch",
        device_tree,
        help="Below the tree are, for each GPU, the RDMA devices that GPUDirect serves best.",
    ),
    *finding.COMMANDS,
)
