# SPDX-License-Identifier: GPL-3.0-or-later
"""LXD's units of sizes and rates. Hot."""

from __future__ import annotations

SIZES = {"": 1, "B": 1}
SIZES |= {f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
SIZES |= {f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P", "E"), 1)}
BITS = {"": 1, "bit": 1}
BITS |= {f"{prefix}bit": 1000**power for power, prefix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
BITS |= {f"{prefix}ibit": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P", "E"), 1)}
OTHERS = {"KB": "kB", "bytes": "B"}
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
SIZE_MAX = (1 << 63) - 1


def size_bytes(value: str) -> int:
    """Bytes of `512MiB`. B, kB … EB are powers of 1000, KiB … EiB of 1024. Raises ValueError."""
    return _number(value, SIZES, "a size: a whole number and a unit, such as 512MiB")


def bit_rate(value: str) -> int:
    """Bits in a second of `100Mbit`. Raises ValueError."""
    return _number(value, BITS, "a rate: a whole number and a unit, such as 100Mbit")


def _number(value: str, units: dict[str, int], what: str) -> int:
    digits = value.rstrip(LETTERS)
    unit = value[len(digits) :].strip()
    unit = OTHERS.get(unit, unit)
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"is not {what}")
    if unit not in units:
        raise ValueError(f"has the unknown unit `{unit}`: use one of {', '.join(filter(None, units))}")
    number = int(digits) * units[unit]
    if number > SIZE_MAX:
        raise ValueError("is more than the kernel can count")
    return number
