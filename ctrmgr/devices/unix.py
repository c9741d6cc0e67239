# SPDX-License-Identifier: GPL-3.0-or-later
"""What `unix-char` and `unix-block` have in common: a node of the host's made anew in the instance's /dev. Hot."""

from __future__ import annotations

from ctrmgr.devices import fields
from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Ways

LATER = "name the host's node with `source`"
FIELDS = {
    "source": Field(fields.path, "the host's node; without it `path`"),
    "path": Field(fields.inside, "where it is inside, below /dev; without it `source`"),
    **fields.OWNERSHIP,
    "readonly": Field(fields.flag, "refuse opening it for writing", default="false"),
    "major": Field(str, "known from LXD and Incus", refused=LATER),
    "minor": Field(str, "known from LXD and Incus", refused=LATER),
}


def rows(kind: str, name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row; owner and mode are "" where they are not said. Raises ValueError when neither a source nor a path is
    given, or two owners are."""
    source = values.get("source") or values.get("path", "")
    if not source:
        raise ValueError("it says neither `source` nor `path`")
    fields.one_owner(values)
    return [
        [
            "device",
            name,
            kind,
            source,
            fields.named(fields.inside, values.get("path") or source),
            values.get("uid") or values.get("user") or "",
            values.get("gid") or values.get("group") or "",
            values.get("mode") or "",
            "r" if values.get("readonly") == "true" else "rwm",
            "optional" if values.get("required") == "false" else "required",
        ]
    ]


# On servers


def lxd_ways() -> Ways:
    """Servers have these types."""
    from ctrmgr.devices import lxd

    return {
        **dict.fromkeys(("source", "path", "major", "minor"), lxd.NATIVE),
        **lxd.NODE,
        "readonly": lxd.refused("without a device program the mode alone says who may write", *lxd.FALSE),
    }
