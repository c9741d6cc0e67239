# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-block`: a block device of the host."""

from __future__ import annotations

from ctrmgr.devices import unix
from ctrmgr.devices.driver import Field
from ctrmgr.units import size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def _rate(value: str) -> str:
    digits = value.removesuffix("iops").strip()
    if digits != value and digits.isascii() and digits.isdecimal():
        found = f"{int(digits)}iops"
    else:
        found = str(size_bytes(value))
    if found in ("0", "0iops"):
        raise ValueError("would be no access at all: say `readonly`, or leave the device out")
    return found


FIELDS = {
    **unix.FIELDS,
    "limits.read": Field(_rate, "bytes (`10MiB`) or requests (`200iops`) that may be read in a second"),
    "limits.write": Field(_rate, "the same for writing; cgroup v1 limits only what is written directly"),
    "limits.max": Field(_rate, "the same for both, each"),
}
live = True


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row, and an `@io` row for each direction that is limited. Raises ValueError."""
    if "limits.max" in values and ("limits.read" in values or "limits.write" in values):
        raise ValueError("`limits.max` says what `limits.read` and `limits.write` say")
    found = unix.rows("block", name, values)
    source = found[0][3]
    for direction in ("read", "write"):
        rate = values.get(f"limits.{direction}") or values.get("limits.max")
        if rate:
            found.append(["@io", name, source, direction, rate])
    return found
