# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table's mounts of devices: what is refused, untouched."""

from __future__ import annotations

import errno
import os

import pytest

from tests.rootful.table import OWNER, Bind, Clone, Filesystem, Opened, Shift, Table, Unbind


def test_sources_of_mounts(table: Table, opened: Opened) -> None:
    """Nothing but files and directories, and no namespace that is none."""
    kinds = opened.kinds()
    for kind in ("pipe", "device"):
        assert table.refuses(Clone(), kinds[kind]) == errno.EINVAL
    for kind in set(kinds) - {"namespace"}:
        assert table.refuses(Clone(), kinds["file"], kinds[kind], kinds["namespace"]) == errno.EINVAL, kind
    assert table.refuses(Clone(), kinds["file"], kinds["namespace"]) == errno.EINVAL


@pytest.mark.parametrize(
    "wrong",
    [{"type": b"proc"}, {"type": b"overlay"}, {"type": b""}, {"type": b"x" * 64}, {"data": b"x" * 256}, {"name": b"a/b"},
     {"name": b".."}, {"name": b""}, {"data": b"logdev=/dev/sda"}, {"data": b"source=x"}],
    ids=str,
)  # fmt: skip
def test_file_systems(table: Table, opened: Opened, wrong: dict[str, bytes]) -> None:
    """Of a list, with options that name nothing of the host's, on what is a block device."""
    right = {"type": b"tmpfs", "data": b"size=4k", "name": b"x", "uid": OWNER, "gid": OWNER}
    assert table(Filesystem(**right)) == (0, 1)
    assert table.refuses(Filesystem(**{**right, **wrong})) == errno.EINVAL
    assert table.refuses(Filesystem(**{**right, "uid": 0})) == errno.EPERM
    kinds = opened.kinds()
    assert table.refuses(Filesystem(**right), kinds["file"]) == errno.EINVAL, "memory is on no device"
    assert table.refuses(Filesystem(**{**right, "type": b"ext4"})) == errno.EINVAL
    for kind, fd in kinds.items():
        assert table.refuses(Filesystem(**{**right, "type": b"ext4"}), fd) == errno.ENOTBLK, kind


def test_ids_that_cannot_be_mapped(table: Table, opened: Opened) -> None:
    """What is mounted already, what is no mount, and what is no user namespace."""
    kinds = opened.kinds()
    own = opened("/proc/self/ns/user")
    for fd in kinds.values():
        assert table.refuses(Shift(), fd, own) in (errno.EINVAL, errno.EPERM)
        assert table.refuses(Shift(), kinds["directory"], fd) == errno.EINVAL


def test_what_is_no_mount(table: Table, opened: Opened) -> None:
    """What would have been made to mount on is gone again."""
    kinds = opened.kinds()
    root = kinds["directory"]
    os.chown(opened.folder, OWNER, OWNER)
    for kind, fd in kinds.items():
        assert table.refuses(Bind(path=b"a/b", uid=OWNER, gid=OWNER), root, fd) == errno.EINVAL, kind
        assert table.refuses(Unbind(path=b"file", uid=OWNER, gid=OWNER), root, fd) == errno.EINVAL, kind
        if fd != root:
            assert table.refuses(Bind(path=b"a", uid=OWNER, gid=OWNER), fd, root) == errno.EINVAL, kind
    assert [path.name for path in opened.folder.iterdir()] == ["file"]
