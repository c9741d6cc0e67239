# SPDX-License-Identifier: GPL-3.0-or-later
"""What drivers have in common when a device of theirs goes to an LXD or Incus server. Cold: a driver imports it when it is asked.

A driver says in `lxd_ways()` what becomes of each of its keys there, one `Way` each, for the program and for the reference; where a
key is `mapped`, its `lxd_device(name, values, there)` does it.
"""

from __future__ import annotations

from ctrmgr.errors import CtrmgrError, NotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any

    from ctrmgr.devices.driver import Resolved
    from ctrmgr.edits import ContainerEdits, DeviceNode, Mount

    Ways = Mapping[str, "Way"]
    Judge = Callable[[str, "There"], str]

TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


class Way:
    """How a key gets to a server: `native` (as it is), `mapped` (other keys say it), `left out` (it is so there anyway) or `refused`.

    `why` is the sentence for people. `extension` is the API extension that a server must have, `until` the one with which the
    key went away. `off` are values that ask for nothing. `to` is the key's name there. `judge` is why a value is refused, or "".
    """

    __slots__ = ("extension", "how", "judge", "map", "off", "to", "until", "why")

    def __init__(
        self,
        how: str,
        why: str = "",
        *,
        extension: str = "",
        until: str = "",
        off: Collection[str] = (),
        to: str = "",
        judge: Judge | None = None,
        map: Callable[[str], dict[str, str]] | None = None,
    ) -> None:
        self.how, self.why, self.extension, self.until = how, why, extension, until
        self.off, self.to, self.judge, self.map = off, to, judge, map

    def sentence(self) -> str:
        """For the reference."""
        return f"{self.how}: {self.why}" if self.why else self.how

    def reason(self, value: str, there: There) -> str:
        """Why a value does not get there; "" when it does."""
        if value == "" or value.lower() in self.off:
            return ""
        if self.how == "refused":
            return self.why
        if self.extension and not there.has(self.extension):
            return lacks(self.extension)
        if self.until and there.has(self.until):
            return f"since API extension `{self.until}` it is gone: {self.why}"
        return self.judge(value, there) if self.judge else ""


def lacks(extension: str) -> str:
    return f"it has no API extension `{extension}`"


NATIVE = Way("native")


def native(extension: str = "", why: str = "", **more: Any) -> Way:
    return Way("native", why, extension=extension, **more)


def mapped(why: str, **more: Any) -> Way:
    return Way("mapped", why, **more)


def left_out(why: str, **more: Any) -> Way:
    return Way("left out", why, **more)


def refused(why: str, *off: str) -> Way:
    return Way("refused", why, off=off)


def _lease(value: str, there: There) -> str:
    return "" if value == "shared" else "a server gives a device to as many as ask for it"


LEASE = left_out("`shared` is what servers do; `exclusive` and `shared:N` are refused", judge=_lease)
FAILOVER = refused("a server puts nothing in the place of what disappears", "none")
INHERIT = refused("a server does not look at the host's nodes: say `uid`, `gid` and `mode`", *FALSE)
REQUIRED = mapped(
    "servers always require it; `false`: left away where the server tells that it has none, refused where it does not tell"
)
PARTITION = refused("a server divides no device: give it a slice that is there (`gputype: mig`)")
OWNERS: Ways = {
    "uid": native(why="a name is looked up in the image's /etc/passwd"),
    "gid": native(why="a name is looked up in the image's /etc/group"),
    "user": mapped("`uid`", to="uid"),
    "group": mapped("`gid`", to="gid"),
    "mode": NATIVE,
}
NODE: Ways = {**OWNERS, "ownership.inherit": INHERIT, "required": NATIVE, "lease": LEASE}
"""Of what becomes one of the server's own nodes."""


class There:
    """A server, as far as drivers ask. `root` is where the files of its machine are, "" when that is another machine; `resources`
    is what the server tells of its hardware, None when that says nothing about where the instance will be. `placing`: a member of
    a cluster is still to be chosen, by what devices ask for."""

    placing = False

    def __init__(
        self,
        kind: str = "lxd",
        extensions: Iterable[str] = (),
        *,
        resources: Mapping[str, Any] | None = None,
        root: str = "",
        placing: bool = False,
    ) -> None:
        self._kind, self._extensions, self._resources, self._root = kind, frozenset(extensions), resources, root
        self.placing = placing
        self.nodes: frozenset[str] = frozenset()
        """What devices that come at the same time bring."""

    @property
    def kind(self) -> str:
        """`lxd` or `incus`."""
        return self._kind

    def has(self, extension: str) -> bool:
        return extension in self._extensions

    @property
    def resources(self) -> Mapping[str, Any] | None:
        return self._resources

    @property
    def root(self) -> str:
        return self._root


