# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver is: a module with `FIELDS`, and `rows` or `resolve`, found by the device's `type`. Hot.

`rows(name, values)` is pure: it writes the plan's rows from the keys alone; `locate(values, root)`, if the module has it, gives it
the keys as they are today. `resolve(name, values, root)` looks at the machine (through the readers of `host`, which change nothing)
and says what the device is made of there. With `live = True` in it a module's devices can come and go while an instance runs;
`remembered(values, root)` are keys that are noted down then. `lxd_device(name, values, there)` is what it is on an LXD or Incus server,
and `lxd_ways()` what becomes of each of its keys there; both are cold.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Protocol

    from ctrmgr.devices import lxd
    from ctrmgr.edits import ContainerEdits

    class Driver(Protocol):
        """A module of this package."""

        FIELDS: dict[str, Field]

        def lxd_ways(self) -> lxd.Ways:
            """What becomes of each key on an LXD or Incus server."""

        def lxd_device(self, name: str, values: Mapping[str, str], there: lxd.There) -> lxd.Made:
            """The device as such a server has it."""


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


class Resolved:
    """What a device is made of on this machine.

    `identity` are files of the kernel's with the text that they must still have for this to be true; `lease` are names of
    the hardware, the same after the next boot; `optional` are the paths of nodes that an instance may start without; `hooks` is
    what is done inside: `symlink TARGET LINK`, `chmod MODE PATH` or `ldcache DIR…`, beside the hooks of the edits. `rule` says which nodes come and go while the
    instance runs: `usb` or `unix-hotplug`, then KEY=VALUE for everything that must be true. `limits` are a GPU's own. `rdma` are RDMA devices that move in where
    the host keeps them apart. `guids` are a virtual function's address, and what it gets as its node's and port's GUID.
    """

    __slots__ = ("edits", "guids", "hooks", "identity", "lease", "limits", "optional", "rdma", "rule")

    def __init__(
        self,
        edits: ContainerEdits,
        *,
        identity: Iterable[tuple[str, str]] = (),
        lease: Iterable[str] = (),
        optional: Iterable[str] = (),
        hooks: Iterable[Sequence[str]] = (),
        rule: Sequence[str] = (),
        rdma: Iterable[str] = (),
        guids: Sequence[str] = (),
    ) -> None:
        self.edits, self.identity, self.lease = edits, list(dict.fromkeys(identity)), list(dict.fromkeys(lease))
        self.optional, self.hooks = frozenset(optional), [list(hook) for hook in hooks]
        self.rule, self.rdma, self.guids = list(rule), list(rdma), list(guids)
        self.limits: dict[str, str] = {}


DRIVERS = {
    "accel": "accel",
    "any": "any",
    "cdi": "cdi",
    "disk": "disk",
    "gpu": "gpu",
    "gpudirect": "gpudirect",
    "infiniband": "infiniband",
    "nic": "nic",
    "none": "none",
    "tpm": "tpm",
    "unix-block": "unix_block",
    "unix-char": "unix_char",
    "unix-hotplug": "unix_hotplug",
    "usb": "usb",
}
"""Device type → module of this package."""

NOT_DONE = {
    "pci": "a whole PCI device is for virtual machines",
    "proxy": "there is no proxy yet: use the instance's address",
}
"""Device types that LXD and Incus document, and why a launch with one is refused."""


NOTHING: dict[str, str] = {}
PLUGINS: dict[str, Driver] = {}
"""Device types of plugins that this command has met."""


def load(kind: str) -> Driver:
    """The driver of a device type. Raises KeyError."""
    if kind in PLUGINS:
        return PLUGINS[kind]
    module = __import__(f"ctrmgr.devices.{DRIVERS[kind]}", fromlist=("FIELDS",))
    driver: Driver = module
    return driver


def is_live(kind: str, values: Mapping[str, str] = NOTHING) -> bool:
    """Whether devices of a type, or one with these keys, can come and go while an instance runs."""
    if kind not in DRIVERS and kind not in PLUGINS:
        return False
    live = getattr(load(kind), "live", False)
    return bool(live(values) if callable(live) else live)
