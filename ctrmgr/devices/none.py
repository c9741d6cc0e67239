# SPDX-License-Identifier: GPL-3.0-or-later
"""`none`: takes away a device of the same name that a profile gives."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.driver import Field
    from ctrmgr.devices.lxd import Made, There, Ways

FIELDS: dict[str, Field] = {}


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    return []


def lxd_ways() -> Ways:
    """It has no keys."""
    return {}


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers know it."""
    from ctrmgr.devices import lxd

    return lxd.plain("none", name, values, there, lxd_ways())
