# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver is: a module with `FIELDS` and `rows`, found by the device's `type`. Hot."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    class Driver(Protocol):
        """A module of this package."""

        FIELDS: dict[str, Field]

        def rows(self, name: str, values: Mapping[str, str]) -> list[list[str]]: ...


class Field:
    """One key of a device. `parse` takes the text and returns its canonical form, or raises ValueError.

    `refused` is the reason why a value (other than the default) is known but not done.
    """

    __slots__ = ("default", "description", "parse", "refused", "required")

    def __init__(
        self,
        parse: Callable[[str], str],
        description: str,
        *,
        default: str = "",
        required: bool = False,
        refused: str = "",
    ) -> None:
        self.parse, self.description, self.default = parse, description, default
        self.required, self.refused = required, refused


DRIVERS = {
    "disk": "disk",
    "nic": "nic",
    "none": "none",
    "unix-block": "unix_block",
    "unix-char": "unix_char",
}
"""Device type → module of this package."""

NOT_DONE = {
    "gpu": "graphics cards are not done yet: attach their nodes as unix-char",
    "infiniband": "InfiniBand is not done yet",
    "pci": "a whole PCI device is for virtual machines",
    "proxy": "there is no proxy yet: use the instance's address",
    "tpm": "an emulated TPM is for virtual machines",
    "unix-hotplug": "hot-plug rules are not done yet: attach the node as unix-char or unix-block",
    "usb": "USB rules are not done yet: attach the node under /dev/bus/usb as unix-char",
}
"""Device types that LXD and Incus document, and why a launch with one is refused."""


def load(kind: str) -> Driver:
    """The driver of a device type. Raises KeyError."""
    module = __import__(f"ctrmgr.devices.{DRIVERS[kind]}", fromlist=("rows",))
    driver: Driver = module
    return driver
