# SPDX-License-Identifier: GPL-3.0-or-later
"""From a device's keys to the flat rows of the run plan, for launch, attach and start alike. Hot."""

from __future__ import annotations

import os
import stat

from ctrmgr.devices import driver, fields
from ctrmgr.errors import CtrmgrError, NotFoundError, SpecError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctrmgr.devices.driver import Resolved
    from ctrmgr.edits import DeviceNode, Mount

    Row = list[str]

PARTS = ("device", "bind", "filesystem", "device-env", "device-group", "hook", "hotplug", "netdev", "rdma", "resctrl")
"""What a device is made of inside."""
WORDS = frozenset(
    (*PARTS, "identity", "lease", "shares", "device-limit", "gpu-limit", "request", "host-hook", "vf-guid", "left-out")
)
"""All rows whose second field is the name of a device."""
GROUPS = frozenset(("render", "video", "rdma", "disk", "plugdev", "kvm", "input"))
"""Groups of the host that `ownership.inherit` looks up in the image: they mean the same everywhere."""
ALWAYS = "/sys/kernel/uevent_seqnum"
"""Counts every device that came or went: the identity of what is resolved again when anything did."""
KERNEL = ("/proc", "/sys", "/dev")
OPTIONS = frozenset(("bind", "rbind", "ro", "rw", "nosuid", "nodev", "noexec", "exec", "private", "rprivate", "slave",
                     "rslave", "relatime", "noatime"))  # fmt: skip


def rows(name: str, values: Mapping[str, str], root: str = "/") -> list[Row]:
    """All rows of a device whose keys are in canonical form. Raises SpecError for keys that do not fit together, NotFoundError,
    HostError and UnsupportedError for what this machine has not; of these only a device that is not required is spared."""
    module = driver.load(values["type"])
    own = {key: value for key, value in values.items() if key != "type"}
    if "required" in module.FIELDS:
        own.setdefault("required", module.FIELDS["required"].default)
    try:
        if own.get("partition") and hasattr(module, "resolve"):
            return _partition(name, values["type"], own)
        resolve = getattr(module, "resolve", None)
        if resolve is not None:
            return rows_of(name, values["type"], resolve(name, own, root), own, root)
        locate = getattr(module, "locate", None)
        identity: list[tuple[str, str]] = []
        if locate is not None:
            own, identity = locate(own, root)
        found = _inherited(name, module.rows(name, own), own, root)  # type: ignore[attr-defined]
        if own.get("failover") == "same-model":
            from ctrmgr.devices import spares

            found += spares.link_rules(name, found, root)
        return found + [["identity", name, file, text] for file, text in identity]
    except ValueError as error:
        raise SpecError(f"device `{name}`: {error}") from None
    except NotFoundError as error:
        if own.get("required") != "false":
            raise _named(name, error) from None
        return [["identity", name, ALWAYS, ""]]  # looked for again at every start
    except CtrmgrError as error:
        raise _named(name, error) from None


def _partition(name: str, kind: str, values: Mapping[str, str]) -> list[Row]:
    """A part of a device is made when the instance starts: until then it is asked for."""
    from ctrmgr.devices import request

    for key in ("count", "gputype", "mig.uuid", "mig.gi", "mig.ci", "memory", "memory.reserve"):
        if values.get(key):
            raise ValueError(f"`partition` makes a part of one device: take `{key}` out")
    fields.one_owner(values)
    return request.rows(name, kind, "run", values)


def moved(name: str, plan: Sequence[Sequence[str]]) -> list[Row]:
    """The rows that a plan has of a device that moves into the instance, to be looked for again at the next start; none of any
    other device."""
    own = [list(row) for row in plan if row[0] in WORDS and row[1] == name]
    if not any(row[0] in ("netdev", "rdma") for row in own):
        return []
    again = ["identity", name, ALWAYS, ""]
    return own if again in own else [*own, again]