class Made:
    """What goes to a server. `names` are owners that the image has to be asked about: device, key (`uid`, `gid`) and name;
    `problems` what cannot go, and why; `absent` what cannot start before the machine has it; `notes` what is worth to be told."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.devices: dict[str, dict[str, str]] = {}
        self.names: list[tuple[str, str, str]] = []
        self.problems: list[tuple[str, str]] = []
        self.absent: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.parts: dict[str, list[str]] = {}
        """Device → all that it has become, where that is more than one of the server's devices."""

    def add(self, other: Made) -> None:
        self.config |= other.config
        self.devices |= other.devices
        self.names += other.names
        self.problems += other.problems
        self.absent += other.absent
        self.notes += other.notes
        self.parts |= other.parts

    def own(self, device: str, keys: Mapping[str, str]) -> dict[str, str]:
        """The keys of a server's device, without owners that are names: those are looked up later."""
        made = {}
        for key, value in keys.items():
            if key in ("uid", "gid") and not value.isdecimal():
                self.names.append((device, key, value))
            else:
                made[key] = value
        return made


def plain(kind: str, name: str, values: Mapping[str, str], there: There, ways: Ways) -> Made:
    """Every key by its way, into one device of the server's. What is `mapped` to no other name is left to the driver.

    A key that is in no table is the server's own, which judges it.
    """
    made, keys = Made(), {"type": kind}
    for key, value in values.items():
        way = ways.get(key, NATIVE)
        if key == "type" or (value and value.lower() in way.off):
            continue
        if reason := way.reason(value, there):
            made.problems.append((f"{name}.{key}", reason))
        elif way.how == "native" or way.to:
            keys[way.to or key] = _hexa(value) if key in ("vendorid", "productid") else value
    made.devices[name] = made.own(name, keys)
    return made


def _hexa(value: str) -> str:
    """As servers spell them; what is none they judge."""
    from ctrmgr.devices import fields

    try:
        return fields.hexa(value)
    except ValueError:
        return value


def refuse(name: str, why: str) -> Made:
    """A device that cannot be there at all."""
    made = Made()
    made.problems.append((name, why))
    return made


def spared(name: str, why: str) -> Made:
    """A device that is not required, and not there."""
    made = Made()
    made.notes.append(f"device `{name}` was left out: {why}")
    return made


def ways_of(kind: str) -> Ways:
    """What becomes of the keys of a device type. Raises KeyError for one that no driver has."""
    from ctrmgr.devices import driver

    return driver.load(kind).lxd_ways()


def several(made: Made, name: str, found: Iterable[Mapping[str, str]]) -> None:
    """A device that becomes several of the server's: NAME, NAME-2, NAME-3, …"""
    for number, keys in enumerate(found, 1):
        part = name if number == 1 else f"{name}-{number}"
        made.devices[part] = made.own(part, keys)
    if len(made.devices) > 1 or made.config:
        made.parts[name] = [*made.devices, *made.config]


def is_false(value: str) -> bool:
    return value.lower() in FALSE


# What a device is made of on this machine, when the server is on it, too


ELSEWHERE = "what it is made of only the server's machine knows, and servers do not tell"


def of_this_machine(kind: str, name: str, values: Mapping[str, str], there: There) -> Made:
    """A device as the driver finds it here, for a server of this machine: nodes, files, variables and links, one by one."""
    from ctrmgr.devices import cdi_hooks, driver

    module = driver.load(kind)
    own = {key: value for key, value in values.items() if key != "type"}
    if problems := plain(kind, name, values, there, ways_of(kind)).problems:
        made = Made()
        made.problems = [(name, f"{key.removeprefix(f'{name}.')}: {why}") for key, why in problems]
        return made
    try:
        canonical = {key: module.FIELDS[key].parse(value) for key, value in own.items() if key in module.FIELDS}
        unknown = next((key for key in own if key not in module.FIELDS), "")
        if unknown:
            raise ValueError(f"`{unknown}` is no key of a device of type `{kind}`")
        resolved: Resolved = module.resolve(name, canonical, there.root)  # type: ignore[attr-defined]
        hooks = [*resolved.hooks, *(row for hook in resolved.edits.hooks for row in cdi_hooks.rows(hook))]
    except (ValueError, CtrmgrError) as error:
        if is_false(values.get("required", "true")) and isinstance(error, NotFoundError):
            return spared(name, error.message)
        return refuse(name, str(getattr(error, "message", error)))
    return of_edits(name, resolved.edits, canonical, there, optional=resolved.optional, hooks=hooks)


