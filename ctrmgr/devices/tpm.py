# SPDX-License-Identifier: GPL-3.0-or-later
"""`tpm`: a TPM 2.0 of the instance's own, emulated by a program that runs as long as the instance does."""

from __future__ import annotations

from ctrmgr.devices import fields
from ctrmgr.devices.driver import Field
from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

PATH, PATHRM = "/dev/tpm0", "/dev/tpmrm0"
FIELDS = {
    "path": Field(fields.inside, "the TPM inside, for one program at a time", default=PATH),
    "pathrm": Field(fields.inside, "the same TPM behind the kernel's resource manager, for several", default=PATHRM),
    **{key: fields.OWNERSHIP[key] for key in ("uid", "gid", "user", "group")},
    "mode": Field(fields.mode, "permission bits of both", default="0660"),
}
live = True


def locate(values: Mapping[str, str], root: str = "/") -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The keys as they are. Raises UnsupportedError where no TPM can be emulated."""
    from ctrmgr.host import tpm

    reason, cure = tpm.missing(root)
    if reason:
        raise UnsupportedError(reason, hint=f"{cure}; a TPM that the host has is passed as unix-char")
    return dict(values), []


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `request` rows: it has no nodes before it is made, at each start. Raises ValueError."""
    from ctrmgr.devices import request

    fields.one_owner(values)
    if (values.get("path") or PATH) == (values.get("pathrm") or PATHRM):
        raise ValueError("`path` and `pathrm` are the same")
    return request.rows(name, "tpm", "run", values)


def nodes(name: str, values: Mapping[str, str], made: tuple[str, str]) -> list[list[str]]:
    """The `device` rows, of what it was made as on the host."""
    owner = [values.get(key) or values.get(other) or "0" for key, other in (("uid", "user"), ("gid", "group"))]
    places = values.get("path") or PATH, values.get("pathrm") or PATHRM
    return [
        ["device", name, "char", source, place, *owner, values.get("mode") or "0660", "rwm", "required"]
        for source, place in zip(made, places, strict=True)
    ]


# On servers


def lxd_ways() -> Ways:
    """Servers have this type, with paths that must be said."""
    from ctrmgr.devices import lxd

    owned = lxd.refused("a server's TPM belongs to root inside", "0")
    return {
        "path": lxd.native(why=f"without it `{PATH}`"),
        "pathrm": lxd.native(why=f"without it `{PATHRM}`"),
        **dict.fromkeys(("uid", "gid", "user", "group"), owned),
        "mode": lxd.refused("a server's TPM has the mode 0660", "0660", "660"),
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    from ctrmgr.devices import lxd

    return lxd.plain("tpm", name, {"path": PATH, "pathrm": PATHRM, **values}, there, lxd_ways())
