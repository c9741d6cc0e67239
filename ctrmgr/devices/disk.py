# SPDX-License-Identifier: GPL-3.0-or-later
"""`disk`: the root filesystem, a directory of the host's, or the file system on one of its disks."""

from __future__ import annotations

import os
import stat

from ctrmgr.devices import fields, filesystems
from ctrmgr.devices.driver import Field
from ctrmgr.errors import ConflictError, HostError, NotFoundError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.devices.lxd import Made, There, Ways

live = True


def _place(value: str) -> str:
    return value if value == "/" else fields.path(value.rstrip("/"))


def _source(value: str) -> str:
    if value[:1] != "/":
        raise ValueError("is not a path of the host's: there are no storage volumes")
    return value if value == "/" else fields.path(value.rstrip("/"))


def _pool(value: str) -> str:
    if value != "default":
        raise ValueError("is not a storage pool: there is `default`, below the state directory")
    return value


def _options(value: str) -> str:
    words = [word.strip() for word in value.split(",")]
    if not all(word and word.isprintable() and " " not in word for word in words):
        raise ValueError("are not mount options with commas between")
    return ",".join(words)


LATER = "it is not done yet"
FIELDS = {
    "path": Field(_place, "where it is inside; `/`: the root filesystem", required=True),
    "pool": Field(_pool, "`default`", default="default"),
    "source": Field(_source, "a directory or file of the host's, or a block device with a file system on it"),
    "id": Field(fields.word, "of a block device: which disk it is, as of `unix-block`"),
    "readonly": Field(fields.flag, "whether nothing can be written to it", default="false"),
    "required": fields.REQUIRED,
    "shift": Field(
        fields.flag,
        "of a directory: what is root's on the host is root's inside, and so on; without it, owners that the instance does "
        "not map are `nobody`",
        default="false",
    ),
    "recursive": Field(fields.flag, "of a directory: also what is mounted below it", default="false"),
    "propagation": Field(fields.choice("private"), "`private`: later mounts of the host do not appear inside", default="private"),
    "raw.mount.options": Field(_options, "options of the mount or of the disk's file system, with commas between; from a list"),
    **{
        name: Field(str, "known from LXD and Incus", refused=LATER)
        for name in (
            "attached", "boot.priority", "ceph.cluster_name", "ceph.user_name", "dependent", "initial.block.filesystem", "initial.gid", "initial.mode",
            "initial.uid", "initial.zfs.blocksize", "io.bus", "io.cache", "io.threads", "limits.max", "limits.read",
            "limits.write", "size", "size.state", "source.type", "source.snapshot", "wwn",
        )
    },
}  # fmt: skip
FOUND = "@filesystem"
"""What `locate` has found on the disk, for `rows`."""


def locate(values: Mapping[str, str], root: str = "/") -> tuple[dict[str, str], list[tuple[str, str]]]:
    """For a block device: the keys with its node and file system of today, and the files that say that it is this disk.

    Raises NotFoundError when it is not there, ConflictError when the host uses it, UnsupportedError for what is on it.
    """
    found, source = dict(values), values.get("source", "")
    if values["path"] == "/" or not (values.get("id") or is_disk(root.rstrip("/") + source)):
        return found, []
    from ctrmgr.devices import unix_block
    from ctrmgr.host import block

    found, identity = unix_block.locate({"source": source, "id": values.get("id", "")}, root)
    found = {**values, "source": found["source"]}
    node = root.rstrip("/") + found["source"]
    if not os.path.exists(node):
        raise NotFoundError(f"the disk `{found['source']}` does not exist on this host")
    disk = block.at(found["source"], root)
    uses = block.used(disk, root) if disk else []
    if uses and values.get("readonly") != "true":
        raise ConflictError(
            f"the disk `{found['source']}` is in use on the host: {', '.join(uses)}",
            hint="unmount it, or say readonly=true",
        )
    found[FOUND] = _on(node, found["source"])
    return found, identity


