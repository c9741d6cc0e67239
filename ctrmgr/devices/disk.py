# SPDX-License-Identifier: GPL-3.0-or-later
"""`disk`: the root filesystem as LXD's default profile writes it; other disks are not done yet."""

from __future__ import annotations

from ctrmgr.devices.driver import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def _root(value: str) -> str:
    if value != "/":
        raise ValueError("is not the root: disks other than it are not done yet")
    return value


def _pool(value: str) -> str:
    if value != "default":
        raise ValueError("is not a storage pool: there is `default`, below the state directory")
    return value


LATER = "it is not done yet"
FIELDS = {
    "path": Field(_root, "`/`: the root filesystem", required=True),
    "pool": Field(_pool, "`default`", default="default"),
    **{
        name: Field(str, "known from LXD and Incus", refused=LATER)
        for name in (
            "attached", "boot.priority", "ceph.cluster_name", "ceph.user_name", "dependent", "initial.block.filesystem", "initial.gid", "initial.mode",
            "initial.uid", "initial.zfs.blocksize", "io.bus", "io.cache", "io.threads", "limits.max", "limits.read",
            "limits.write", "propagation", "raw.mount.options", "readonly", "recursive", "required", "shift", "size", "size.state",
            "source", "source.type", "source.snapshot", "wwn",
        )
    },
}  # fmt: skip


def rows(name: str, values: Mapping[str, str]) -> list[list[str]]:
    """None: every instance has its root."""
    return []
