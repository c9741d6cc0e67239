# SPDX-License-Identifier: GPL-3.0-or-later
"""`unix-char`: a character device of the host."""

from __future__ import annotations

from ctrmgr.devices import unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

FIELDS = unix.FIELDS
live = True


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row. Raises ValueError."""
    return unix.rows("char", name, values)


def lxd_ways() -> Ways:
    """What becomes of each key on a server."""
    return unix.lxd_ways()


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type."""
    from ctrmgr.devices import lxd

    return lxd.plain("unix-char", name, values, there, lxd_ways())
