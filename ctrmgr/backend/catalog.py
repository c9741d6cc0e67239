# SPDX-License-Identifier: GPL-3.0-or-later
"""Every device of this machine that an instance can be given, under one roof, and which instances have it."""

from __future__ import annotations

import os
import stat

from ctrmgr.backend import inventory, leases, record
from ctrmgr.backend.inventory import Device, Holder
from ctrmgr.errors import CtrmgrError, NotFoundError, SpecError
from ctrmgr.host import pci, usb
from ctrmgr.kernel import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctrmgr.host.sysfs import Node


PATIENCE = 2.0
"""Seconds that a monitor has to say what its instance has."""


def devices(root: str = "/", *, kinds: Sequence[str] = (), holders: bool = True) -> list[Device]:
    """Everything that can be passed, or what is of `kinds`, in the order of `inventory.KINDS`. Devices that others stand for are
    left out: a GPU's nodes are in the GPU, not once more among the character devices.

    `root` is another machine's recorded tree; what instances hold is only looked at for this one. Raises SpecError for a kind
    that there is not.
    """
    for kind in kinds:
        if kind not in inventory.KINDS:
            raise SpecError(f"`{kind}` is no kind of device", hint=f"the kinds are {', '.join(inventory.KINDS)}")
    names = pci.Names(root)
    sticks = usb.devices(root)
    found = [*inventory.gpus(root, names), *inventory.accelerators(root, names), *inventory.hcas(root, names)]
    found += [*inventory.disks(root), *inventory.usb_devices(root, sticks)]
    own = {number for device in found for number in _numbers(device.nodes)}
    shared = {number for device in found for number in _numbers(device.needs)}
    for device in inventory.chars(root, sticks):
        if not own & _numbers(device.nodes):
            device.notable = device.notable and not shared & _numbers(device.nodes)
            found.append(device)
    if holders and root == "/":
        hold(found)
    return [device for device in found if not kinds or device.kind in kinds]


def everything(kinds: Sequence[str] = ()) -> tuple[list[Device], list[CtrmgrError]]:
    """`devices` of this machine, and behind them what plugins report, by their types; and which plugins could not be asked. A
    character device that a plugin reports as its own is not listed once more.

    Raises SpecError for a kind that neither ctrmgr nor a plugin has.
    """
    own = [kind for kind in kinds if kind in inventory.KINDS]
    others = [kind for kind in kinds if kind not in own]
    found = devices(kinds=own) if own or not kinds else []
    if kinds and not others:
        return found, []
    from ctrmgr.backend import brought

    types = brought.types() if others else []
    for kind in others:
        if kind not in types:
            known = ", ".join((*inventory.KINDS, *types))
            raise SpecError(f"`{kind}` is no kind of device", hint=f"the kinds are {known}")
    more, wrong = brought.devices(others)
    theirs = {number for device in more for number in _numbers(device.nodes)}
    return [
        device for device in found if device.kind != "unix-char" or not theirs & _numbers(device.nodes)
    ] + more, wrong


def find(wanted: str, among: Sequence[Device]) -> Device:
    """The device with this id, alias, name, node or PCI address; or the only one whose id begins so.

    Raises NotFoundError, and SpecError naming the candidates when there are several.
    """
    address = pci.canonical(wanted) or "no address"
    node = os.path.realpath(wanted) if wanted.startswith("/dev/") else ""
    rules: tuple[Callable[[Device], bool], ...] = (
        lambda device: wanted == device.id,
        lambda device: wanted in device.aliases or address in (device.id, *device.aliases) or wanted == device.name,
        lambda device: any(each.path in (wanted, node, f"/dev/dri/{wanted}") for each in device.nodes),
        lambda device: device.pci == address,
        lambda device: any(_begins(word, wanted) for word in (device.id, *device.aliases)),
    )
    for rule in rules:
        fitting = [device for device in among if rule(device)]
        if len(fitting) > 1:
            whole = [device for device in fitting if not device.part_of]
            fitting = whole if len(whole) == 1 else fitting
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            listed = ", ".join(f"`{device.id}` ({device.kind})" for device in fitting)
            raise SpecError(f"`{wanted}` fits {len(fitting)} devices", hint=f"say which: {listed}")
    raise NotFoundError(f"this host has no device `{wanted}`", hint=_nearest(wanted, among))


def _begins(word: str, start: str) -> bool:
    """Whether a name begins so; no number is cut: `card1` does not begin `card10`."""
    return len(start) > 3 and word.startswith(start) and not (start[-1].isdigit() and word[len(start)].isdigit())


def _nearest(wanted: str, among: Sequence[Device]) -> str:
    from difflib import get_close_matches

    words = [word for device in among for word in (device.id, device.name, *device.aliases)]
    near = get_close_matches(wanted, words, 1)
    return f"did you mean `{near[0]}`?" if near else "`ctrmgr device list` shows what there is"


# Who has what


def _numbers(nodes: Sequence[Node]) -> set[tuple[str, int, int]]:
    return {(node.kind, node.major, node.minor) for node in nodes}


def hold(found: Sequence[Device]) -> None:
    """Fill in the holders: what running instances have now, and what the plans of the others name."""
    by_number = {number: device for device in reversed(found) for number in _numbers(device.nodes)}
    modes = {lease.owner: lease.mode for lease in leases.held() if not lease.keeps}
    for name in record.names():
        try:
            held = _held(name)
        except CtrmgrError:
            continue  # a damaged or vanished instance must not hide the machine's devices
        for device_name, number, live in held:
            device = by_number.get(number)
            if device:
                device.holders.append(Holder(name, device_name, live, modes.get((name, device_name), "shared")))


def _held(name: str) -> list[tuple[str, tuple[str, int, int], bool]]:
    """Name in the instance, number, and whether it has it now. A monitor that is stuck is not waited for: then the plan counts."""
    live = record.is_running(name)
    if live:
        try:
            answer = control.ask(record.run_home(name), control.DEVICES, timeout=PATIENCE).devices()
            return [(device.name, (device.kind, device.major, device.minor), True) for device in answer]
        except CtrmgrError:
            live = record.is_running(name)
    found = []
    for row in record.read_plan(record.home(name)):
        if row[0] == "device":
            try:
                status = os.stat(row[3])
            except OSError:
                continue
            kind = "block" if stat.S_ISBLK(status.st_mode) else "char"
            found.append((row[1], (kind, os.major(status.st_rdev), os.minor(status.st_rdev)), live))
    return found
