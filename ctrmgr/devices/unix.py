# SPDX-License-Identifier: GPL-3.0-or-later
"""What `unix-char` and `unix-block` have in common: a node of the host's made anew in the instance's /dev. Hot."""

from __future__ import annotations

from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def _path(value: str) -> str:
    parts = value.split("/")
    if value[:1] != "/" or ".." in parts or "." in parts or "" in parts[1:] or len(value.encode()) > 255:
        raise ValueError("is not a plain absolute path of at most 255 bytes")
    return value


def _inside(value: str) -> str:
    _path(value)
    if not value.startswith("/dev/"):
        raise ValueError("is not below /dev: nodes work nowhere else in an instance")
    if value[5:].split("/", maxsplit=1)[0] in ("pts", "shm", "mqueue", "fd") or value[5:].startswith(".ctrmgr-"):
        raise ValueError("is in a part of /dev that belongs to something else")
    return value


def _mode(value: str) -> str:
    if not value or value.strip("01234567") or int(value, 8) > 0o777:
        raise ValueError("is not a mode: octal, 0 to 0777")
    return f"{int(value, 8):04o}"


def _owner(value: str) -> str:
    if value.isdecimal() and int(value) >= 0xFFFFFFFF:
        raise ValueError("is not an id")
    if (
        not value
        or len(value.encode()) > 63
        or any(letter.isspace() or letter in ":,/" for letter in value)
        or value[0] == "-"
    ):
        raise ValueError("is neither an id nor a name")
    return value


def _flag(value: str) -> str:
    low = value.lower()
    if low in ("true", "1", "yes", "on"):
        return "true"
    if low in ("false", "0", "no", "off"):
        return "false"
    raise ValueError("is not a boolean: true or false")


FIELDS = {
    "source": Field(_path, "the host's node; without it `path`"),
    "path": Field(_inside, "where it is inside, below /dev; without it `source`"),
    "uid": Field(_owner, "owner inside, by number or by name in the image's /etc/passwd", default="0"),
    "gid": Field(_owner, "group inside, by number or by name in the image's /etc/group", default="0"),
    "user": Field(_owner, "same as `uid`"),
    "group": Field(_owner, "same as `gid`"),
    "mode": Field(_mode, "permission bits", default="0660"),
    "required": Field(_flag, "whether a start fails without it", default="true"),
    "readonly": Field(_flag, "refuse opening it for writing", default="false"),
    "major": Field(str, "known from LXD and Incus", refused="name the host's node with `source`"),
    "minor": Field(str, "known from LXD and Incus", refused="name the host's node with `source`"),
    "ownership.inherit": Field(_flag, "known from Incus", refused="say uid, gid and mode", default="false"),
}


def rows(kind: str, name: str, values: Mapping[str, str]) -> list[list[str]]:
    """The `device` row. Raises ValueError when neither a source nor a path is given, or two owners are."""
    source = values.get("source") or values.get("path", "")
    if not source:
        raise ValueError("it says neither `source` nor `path`")
    for one, other in (("uid", "user"), ("gid", "group")):
        if one in values and other in values:
            raise ValueError(f"it says both `{one}` and `{other}`")
    return [
        [
            "device",
            name,
            kind,
            source,
            _inside(values.get("path") or source),
            values.get("uid") or values.get("user") or "0",
            values.get("gid") or values.get("group") or "0",
            values.get("mode") or FIELDS["mode"].default,
            "r" if values.get("readonly") == "true" else "rwm",
            "optional" if values.get("required") == "false" else "required",
        ]
    ]
