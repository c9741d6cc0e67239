# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-block`: a block device of the host."""

from __future__ import annotations

from ctrmgr.devices import unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = unix.FIELDS
live = True


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row. Raises ValueError."""
    return unix.rows("block", name, values)
