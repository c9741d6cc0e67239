# SPDX-License-Identifier: GPL-3.0-or-later
"""The key `partition`: a part of a device for one instance alone, by what it is to have or by its name. Hot."""

from __future__ import annotations

from ctrmgr import units
from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "partition"
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")
PROFILE = "profile"


class Asked:
    """What a canonical `partition` means: a partition that has a name, or a new one with at least these amounts, perhaps one of
    the sizes that the device's maker has named."""

    __slots__ = ("amounts", "name", "profile")

    def __init__(self, value: str) -> None:
        self.name = self.profile = ""
        self.amounts: dict[str, int] = {}
        if "=" not in value:
            self.name = value
            return
        for word in value.split(","):
            key, _, wanted = word.partition("=")
            if key == PROFILE:
                self.profile = wanted
            else:
                self.amounts[key] = int(wanted)


def name(value: str) -> str:
    """The name of a partition."""
    if not 0 < len(value) <= 63 or not LETTERS.issuperset(value) or value[0] in ".-_0123456789":
        raise ValueError("is not the name of a partition: a letter, then small letters, digits, `-`, `_` and `.`")
    return value


def sizes(value: str) -> str:
    """`cores=2,memory=8GiB`, or `profile=1g.10gb`: with whole numbers, in the order of the names."""
    found: dict[str, str] = {}
    for word in value.split(","):
        key, equals, wanted = (part.strip() for part in word.partition("="))
        if not equals or not key or not LETTERS.issuperset(key):
            raise ValueError(f"has `{word.strip()}`, which is not POOL=AMOUNT, such as cores=2 or memory=8GiB")
        if key in found:
            raise ValueError(f"says `{key}` twice")
        if key == PROFILE:
            if not wanted or not wanted.isprintable() or " " in wanted or len(wanted) > 63:
                raise ValueError(f"has the profile `{wanted}`, which is not one word")
            found[key] = wanted
            continue
        try:
            number = units.size_bytes(wanted)
        except ValueError as error:
            raise ValueError(f"is wrong in `{key}={wanted}`: that {error}") from None
        if number < 1:
            raise ValueError(f"asks for nothing of `{key}`")
        found[key] = str(number)
    return ",".join(f"{key}={found[key]}" for key in sorted(found))


def joined(amounts: Mapping[str, object]) -> str:
    """The words of a map (`{cores: 2, memory: 8GiB}`), not parsed yet. Raises ValueError."""
    for key, value in amounts.items():
        if not isinstance(value, (str, int)) or "," in f"{key}{value}" or "=" in f"{key}{value}":
            raise ValueError(f"has `{key}: {value}`, which is not one POOL and its AMOUNT")
    if not amounts:
        raise ValueError("asks for nothing")
    return ",".join(f"{key}={value}" for key, value in amounts.items())


def parse(value: str) -> str:
    """The key in canonical form."""
    return sizes(value) if "=" in value else name(value)


UNITS = "counters are whole numbers, sizes have LXD's units (8GiB, 500MB); `ctrmgr partition list --pools` shows what devices have of what"
FIELD = Field(
    parse,
    "a part of the device for this instance alone: `cores=2,memory=8GiB` (in a profile also a map) or `profile=1g.10gb`, made at start and "
    "gone at stop; or the name of one that `ctrmgr partition create` made",
)
