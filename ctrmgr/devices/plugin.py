# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device plugin is: everything that whoever writes one imports, and all that ctrmgr asks of it.

A plugin teaches ctrmgr a device type. It is one file `TYPE.py` in `/etc/ctrmgr/devices.d` with a class `Plugin`, or a package
with an entry point `TYPE = "module:Class"` in the group `ctrmgr.devices.v1`:

    from ctrmgr.devices.plugin import Found, Host
    from ctrmgr.devices.plugin import Plugin as Base

    class Plugin(Base):
        type = "acme-npu"

        def identify(self, host: Host) -> list[Found]:
            return [
                Found(name, nodes=[f"/dev/{name}"], functions={"npu.infer": {"memory": 16 << 30}})
                for name in host.names("/dev") if name.startswith("acme")
            ]

That is a whole plugin. The life of a device in an instance is

    identify → allocate → prepare → (the instance runs) → release

and that of a partition (`partition: cores=2,memory=8GiB`), of a device with `Found.partitions`,

    identify → partitions → divide → prepare → (the instance runs) → release

What `allocate` chose is on disk before `prepare` begins, and `release` is called for all that is on disk when the instance
stops (`persistent = False`) or is deleted (`persistent = True`), by the next command if this one was killed. Each call is made
in a new process, on a new object: nothing in memory lasts from one to the next. What must last goes into `Allocation.state`.
A call that raises, returns something else, writes to the wrong place or takes too long fails alone, with the plugin's name.

The numbers of all versions of this interface that there will be are in `API`. Within version 1, things are added and none changes.
"""

from __future__ import annotations

from ctrmgr.devices.driver import Field
from ctrmgr.edits import ContainerEdits, DeviceNode, Hook, Mount, Value
from ctrmgr.host import sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = (
    "API", "Allocation", "ContainerEdits", "DeviceEvent", "DeviceNode", "Field", "Found", "Holder", "Hook", "Host", "Mount",
    "Partition", "Plugin",
)  # fmt: skip

API = 1
"""The version of this interface. A plugin for another one is refused by name."""

_set = object.__setattr__


class Host:
    """The machine, for `identify`: below `root`, so that a plugin can be tested with a recorded tree."""

    __slots__ = ("root",)

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, path: str) -> str:
        """Where a path of the machine is."""
        return self.root.rstrip("/") + path

    def text(self, path: str) -> str:
        """A small file, such as an attribute of sysfs; "" when it is not there or cannot be read."""
        return sysfs.text(self.path(path))

    def number(self, path: str, default: int = -1) -> int:
        """The same as a decimal number."""
        return sysfs.number(self.path(path), default)

    def names(self, path: str) -> list[str]:
        """What is in a directory, `acme2` before `acme10`; nothing when it is not there."""
        return sysfs.names(self.path(path))


class Found(Value):
    """A device that the plugin found.

    `id` names it for as long as it is plugged in where it is, whatever its nodes are called after the next boot: a serial
    number, a PCI address. `nodes` are its nodes on the host. `functions` says what it can do, as people ask for it: a name such as
    `crypto.sha256` or `gpu.compute`, each with numbers and words (`{"memory": 17179869184, "precision": "fp16"}`). `shared` is how
    many devices of instances may be this one at a time; 0 is any number. `pools` are amounts that allocations take from
    (`{"cores": 16, "memory": …}`). `partitions` is how many there may be of it at a time, such as the nodes that its driver has numbers for: 0 is
    none, then it is not divided. `profiles` are the sizes that it can be divided into, by name, each with what it takes of the pools; without
    any a partition has what is asked for. `identity` are files of sysfs with the text that says that this is still the same device: when one
    differs, an instance that has it gets it anew with its next start.
    """

    __slots__ = (
        "functions", "id", "identity", "model", "nodes", "numa", "partitions", "pools", "profiles", "shared", "vendor",
    )  # fmt: skip
    id: str
    model: str
    vendor: str
    nodes: tuple[str, ...]
    functions: Mapping[str, Mapping[str, int | str]]
    shared: int
    pools: Mapping[str, int]
    identity: tuple[tuple[str, str], ...]
    numa: int
    partitions: int
    profiles: Mapping[str, Mapping[str, int]]

    def __init__(
        self,
        id: str,
        *,
        model: str = "",
        vendor: str = "",
        nodes: Iterable[str] = (),
        functions: Mapping[str, Mapping[str, int | str]] | None = None,
        shared: int = 1,
        pools: Mapping[str, int] | None = None,
        identity: Iterable[tuple[str, str]] = (),
        numa: int = -1,
        partitions: int = 0,
        profiles: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        _set(self, "id", id)
        _set(self, "model", model)
        _set(self, "vendor", vendor)
        _set(self, "nodes", tuple(nodes))
        _set(self, "functions", {name: dict(given) for name, given in (functions or {}).items()})
        _set(self, "shared", shared)
        _set(self, "pools", dict(pools or {}))
        _set(self, "identity", tuple((file, text) for file, text in identity))
        _set(self, "numa", numa)
        _set(self, "partitions", partitions)
        _set(self, "profiles", {name: dict(takes) for name, takes in (profiles or {}).items()})


class Partition(Value):
    """A partition that there is, whoever made it: of which device, and what it takes of that one's pools.

    `id` is the `id` of the allocation that it was made for, or what `divide` has put into `state["partition"]` for it; one with another
    id is somebody else's.
    """

    __slots__ = ("found", "id", "state", "takes")
    found: str
    id: str
    takes: Mapping[str, int]
    state: Mapping[str, str]

    def __init__(
        self, found: str, id: str, takes: Mapping[str, int] | None = None, state: Mapping[str, str] | None = None
    ) -> None:
        _set(self, "found", found)
        _set(self, "id", id)
        _set(self, "takes", dict(takes or {}))
        _set(self, "state", dict(state or {}))


class Holder(Value):
    """A device of an instance: which of the found devices it is, and what it takes from that one's pools."""

    __slots__ = ("device", "found", "instance", "takes")
    instance: str
    device: str
    found: str
    takes: Mapping[str, int]

    def __init__(self, instance: str, device: str, found: str, takes: Mapping[str, int] | None = None) -> None:
        _set(self, "instance", instance)
        _set(self, "device", device)
        _set(self, "found", found)
        _set(self, "takes", dict(takes or {}))


