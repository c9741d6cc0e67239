# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of the Container Device Interface: `vendor.com/class=device`."""

from __future__ import annotations

import re

from ctrmgr.errors import SpecError

# What starts with a letter or digit, and ends with one; a vendor and a class start with a letter.
WORD = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?", re.ASCII)
LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII)
KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)

VENDOR_MAX, CLASS_MAX, KEY_MAX = 253, 63, 63
RULE = "letters, digits, `-`, `_` and `.`, a letter first and no sign last"


def check_kind(kind: str) -> str:
    """`vendor/class`. Raises ValueError."""
    vendor, slash, name = kind.partition("/")
    if not slash:
        raise ValueError(f"(`{kind}`) is not vendor/class")
    if not WORD.fullmatch(vendor) or len(vendor) > VENDOR_MAX:
        raise ValueError(f"(`{kind}`): `{vendor}` cannot be a vendor: {RULE}; at most {VENDOR_MAX}")
    if not WORD.fullmatch(name) or len(name) > CLASS_MAX:
        raise ValueError(f"(`{kind}`): `{name}` cannot be a class: {RULE}; at most {CLASS_MAX}")
    return kind


def check_device(name: str) -> str:
    """A device's own name. Raises ValueError."""
    if not DEVICE.fullmatch(name):
        raise ValueError(
            f"(`{name}`) cannot be a device's name: letters, digits, `-`, `_`, `.` and `:`, no sign first or last"
        )
    return name


def check_annotation(key: str) -> str:
    """A key of annotations, `name` or `domain/name`. Raises ValueError."""
    domain, slash, name = key.rpartition("/")
    if slash and (not LABEL.fullmatch(domain.lower()) or len(domain) > VENDOR_MAX):
        raise ValueError(f"`{domain}` is not a domain")
    if not KEY.fullmatch(name) or len(name) > KEY_MAX:
        raise ValueError(
            f"`{name}` cannot be a key: letters, digits, `-`, `_` and `.`, no sign first or last; at most {KEY_MAX}"
        )
    return key


def split(name: str) -> tuple[str, str]:
    """Kind and device of a fully qualified name. Raises SpecError for what is none."""
    kind, equals, device = name.partition("=")
    try:
        if not equals:
            raise ValueError(f"(`{name}`) has no `=`")
        return check_kind(kind), check_device(device)
    except ValueError as error:
        raise SpecError(
            f"`{name}` is not a CDI device: {error}", hint="vendor/class=device, as `ctrmgr cdi list` prints them"
        ) from None


def is_qualified(name: str) -> bool:
    """Whether this can only be meant as the name of a CDI device: a path begins with a slash."""
    try:
        split(name)
    except SpecError:
        return False
    return True
