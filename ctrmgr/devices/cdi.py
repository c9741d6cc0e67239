# SPDX-License-Identifier: GPL-3.0-or-later
"""`cdi`: a device of any vendor, as a specification of the Container Device Interface describes it."""

from __future__ import annotations

from ctrmgr.devices import choose, fields
from ctrmgr.devices.driver import Field, Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

live = True


def _name(value: str) -> str:
    fields.word(value)
    if "=" not in value or "/" not in value.partition("=")[0]:
        raise ValueError("is not a CDI device: vendor/class=name, as `ctrmgr cdi list` prints them")
    return value


FIELDS = {
    "id": Field(_name, "`vendor/class=name`, as `ctrmgr cdi list` prints them", required=True),
    **fields.OWNERSHIP,
}


def resolve(name: str, values: Mapping[str, str], root: str = "/") -> Resolved:
    """What the specification says, its hooks as what is done inside. Cold: the files are read and checked."""
    from ctrmgr.cdi.registry import Registry

    registry = Registry(root)
    device = registry.find(values["id"])
    lease = [
        f"cdi:{values['id']}",
        *(f"node:{node.source}" for node in device.spec.container_edits.value().device_nodes),
    ]
    return Resolved(device.edits, identity=choose.identity(root), lease=lease)
