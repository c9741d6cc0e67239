# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device, when `attach-device` was not told: asked on a terminal. Cold."""

from __future__ import annotations

import sys

from ctrmgr.backend import catalog, devices, record
from ctrmgr.errors import NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.inventory import Device


def choose(instance: str) -> tuple[str, dict[str, str]]:
    """A device's name and keys.

    Raises SpecError where nobody can be asked or nothing is chosen, NotFoundError when there is no such instance, or nothing.
    """
    record.Record(instance)
    there = [device for device in catalog.everything()[0] if device.notable and _is_free(device)]
    if not there:
        raise NotFoundError("this host has no device that an instance could be given")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        listed = ", ".join(f"`{device.id}` ({device.kind})" for device in there)
        raise SpecError("which device? Here is no terminal to choose on", hint=f"there are {listed}")
    for line in lines(there):
        print(line, file=sys.stderr)
    print(f"which one for `{instance}`? ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isascii() and answer.isdecimal() and 0 < int(answer) <= len(there):
        return keys(there[int(answer) - 1])
    if not answer:
        raise SpecError("no device was chosen")
    return keys(catalog.find(answer, there))


def by_name(instance: str, name: str) -> tuple[str, dict[str, str]]:
    """The same of a device by what `device list` calls it. Raises SpecError when it is none, or several fit."""
    record.Record(instance)
    try:
        return keys(catalog.find(name, catalog.everything()[0]))
    except NotFoundError as error:
        raise SpecError(
            f"device `{name}` has no `type`, and this host has no device of that name", hint=error.hint
        ) from None


def _is_free(device: Device) -> bool:
    """Whether neither the host uses it nor somebody has it for himself."""
    used = device.details.get("mounts") or device.details.get("used-by")
    return not used and not any(holder.lease == "exclusive" for holder in device.holders)


def lines(there: Sequence[Device]) -> list[str]:
    """What there is, with numbers."""
    width = len(str(len(there)))
    return [
        "  ".join(filter(None, (f"{number:{width}}", device.kind, device.id, device.name, device.model)))
        + (f"  [{', '.join(map(str, device.holders))}]" if device.holders else "")
        for number, device in enumerate(there, 1)
    ]


def keys(device: Device) -> tuple[str, dict[str, str]]:
    """As one would have written it."""
    if device.kind in ("unix-char", "unix-block"):
        return devices.short_form(next(node.path for node in device.nodes if node.present))
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in device.name or device.id)
    return name[:63], {"type": device.kind, "id": device.id}
