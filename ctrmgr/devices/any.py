# SPDX-License-Identifier: GPL-3.0-or-later
"""`any`: a device that is asked for by what it can do. Which one it is turns out when the instance starts."""

from __future__ import annotations

from ctrmgr.devices import fields, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

FIELDS = request.FIELDS
live = True
"""It can come and go while an instance runs."""


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `request` rows. Raises ValueError."""
    if not any(values.get(key) for key in ("function", "vendor", "model", "id", "with")):
        raise ValueError("it does not say what it is for: `function`, such as `function: gpu.compute`")
    fields.one_owner(values)
    return request.rows(name, "any", "run", values)


# On servers

CHOSEN = "which device it is ctrmgr finds out at each start, and there the server starts it: name the device"


def lxd_ways() -> Ways:
    """Servers have no such type."""
    from ctrmgr.devices import lxd

    return dict.fromkeys(FIELDS, lxd.refused(CHOSEN))


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    from ctrmgr.devices import lxd

    return lxd.refuse(name, CHOSEN)
