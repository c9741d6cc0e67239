# SPDX-License-Identifier: GPL-3.0-or-later
"""`any`: a device that is asked for by what it can do. Which one it is turns out when the instance starts."""

from __future__ import annotations

from ctrmgr.devices import fields, request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = request.FIELDS
live = True
"""It can come and go while an instance runs."""


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `request` rows. Raises ValueError."""
    if not any(values.get(key) for key in ("function", "vendor", "model", "id", "with")):
        raise ValueError("it does not say what it is for: `function`, such as `function: gpu.compute`")
    fields.one_owner(values)
    return request.rows(name, "any", "run", values)