def is_disk(path: str) -> bool:
    """Raises ValueError for what is neither a disk nor files."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return path.startswith("/dev/disk/")
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        raise ValueError(f"its source `{path}` is {'a character device' if stat.S_ISCHR(mode) else 'a FIFO'}: no disk")
    return stat.S_ISBLK(mode)


def _on(node: str, source: str) -> str:
    try:
        kind = filesystems.probe(node)
    except OSError as error:
        raise HostError(f"`{source}`: {error.strerror}") from None
    if kind in filesystems.OPTIONS:
        return kind
    what = f"`{kind}`, which is not mounted for instances" if kind else "no file system that is known here"
    raise UnsupportedError(
        f"on `{source}` is {what}",
        hint=f"there are {', '.join(name for name in filesystems.OPTIONS if name != 'tmpfs')}",
    )


def remembered(values: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """Which disk it is, for a device that is attached by its name of today."""
    try:
        if "source" not in values or not is_disk(root.rstrip("/") + values["source"]):
            return {}
    except ValueError:
        return {}  # `locate` says so
    from ctrmgr.devices import unix_block

    return unix_block.remembered({key: value for key, value in values.items() if key != "path"}, root)


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """One mount; none for the root, which every instance has. Raises ValueError, UnsupportedError."""
    from ctrmgr.devices import rows as plan

    if values["path"] == "/":
        if "source" in values:
            raise ValueError("the root filesystem comes from the image, and not from a `source`")
        return []
    if "source" not in values:
        raise ValueError("it has no `source`: a directory of the host's, or a block device")
    target, source = plan.target(values["path"]), values["source"]
    kind = values.get(FOUND, "")
    given = values.get("raw.mount.options", "").split(",") if "raw.mount.options" in values else []
    options, data = filesystems.split(kind, given) if kind else ([word for word in given if _of_mount(word)], [])
    readonly = values.get("readonly") == "true" or kind in filesystems.READONLY or "ro" in options
    words = ["ro" if readonly else "rw", "nosuid", "nodev"]
    words += ["noexec"] if "noexec" in options else []
    words += ["optional"] if values.get("required") == "false" else []
    if kind:
        if values.get("recursive") == "true":
            raise ValueError("`recursive` is for directories")
        words += ["shift"] if kind in filesystems.IDMAPPED else []
        lease = "shared" if readonly else "exclusive"
        return [
            ["filesystem", name, kind, source, target, ",".join(words), ",".join(data)],
            ["lease", name, f"node:{source}", lease],
        ]
    words += [key for key in ("shift", "recursive") if values.get(key) == "true"]
    return [["bind", name, source, target, ",".join(words)]]


def _of_mount(word: str) -> bool:
    if word not in filesystems.MOUNT and word not in ("bind", "rbind"):
        raise UnsupportedError(f"the mount option `{word}` is not given to a directory of the host's")
    return True


# On servers


def lxd_ways() -> Ways:
    """What becomes of each key on a server: all that is LXD's."""
    from ctrmgr.devices import lxd

    needs = {
        "shift": "container_disk_shift",
        "recursive": "container_mount_propagation",
        "propagation": "container_mount_propagation",
        "raw.mount.options": "container_raw_mount",
        "attached": "disk_attached",
        "io.bus": "disk_io_bus",
        "io.cache": "disk_io_cache",
        "size.state": "migration_stateful",
        "wwn": "disk_wwn",
        "io.threads": "disk_io_threads_virtiofsd",
        "source.type": "vm_root_volume_attachment",
        "source.snapshot": "vm_root_volume_attachment",
        "dependent": "dependent",
    }
    initial = "disk_initial_volume_configuration"
    return {
        **{key: lxd.native(initial if key.startswith("initial.") else needs.get(key, "")) for key in FIELDS},
        "pool": lxd.mapped("as it is; of the root filesystem `default` where it is not said"),
        "id": lxd.mapped(
            "`source`: the node that the disk has on the server's machine now, if that is this one or the server tells of it"
        ),
    }


def lxd_device(name: str, values: Mapping[str, str], there: There) -> Made:
    """Servers have this type; which disk it is they know by its node alone."""
    from ctrmgr.devices import lxd, unix_block

    made = lxd.plain("disk", name, values, there, lxd_ways())
    keys = made.devices[name]
    if values.get("pool") or (values.get("path") == "/" and "source" not in values):
        keys["pool"] = values.get("pool") or "default"
    if id := values.get("id", ""):
        found, reason = unix_block.lxd_node(id, values.get("source", ""), there)
        if reason:
            made.problems.append((f"{name}.id", reason))
        else:
            keys["source"] = found
    return made