class Allocation(Value):
    """What `allocate` returns, and what `prepare` and `release` are given.

    `state` is text by name that the plugin wants to have again. The other two are ctrmgr's: `id` is different for each
    allocation that there ever is, and `values` are the keys that were asked for.
    """

    __slots__ = ("found", "id", "state", "takes", "values")
    found: Found
    takes: Mapping[str, int]
    state: Mapping[str, str]
    id: str
    values: Mapping[str, str]

    def __init__(
        self,
        found: Found,
        *,
        takes: Mapping[str, int] | None = None,
        state: Mapping[str, str] | None = None,
        id: str = "",
        values: Mapping[str, str] | None = None,
    ) -> None:
        _set(self, "found", found)
        _set(self, "takes", dict(takes or {}))
        _set(self, "state", dict(state or {}))
        _set(self, "id", id)
        _set(self, "values", dict(values or {}))


class DeviceEvent(Value):
    """Something that happened to the device with the id `found`.

    `kind` is `lost`, `reset`, `ecc`, for which profiles have policies, or another word of the plugin's own. As long as an event is among
    those that `events` returns it is the same one and told once; `mark` tells one from the next of its kind: a counter, a time.
    """

    __slots__ = ("detail", "found", "kind", "mark")
    found: str
    kind: str
    detail: str
    mark: str

    def __init__(self, found: str, kind: str, detail: str = "", mark: str = "") -> None:
        _set(self, "found", found)
        _set(self, "kind", kind)
        _set(self, "detail", detail)
        _set(self, "mark", mark)


class Plugin:
    """A device type. Only `type` and `identify` must be there; what the others do by themselves is said with each."""

    API = API
    """What it was written for."""

    type = ""
    """The device type, as in `type: acme-npu`: the maker and the thing. The file, or the entry point, is called the same."""

    description = ""
    """A line for people."""

    FIELDS: Mapping[str, Field] = {}
    """The keys of such a device beyond those that all have (`id`, `uid`, `gid`, `mode`, `required`, `function`, …).

    `Field(parse, description)`: `parse` takes the text and returns its canonical form, or raises ValueError.
    """

    persistent = False
    """Whether an instance keeps what it was given until it is deleted; otherwise only until it stops."""

    seconds = 10.0
    """How long one call may take. `CTRMGR_PLUGIN_SECONDS` is stronger."""

    def identify(self, host: Host) -> Iterable[Found]:
        """The devices of this machine. Changes nothing."""
        raise NotImplementedError("`identify` is missing")

    def allocate(self, values: Mapping[str, str], found: Sequence[Found], holders: Sequence[Holder]) -> Allocation:
        """Choose. Changes nothing: what is chosen here may still be thrown away.

        `values` are the keys of the device, `found` are the devices that fit them and are not held by as many as they may be, never
        none; `holders` are all that hold one of this type. Raise ConflictError when none is right. By itself: the one that is held
        least, and of those the first id.
        """
        return Allocation(min(found, key=lambda each: (held(each, holders), each.id)))

    def partitions(self, found: Sequence[Found]) -> Iterable[Partition] | None:
        """The partitions that these devices have now, whoever made them: what other users and tools have taken counts, too. Changes
        nothing. By itself: the hardware does not say (None), and only what ctrmgr has made for this user is known.
        """
        return None

    def divide(self, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]) -> Allocation:
        """Decide on a partition of a device. Changes nothing; `prepare` makes it and `release` ends it.

        `takes` is at least what was asked for: that of `profile` where the device has profiles. What the allocation takes may be more,
        rounded to what the hardware can do. `taken` are the partitions that there are or that are promised. What is
        chosen here (a slot, a number) goes into `state`, from where `release` knows it whatever was killed; `state["partition"]` is its
        id when the hardware has ids of its own. Raise ConflictError when there is no room for it. By itself: what is asked for.
        """
        return Allocation(found, takes=takes)

    def prepare(self, allocation: Allocation) -> ContainerEdits:
        """Make it usable, and say what the instance gets: nodes, files, variables. By itself: its nodes, as they are.

        When it raises, or is killed half-way, `release` is called.
        """
        return ContainerEdits(device_nodes=[DeviceNode(path) for path in allocation.found.nodes])

    def release(self, allocation: Allocation) -> None:
        """Undo `prepare`, or as much of it as was done. By itself: nothing.

        Once it has returned it is not called again for this allocation. It is when it raised, or when the machine or the
        command died in it: what is undone already is no error.
        """

    def events(self, found: Sequence[Found]) -> Iterable[DeviceEvent]:
        """What has happened to these devices, which instances have, and is not over. By itself: nothing that can be known.

        That `identify` does not find one any more need not be told: it is `lost`.
        """
        return ()


def held(found: Found, holders: Iterable[Holder]) -> int:
    """How many hold a device."""
    return sum(holder.found == found.id for holder in holders)