def of_edits(
    name: str,
    edits: ContainerEdits,
    values: Mapping[str, str],
    there: There,
    *,
    optional: Collection[str] = (),
    hooks: Iterable[Iterable[str]] = (),
) -> Made:
    """CDI's edits as devices and keys of a server's: NAME, NAME-2, NAME-3, …"""
    made = Made()
    found: list[dict[str, str]] = []
    for node in edits.device_nodes:
        reason = "" if node.access == "rwm" else f"`{node.path}` with access `{node.access}` cannot be said there"
        keys = _node(node, values, there.root) if not reason else {}
        if reason or not keys:
            made.problems.append((name, reason or f"there is no `{node.source}` on its machine"))
        elif is_false(values.get("required", "true")) or node.path in optional:
            found.append({**keys, "required": "false"})
        else:
            found.append(keys)
    for mount in edits.mounts:
        keys, reason = _mount(mount, there.root)
        if reason:
            made.problems.append((name, f"`{mount.container_path}`: {reason}"))
        else:
            found.append(keys)
    for hook in hooks:
        keys, reason = _hook(list(hook), edits.mounts)
        if reason:
            made.problems.append((name, reason))
        elif keys:
            found.append(keys)
    found += [
        {"type": "nic", "nictype": "physical", "parent": link.host_interface_name, "name": link.name}
        for link in edits.net_devices
    ]
    if any(edits.additional_gids):
        made.problems.append((name, "its specification has `additionalGids`, and a server has no groups of a device"))
    if edits.intel_rdt:
        made.problems.append((name, "its specification has `intelRdt`, and a server has no such key"))
    made.config = {f"environment.{key}": value for key, _, value in (word.partition("=") for word in edits.env)}
    if not found and not made.problems:
        made.problems.append((name, "it has nothing that an instance there can be given"))
    several(made, name, found)
    return made


def _node(node: DeviceNode, values: Mapping[str, str], root: str) -> dict[str, str]:
    """The server's device for a node; nothing when the machine has no such node."""
    import os
    import stat

    try:
        mode = os.stat(root.rstrip("/") + node.source).st_mode
    except OSError:
        mode = {"b": stat.S_IFBLK, "c": stat.S_IFCHR, "u": stat.S_IFCHR}.get(node.type, 0) if root != "/" else 0
    if not stat.S_ISBLK(mode) and not stat.S_ISCHR(mode):
        return {}
    keys = {"type": "unix-block" if stat.S_ISBLK(mode) else "unix-char", "source": node.source}
    if node.path != node.source:
        keys["path"] = node.path
    for key, other, own in (("uid", "user", node.uid), ("gid", "group", node.gid)):
        if owner := values.get(key) or values.get(other) or ("" if own is None else str(own)):
            keys[key] = owner
    if given := values.get("mode") or ("" if node.file_mode is None else f"{node.file_mode & 0o777:04o}"):
        keys["mode"] = given
    return keys


PLAIN = frozenset(("bind", "rbind", "ro", "rw", "nosuid", "nodev", "private", "rprivate", "relatime"))
"""Options of a mount that a server's `disk` keeps or that take nothing away: in a user namespace nobody can use what they forbid."""


def _mount(mount: Mount, root: str) -> tuple[dict[str, str], str]:
    """The server's device for a mount, or why there is none."""
    import os

    if not mount.is_bind:
        return {}, f"a new file system (`{mount.type}`) is not a device of a server's"
    if other := sorted(set(mount.options) - PLAIN):
        return {}, f"a server has no mount option `{other[0]}`"
    if not os.path.exists(root.rstrip("/") + mount.host_path):
        return {}, f"there is no `{mount.host_path}` on its machine"
    keys = {"type": "disk", "source": mount.host_path, "path": mount.container_path}
    if "rw" not in mount.options:
        keys["readonly"] = "true"
    return keys, ""


def _hook(hook: list[str], mounts: Iterable[Mount]) -> tuple[dict[str, str], str]:
    """A link to a file that is mounted is that file mounted there, too. The rest nobody does in a server's instance."""
    import posixpath

    kind, *words = hook
    if kind == "symlink":
        target, link = words
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        source = next((mount.host_path for mount in mounts if mount.container_path == goal), "")
        if source:
            return {"type": "disk", "source": source, "path": link, "readonly": "true"}, ""
        return {}, f"its specification makes a link `{link}` to `{target}`, which is no file of its own"
    if kind == "ldcache":
        folders = tuple(folder.rstrip("/") + "/" for folder in words)
        if not any(mount.container_path.startswith(folders) for mount in mounts):
            return {}, ""  # nothing new is in these folders: without it all is as it was
        return {}, "the linker of an instance there is not told of its libraries (`update-ldcache`)"
    return {}, f"its specification wants `{' '.join(hook)}` to be done inside, and a server does not"
