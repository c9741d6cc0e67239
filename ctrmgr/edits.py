# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device does to a container, in the words of the Container Device Interface. Hot; plain data.

Values that the specification lets out are its own zero: "" for text, 0 for numbers, None where zero means something.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from typing import Self, TypeVar

    T = TypeVar("T")

_set = object.__setattr__


class Value:
    """Fields that never change, and equality by them: a frozen dataclass without the import, which costs milliseconds."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def fields(self) -> dict[str, object]:
        """All fields by name, in the order of the constructor."""
        return {name: getattr(self, name) for name in type(self).__annotations__}

    def replace(self, **fields: object) -> Self:
        """The same with other values in these fields."""
        make: Callable[..., Self] = type(self)
        return make(**{**self.fields(), **fields})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).__annotations__)

    def __hash__(self) -> int:
        return hash((type(self), *self.fields().values()))

    def __repr__(self) -> str:
        values = self.fields()
        defaults = self.__class__.__init__.__defaults__ or ()
        named = list(values.items())
        required = len(named) - len(defaults)
        given = named[:required]
        given += [item for item, default in zip(named[required:], defaults, strict=True) if item[1] != default]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"


class DeviceNode(Value):
    """A node below the container's root. Without numbers it is what `host_path` (or `path`) is on the host."""

    __slots__ = ("file_mode", "gid", "host_path", "major", "minor", "path", "permissions", "type", "uid")
    path: str
    host_path: str
    type: str
    major: int
    minor: int
    file_mode: int | None
    permissions: str
    uid: int | None
    gid: int | None

    def __init__(
        self,
        path: str,
        host_path: str = "",
        type: str = "",
        major: int = 0,
        minor: int = 0,
        file_mode: int | None = None,
        permissions: str = "",
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        _set(self, "path", path)
        _set(self, "host_path", host_path)
        _set(self, "type", type)
        _set(self, "major", major)
        _set(self, "minor", minor)
        _set(self, "file_mode", file_mode)
        _set(self, "permissions", permissions)
        _set(self, "uid", uid)
        _set(self, "gid", gid)

    @property
    def source(self) -> str:
        """Where it is on the host."""
        return self.host_path or self.path

    @property
    def access(self) -> str:
        """What the container may do with it: letters of `rwm`, or ""."""
        return "" if self.permissions == "none" else self.permissions or "rwm"


class Mount(Value):
    """A file or directory of the host inside; with a `type` that is no bind mount, `host_path` is that file system's source."""

    __slots__ = ("container_path", "host_path", "options", "type")
    host_path: str
    container_path: str
    options: tuple[str, ...]
    type: str

    def __init__(self, host_path: str, container_path: str, options: Iterable[str] = (), type: str = "") -> None:
        _set(self, "host_path", host_path)
        _set(self, "container_path", container_path)
        _set(self, "options", tuple(options))
        _set(self, "type", type)

    @property
    def is_bind(self) -> bool:
        return self.type in ("", "none", "bind") or "bind" in self.options or "rbind" in self.options


class NetDevice(Value):
    """A network interface that moves from the host into the container."""

    __slots__ = ("host_interface_name", "name")
    host_interface_name: str
    name: str

    def __init__(self, host_interface_name: str, name: str) -> None:
        _set(self, "host_interface_name", host_interface_name)
        _set(self, "name", name)


class Hook(Value):
    """A program that a runtime is to run at a point of a container's life."""

    __slots__ = ("args", "env", "hook_name", "path", "timeout")
    hook_name: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    timeout: int | None

    def __init__(
        self, hook_name: str, path: str, args: Iterable[str] = (), env: Iterable[str] = (), timeout: int | None = None
    ) -> None:
        _set(self, "hook_name", hook_name)
        _set(self, "path", path)
        _set(self, "args", tuple(args))
        _set(self, "env", tuple(env))
        _set(self, "timeout", timeout)


class IntelRdt(Value):
    """Cache and memory bandwidth by resctrl."""

    __slots__ = (
        "clos_id", "enable_cmt", "enable_mbm", "enable_monitoring", "l3_cache_schema", "mem_bw_schema", "schemata",
    )  # fmt: skip
    clos_id: str
    l3_cache_schema: str
    mem_bw_schema: str
    schemata: tuple[str, ...]
    enable_monitoring: bool
    enable_cmt: bool
    enable_mbm: bool

    def __init__(
        self,
        clos_id: str = "",
        l3_cache_schema: str = "",
        mem_bw_schema: str = "",
        schemata: Iterable[str] = (),
        enable_monitoring: bool = False,
        enable_cmt: bool = False,
        enable_mbm: bool = False,
    ) -> None:
        _set(self, "clos_id", clos_id)
        _set(self, "l3_cache_schema", l3_cache_schema)
        _set(self, "mem_bw_schema", mem_bw_schema)
        _set(self, "schemata", tuple(schemata))
        _set(self, "enable_monitoring", enable_monitoring)
        _set(self, "enable_cmt", enable_cmt)
        _set(self, "enable_mbm", enable_mbm)


class ContainerEdits(Value):
    """Everything that one device, or several, do to a container."""

    __slots__ = ("additional_gids", "device_nodes", "env", "hooks", "intel_rdt", "mounts", "net_devices")
    env: tuple[str, ...]
    device_nodes: tuple[DeviceNode, ...]
    net_devices: tuple[NetDevice, ...]
    mounts: tuple[Mount, ...]
    hooks: tuple[Hook, ...]
    intel_rdt: IntelRdt | None
    additional_gids: tuple[int, ...]

    def __init__(
        self,
        env: Iterable[str] = (),
        device_nodes: Iterable[DeviceNode] = (),
        net_devices: Iterable[NetDevice] = (),
        mounts: Iterable[Mount] = (),
        hooks: Iterable[Hook] = (),
        intel_rdt: IntelRdt | None = None,
        additional_gids: Iterable[int] = (),
    ) -> None:
        _set(self, "env", tuple(env))
        _set(self, "device_nodes", tuple(device_nodes))
        _set(self, "net_devices", tuple(net_devices))
        _set(self, "mounts", tuple(mounts))
        _set(self, "hooks", tuple(hooks))
        _set(self, "intel_rdt", intel_rdt)
        _set(self, "additional_gids", tuple(additional_gids))

    def __bool__(self) -> bool:
        return any(value not in ((), None) for value in self.fields().values())

    def add(self, other: ContainerEdits) -> ContainerEdits:
        """These and then those, as they were written; of two Intel RDT settings the later counts."""
        return ContainerEdits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.net_devices + other.net_devices,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
            other.intel_rdt or self.intel_rdt,
            self.additional_gids + other.additional_gids,
        )

    def merged(self) -> ContainerEdits:
        """What is left when all are carried out in order: a later variable, node, mount or interface replaces one of the same name,
        path or host interface, a hook runs once, and group 0 is passed over. Mounts come in the order of their depth."""
        return ContainerEdits(
            last(self.env, variable),
            last(self.device_nodes, lambda node: node.path),
            last(self.net_devices, lambda device: device.host_interface_name),
            sorted(last(self.mounts, lambda mount: mount.container_path), key=depth),
            dict.fromkeys(self.hooks),
            self.intel_rdt,
            dict.fromkeys(gid for gid in self.additional_gids if gid),
        )


def variable(assignment: str) -> str:
    """The name in `NAME=value`."""
    return assignment.partition("=")[0]


def depth(mount: Mount) -> int:
    """How many directories lie above: what is mounted on another mount comes after it."""
    return len([part for part in mount.container_path.split("/") if part])


def last(values: Iterable[T], key: Callable[[T], Hashable]) -> Iterable[T]:
    """The last value of each key, in the place where that key was met first."""
    return {key(value): value for value in values}.values()