def live(name: str, values: Mapping[str, str], root: str = "/") -> list[Row]:
    """`rows` for a running instance. Raises UnsupportedError for what it is started with."""
    found = rows(name, values, root)
    if any(row[0] == "net" for row in found):
        raise UnsupportedError(
            f"device `{name}`: a nic of this kind cannot be attached live", hint="put it in a profile"
        )
    if any(row[0] == "rdma" for row in found):
        found.append(["identity", name, ALWAYS, ""])  # the next start plans anew: such an instance may pin memory
    return found


def remembered(values: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """The keys of a device with what is noted down when it is given by a name of today. Raises KeyError for an unknown type."""
    note = getattr(driver.load(values["type"]), "remembered", None)
    return {**values, **(note(values, root) if note is not None else {})}


def _named(name: str, error: CtrmgrError) -> CtrmgrError:
    prefix = f"device `{name}`: "
    return error if error.message.startswith(prefix) else type(error)(prefix + error.message, hint=error.hint)


def rows_of(name: str, kind: str, resolved: Resolved, values: Mapping[str, str], root: str = "/") -> list[Row]:
    """The rows of what a driver has resolved. Raises ValueError, NotFoundError, and UnsupportedError for edits that cannot be done."""
    edits = resolved.edits
    fields.one_owner(values)
    found = [_device(name, node, resolved, values, root) for node in edits.device_nodes]
    found += [_bind(name, mount, values) for mount in edits.mounts]
    for assignment in edits.env:
        key, _, value = assignment.partition("=")
        found.append(["device-env", name, key, value])
    found += [["device-group", name, str(gid)] for gid in edits.additional_gids if gid]
    if edits.intel_rdt:
        from ctrmgr.devices import resctrl

        found.append(resctrl.row(name, edits.intel_rdt, root))
    need = "optional" if values.get("required") == "false" else "required"
    for link in edits.net_devices:
        from ctrmgr.devices import links

        words = link.host_interface_name, link.name, values.get("hwaddr", ""), values.get("mtu", "0")
        found += links.netdev(name, *words, need)
    found += [["rdma", name, device] for device in resolved.rdma]
    found += [["vf-guid", name, *resolved.guids]] if resolved.guids else []
    found += [["hook", name, *hook] for hook in resolved.hooks]
    if edits.hooks:
        from ctrmgr.devices import cdi_hooks

        for hook in (row for each in edits.hooks for row in cdi_hooks.rows(each)):
            found.append(["host-hook", name, *hook[1:]] if hook[0] == "host" else ["hook", name, *hook])
    if values.get("failover") == "same-model":
        from ctrmgr.devices import spares

        found += [[*rule, *_leased(values)] for rule in spares.rules(name, found, root, resolved.lease)]
    elif resolved.rule:
        owner = next((row[5:8] for row in found if row[0] == "device"), None) or _owner(values)
        found.append(["hotplug", name, *owner, "rwm", *resolved.rule, *_leased(values)])
    if not found:
        raise NotFoundError(f"this {kind} has nothing that an instance can be given")
    found += [["identity", name, file, text] for file, text in resolved.identity]
    found += [["@gpu", name, key, value] for key, value in resolved.limits.items()]
    return found + [["lease", name, id, values.get("lease") or "shared"] for id in resolved.lease]


def _device(name: str, node: DeviceNode, resolved: Resolved, values: Mapping[str, str], root: str) -> Row:
    host = root.rstrip("/") + node.source
    kind = {"c": "char", "u": "char", "b": "block", "": ""}.get(node.type)
    if kind is None:
        raise UnsupportedError(f"`{node.path}` is of type `{node.type}`, not a character or block device")
    if not kind or node.major or node.minor:
        status = _status(host)
        kind = kind or ("block" if stat.S_ISBLK(status.st_mode) else "char")
        number = os.major(status.st_rdev), os.minor(status.st_rdev)
        if (node.major or node.minor) and number != (node.major, node.minor):
            wanted = f"{node.major}:{node.minor}"
            raise NotFoundError(f"`{node.source}` is {number[0]}:{number[1]} on this host, and not {wanted}")
    if not node.access:
        raise UnsupportedError(f"`{node.path}` with no access at all cannot be made")
    owner = values.get("uid") or values.get("user") or _number(node.uid)
    group = values.get("gid") or values.get("group") or _number(node.gid)
    mode = values.get("mode") or ("" if node.file_mode is None else f"{node.file_mode & 0o777:04o}")
    row = ["device", name, kind, node.source, fields.named(fields.inside, node.path), owner, group, mode, node.access]
    is_optional = values.get("required") == "false" or node.path in resolved.optional
    return _complete([*row, "optional" if is_optional else "required"], values, root)


def _owner(values: Mapping[str, str]) -> Row:
    user, group = (values.get(key) or values.get(other) or "0" for key, other in (("uid", "user"), ("gid", "group")))
    return [user, group, values.get("mode") or "0660"]


def _number(id: int | None) -> str:
    return "" if id is None else str(id)


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise NotFoundError(f"`{path}`: {os.strerror(error.errno or 0)}") from None


def _complete(row: Row, values: Mapping[str, str], root: str) -> Row:
    """Fill in the owner and mode that nobody has said."""
    if values.get("ownership.inherit") == "true" and not (row[6] and row[7]):
        status = _status(root.rstrip("/") + row[3])
        row[7] = row[7] or f"{stat.S_IMODE(status.st_mode) & 0o777:04o}"
        row[6] = row[6] or _group(status.st_gid, root)
    row[5:8] = [row[5] or "0", row[6] or "0", row[7] or "0660"]
    return row


def _inherited(name: str, found: list[Row], values: Mapping[str, str], root: str) -> list[Row]:
    leased = [["lease", name, f"node:{row[3]}", values.get("lease") or "shared"] for row in found if row[0] == "device"]
    found = [_complete(row, values, root) if row[0] == "device" else row for row in found]
    return found + leased + [rule for row in found if row[0] == "device" for rule in _waiting(name, row, values)]


def _waiting(name: str, row: Row, values: Mapping[str, str]) -> list[Row]:
    """The rule for a node that need not be there; not for a disk that is known by more than this name."""
    if row[9] == "required" or not row[3].startswith("/dev/") or values.get("id"):
        return []
    source, path = row[3].removeprefix("/dev/"), row[4].removeprefix("/dev/")
    return [["hotplug", name, *row[5:9], row[2], f"source={source}", f"path={path}", *_leased(values)]]


def _leased(values: Mapping[str, str]) -> list[str]:
    """How the monitor leases what it gives by a rule; without a word it is shared."""
    mode = values.get("lease") or "shared"
    return [f"lease={mode}"] if mode != "shared" else []


def _group(gid: int, root: str) -> str:
    """The name of a group of the host's, if it is one that means the same everywhere."""
    try:
        with open(root.rstrip("/") + "/etc/group", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(":")
                if len(words) > 2 and words[2] == str(gid):
                    return words[0] if words[0] in GROUPS else "0"
    except OSError:
        pass
    return "0"


def place(row: Sequence[str]) -> str:
    """Where a node or a mount is inside; "" for other rows."""
    at = {"device": 4, "bind": 3, "filesystem": 4}.get(row[0])
    return row[at] if at else ""


def _bind(name: str, mount: Mount, values: Mapping[str, str]) -> Row:
    if not mount.is_bind:
        return _filesystem(name, mount, values)
    for option in mount.options:
        if option not in OPTIONS:
            raise UnsupportedError(f"`{mount.container_path}`: the mount option `{option}` is not given to instances")
    source, inside = fields.named(fields.path, mount.host_path), target(mount.container_path)
    words = ["rw" if "rw" in mount.options else "ro", "nosuid", "nodev"]
    words += ["noexec"] if "noexec" in mount.options else []
    words += ["optional"] if values.get("required") == "false" else []
    return ["bind", name, source, inside, ",".join(words)]


def target(path: str) -> str:
    """Raises UnsupportedError for a place where nothing is mounted."""
    found = fields.named(fields.path, path)
    if found == "/" or any(found == top or found.startswith(top + "/") for top in KERNEL):
        raise UnsupportedError(f"`{found}` belongs to the instance's kernel file systems: nothing is mounted there")
    return found


def _filesystem(name: str, mount: Mount, values: Mapping[str, str]) -> Row:
    """A file system that comes empty; what is on a disk is for `disk`, and the kernel's own ones are there."""
    from ctrmgr.devices import filesystems

    if mount.type != "tmpfs":
        raise UnsupportedError(
            f"`{mount.container_path}` would be a new file system of type `{mount.type}`: only tmpfs is made for a specification"
        )
    options, data = filesystems.split("tmpfs", mount.options)
    words = ["ro" if "ro" in options else "rw", "nosuid", "nodev"]
    words += ["noexec"] if "noexec" in options else []
    words += ["optional"] if values.get("required") == "false" else []
    return ["filesystem", name, "tmpfs", "tmpfs", target(mount.container_path), ",".join(words), ",".join(data)]


def shared(found: list[Row]) -> list[Row]:
    """The rows of several devices without the parts that an earlier one has already: `shares NAME PATH` stands for each. What a
    device leases is its own and never shared.

    Raises SpecError when two devices want different things in one place.
    """
    owned = {row[2] for row in found if row[0] == "lease"}
    first: dict[str, Row] = {}
    kept: list[Row] = []
    names: set[str] = set()
    in_class: Row = []
    for row in found:
        if row[0] == "netdev" and row[3] in names:
            raise SpecError(f"two devices bring a link `{row[3]}`", hint="give one another `name`")
        names.update(row[3:4] if row[0] == "netdev" else ())
        if row[0] == "resctrl" and row[2:] != (in_class := in_class or row)[2:]:
            raise SpecError(
                f"devices `{in_class[1]}` and `{row[1]}` put the instance into different classes of resctrl"
            )
        at = place(row)
        other = first.setdefault(at, row) if at else row
        if other is row or other[1] == row[1]:
            kept.append(row)
        elif same(other, row) and f"node:{row[3]}" not in owned:
            kept.append(["shares", row[1], at])
        else:
            raise SpecError(f"devices `{other[1]}` and `{row[1]}` have the same path `{at}` inside")
    return kept


def same(one: Row, other: Row) -> bool:
    """Whether two rows make the same thing of the same source."""
    return one[0] == other[0] and [one[0], *one[2:9]] == [other[0], *other[2:9]]


def without(plan: list[Row], device: str) -> list[Row]:
    """The plan without a device; of its parts those that another one needs, too, become that one's."""
    heirs: dict[str, str] = {}
    for row in plan:
        if row[0] == "shares" and row[1] != device:
            heirs.setdefault(row[2], row[1])
    found = []
    for row in plan:
        if row[0] == "shares" and heirs.get(row[2]) == row[1] and _brings(plan, device, row[2]):
            continue
        if row[0] in WORDS and row[1] == device:
            at = place(row)
            if at not in heirs:
                continue
            row = [row[0], heirs[at], *row[2:]]
        found.append(row)
    return found


def _brings(plan: list[Row], device: str, at: str) -> bool:
    return any(row[0] in PARTS and row[1] == device and place(row) == at for row in plan)


def changed(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a file by which the devices of these rows are known has another text now."""
    known = [row for row in rows if row[0] == "identity"]
    if not known:
        return False
    from ctrmgr.host import sysfs

    return any(sysfs.known(row[2]) != row[3] for row in known)
