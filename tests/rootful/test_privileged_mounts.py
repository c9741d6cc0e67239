# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table's mounts of devices: what is refused, untouched."""

from __future__ import annotations

import errno
import os

from tests.rootful.table import OWNER, Bind, Clone, Opened, Table, Unbind


def test_sources_of_mounts(table: Table, opened: Opened) -> None:
    """Nothing but files and directories, and no namespace that is none."""
    kinds = opened.kinds()
    for kind in ("pipe", "device"):
        assert table.refuses(Clone(), kinds[kind]) == errno.EINVAL
    for kind in set(kinds) - {"namespace"}:
        assert table.refuses(Clone(), kinds["file"], kinds[kind], kinds["namespace"]) == errno.EINVAL, kind
    assert table.refuses(Clone(), kinds["file"], kinds["namespace"]) == errno.EINVAL


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
