# SPDX-License-Identifier: GPL-3.0-or-later
"""Links of the host's that move into an instance. Hot."""

from __future__ import annotations


def netdev(name: str, parent: str, inside: str, address: str, mtu: str, need: str) -> list[list[str]]:
    """The rows of one. It is in one place at a time, whatever lease the rest of its device has."""
    return [["netdev", name, parent, inside, address, mtu, need], ["lease", name, f"link:{parent}", "exclusive"]]
