# SPDX-License-Identifier: GPL-3.0-or-later
"""All instances at a glance. Hot, and linear in their number with a small factor."""

from __future__ import annotations

from ctrmgr import state
from ctrmgr.backend import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Row:
    """One line of `list`."""

    __slots__ = ("image", "ipv4", "name", "status")

    def __init__(self, name: str, status: str, ipv4: str, image: str) -> None:
        self.name, self.status, self.ipv4, self.image = name, status, ipv4, image


def listing() -> list[Row]:
    """All instances by name. One whose files are corrupt is listed as `CORRUPT`."""
    addresses = {owner: address for address, owner in state.claims("addresses").items()}
    return [_row(name, addresses) for name in record.names()]


def _row(name: str, addresses: Mapping[str, str]) -> Row:
    status, image = "STOPPED", ""
    if record.is_running(name):
        status = "RUNNING"
        with open(f"{record.run_home(name)}/state", "rb") as file:
            if b"\nfrozen\t1\n" in file.read():
                status = "FROZEN"
    try:
        first = state.read_flat(f"{record.home(name)}/config")[0]
        image = first[2] if first[0] == "image" else ""
    except Exception:  # any damage: one broken file must not hide the others
        status = "CORRUPT" if status == "STOPPED" else status
    return Row(name, status, addresses.get(name, ""), image)
