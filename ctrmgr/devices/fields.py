# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys that several kinds of device have, and how their values are read. Hot."""

from __future__ import annotations

from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHARES_MAX = 1024


def path(value: str) -> str:
    """An absolute path of the host's."""
    parts = value.split("/")
    if value[:1] != "/" or ".." in parts or "." in parts or "" in parts[1:] or len(value.encode()) > 255:
        raise ValueError("is not a plain absolute path of at most 255 bytes")
    return value


def inside(value: str) -> str:
    """A path of a node in an instance."""
    path(value)
    if not value.startswith("/dev/"):
        raise ValueError("is not below /dev: nodes work nowhere else in an instance")
    if value[5:].split("/", maxsplit=1)[0] in ("pts", "shm", "mqueue", "fd") or value[5:].startswith(".ctrmgr-"):
        raise ValueError("is in a part of /dev that belongs to something else")
    return value


def named(parse: Callable[[str], str], value: str) -> str:
    """The same of what is no key's own value: the error names it."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"`{value}` {error}") from None


def mode(value: str) -> str:
    """Permission bits, octal."""
    if not value or value.strip("01234567") or int(value, 8) > 0o777:
        raise ValueError("is not a mode: octal, 0 to 0777")
    return f"{int(value, 8):04o}"


def owner(value: str) -> str:
    """An id, or a name of the image's."""
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


def flag(value: str) -> str:
    """`true` or `false`."""
    low = value.lower()
    if low in ("true", "1", "yes", "on"):
        return "true"
    if low in ("false", "0", "no", "off"):
        return "false"
    raise ValueError("is not a boolean: true or false")


def lease(value: str) -> str:
    """`shared`, `exclusive` or `shared:N`."""
    kind, colon, most = value.partition(":")
    if value in ("shared", "exclusive"):
        return value
    if kind == "shared" and colon and most.isascii() and most.isdecimal() and 0 < int(most) <= SHARES_MAX:
        return f"shared:{int(most)}"
    raise ValueError(f"is not a lease: shared, exclusive, or shared:N with N from 1 to {SHARES_MAX}")


def hexa(value: str) -> str:
    """A vendor's or product's number: four hexadecimal digits."""
    digits = value.lower().removeprefix("0x")
    if not digits or len(digits) > 4 or digits.strip("0123456789abcdef"):
        raise ValueError("is not a number of up to four hexadecimal digits")
    return digits.rjust(4, "0")


def number(value: str) -> str:
    """A decimal number."""
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise ValueError("is not a number")
    return str(int(value))


def amount(value: str) -> str:
    """A size > 0, or a percentage."""
    from ctrmgr.units import size_bytes

    digits = value.removesuffix("%")
    if digits != value:
        if not (digits.isascii() and digits.isdecimal() and 1 <= int(digits) <= 100):
            raise ValueError("is not a percentage from 1% to 100%")
        return f"{int(digits)}%"
    size = size_bytes(value)
    if not size:
        raise ValueError("would leave no memory at all")
    return str(size)


def word(value: str) -> str:
    """Text in one line."""
    if not value or not value.isprintable() or len(value) > 255:
        raise ValueError("is not one line of text")
    return value


def address(value: str) -> str:
    """A PCI address as sysfs spells it."""
    from ctrmgr.host import pci

    found = pci.canonical(value)
    if not found:
        raise ValueError("is not a PCI address, such as 0000:65:00.0")
    return found


def link(value: str) -> str:
    """A name of a network link."""
    if (
        not 0 < len(value.encode()) < 16
        or any(letter in "/:%" or letter.isspace() for letter in value)
        or value in (".", "..")
    ):
        raise ValueError("is not a name for a link: 1 to 15 bytes without blanks and any of /:%")
    return value


def one_owner(values: Mapping[str, str]) -> None:
    """Raises ValueError when a device has two owners."""
    for one, other in (("uid", "user"), ("gid", "group")):
        if one in values and other in values:
            raise ValueError(f"it says both `{one}` and `{other}`")


def choice(*words: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return value

    return parse


LEASE = Field(
    lease, "who else may have it meanwhile: `shared`, `exclusive`, or `shared:N`: at most N in all", default="shared"
)
REQUIRED = Field(flag, "whether a start fails without it", default="true")
OWNERSHIP = {
    "uid": Field(owner, "owner inside, by number or by name in the image's /etc/passwd", default="0"),
    "gid": Field(owner, "group inside, by number or by name in the image's /etc/group", default="0"),
    "user": Field(owner, "same as `uid`"),
    "group": Field(owner, "same as `gid`"),
    "mode": Field(mode, "permission bits; without it 0660, or 0666 where the vendor's driver has that"),
    "ownership.inherit": Field(
        flag,
        "what is not said is as on the host: the mode, and the group by its name if that is render, video, rdma, disk, "
        "plugdev, kvm or input",
        default="false",
    ),
    "required": REQUIRED,
    "lease": LEASE,
}
"""What every device has that becomes nodes."""
FAILOVER = Field(
    choice("none", "same-model"),
    "what takes its place when it disappears while the instance runs: `same-model`, one of the same vendor and product that is free, "
    "under the same paths; GPUs of NVIDIA's driver and RDMA devices come under their own names",
    default="none",
)
PLUGGED = {
    **OWNERSHIP,
    "required": Field(flag, "whether a start or an attach fails when none is plugged in", default="false"),
}
"""What those have that come and go."""
