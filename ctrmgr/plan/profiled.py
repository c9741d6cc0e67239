# SPDX-License-Identifier: GPL-3.0-or-later
"""The devices of an instance and of its profiles as they count, each with where it is from. Cold."""

from __future__ import annotations

from ctrmgr.plan.compile import find
from ctrmgr.spec import device as spec
from ctrmgr.spec import profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Keys = dict[str, str]


class Known:
    """A device of an instance: its keys as they were written, and the profile that it is from ("" for the instance's own)."""

    __slots__ = ("keys", "name", "profile")

    def __init__(self, name: str, keys: Keys, profile: str) -> None:
        self.name, self.keys, self.profile = name, keys, profile


def devices(profiles: Sequence[str], own: Mapping[str, Mapping[str, str]]) -> dict[str, Known]:
    """By name. Raises NotFoundError for a profile that is gone, SpecError for one that is wrong."""
    found: dict[str, Known] = {}
    for name in profiles:
        given = profile.load(find(name)).devices
        found.update({device: Known(device, dict(keys), name) for device, keys in given.items()})
    found.update({device: Known(device, dict(keys), "") for device, keys in own.items()})
    return {device: each for device, each in sorted(found.items()) if each.keys["type"] != "none"}


def check(device: str, keys: Mapping[str, str]) -> Keys:
    """The keys in canonical form. Raises SpecError."""
    return spec.check(profile.check_device_name(device), keys)


def written(device: str, keys: Mapping[str, str]) -> Keys:
    """The keys as they were written, once they are checked. Raises SpecError."""
    return spec.written(profile.check_device_name(device), keys)
