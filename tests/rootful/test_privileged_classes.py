# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table, asked by somebody who is not to be trusted: covers of sysfs classes, and what is in them; classes of
resctrl."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.rootful.table import Class, ClassLink, GroupCreate, GroupJoin, GroupRemove, GroupSet, Guids, Opened, Table
from tests.rootful.test_privileged_table import NAMES


def test_classes_that_are_not_covered(table: Table, opened: Opened) -> None:
    """RDMA's alone, of a sysfs, and none that a symlink leads to."""
    for name in (b"", b"net", b"infiniband/..", b"infiniband" * 6 + b"0123", b"../class/infiniband"):
        assert table.refuses(Class(name=name), opened("/")) == errno.EINVAL, name
    (opened.folder / "sys/class/infiniband").mkdir(parents=True)
    assert table.refuses(Class(name=b"infiniband"), opened(opened.folder)) == errno.EINVAL
    (opened.folder / "sys/class/infiniband_mad").symlink_to("/sys/class/net")
    assert table.refuses(Class(name=b"infiniband_mad"), opened(opened.folder)) == errno.ELOOP


def test_links_of_classes(table: Table, opened: Opened, tmpfs: Path) -> None:
    """Only in a cover, and to devices; what else is in it stays."""
    link = ClassLink(name=b"mlx5_0", target=b"../../devices/pci/infiniband/mlx5_0")
    (tmpfs / "kept").touch()
    for kind, fd in {**opened.kinds(), "dev": opened(tmpfs), "host": opened("/dev")}.items():
        assert table.refuses(link, fd) == errno.EINVAL, kind
    os.chown(tmpfs, 0, 0)
    tmpfs.chmod(0o555)
    cover = opened(tmpfs)
    for name in NAMES:
        assert table.refuses(ClassLink(name=name, target=link.target), cover) == errno.EINVAL, name
    for target in (b"/dev", b"../../device", b"devices/x", b"../../devices/" + b"x" * 242):
        assert table.refuses(ClassLink(name=b"mlx5_0", target=target), cover) == errno.EINVAL, target
    assert table.refuses(ClassLink(name=b"kept"), cover) == errno.EINVAL
    assert sorted(path.name for path in tmpfs.iterdir()) == ["kept"]
    for _ in range(2):
        assert table(link, cover) == (0, 0)
    assert os.readlink(tmpfs / "mlx5_0") == link.target.decode()
    for _ in range(2):
        assert table(ClassLink(name=b"mlx5_0"), cover) == (0, 0)
    assert sorted(path.name for path in tmpfs.iterdir()) == ["kept"]


def test_what_is_no_resctrl(table: Table, opened: Opened, cgroup: Path) -> None:
    """Directories with files of the right names among it. No kernel of ours may have a real one."""
    requests = GroupCreate(name=b"new"), GroupSet(line=b"L3:0=f"), GroupRemove(name=b"below")
    for name in ("tasks", "schemata"):
        (opened.folder / name).write_text("before")
    (opened.folder / "below").mkdir()
    for kind, fd in {**opened.kinds(), "cgroup": opened(cgroup)}.items():
        for request in requests:
            assert table.refuses(request, fd) == errno.EINVAL, (kind, request)
        assert table.refuses(GroupJoin(), fd, opened(cgroup)) == errno.EINVAL, kind
    assert [table.refuses(request, -1) for request in requests] == [errno.EBADF] * 3
    assert table.refuses(GroupJoin(), -1, opened(cgroup)) == errno.EBADF
    assert [(opened.folder / name).read_text() for name in ("tasks", "schemata")] == ["before", "before"]
    assert (opened.folder / "below").is_dir()
    assert not (opened.folder / "new").exists()


def test_names_of_functions_and_drivers(table: Table, opened: Opened) -> None:
    """In sysfs, and below one folder of it."""
    given = {"node": 1, "port": 1, "link": 1, "address": b"0000:ff:1f.7", "driver": b"mlx5_core"}
    for kind, fd in opened.kinds().items():
        assert table.refuses(Guids(**given), fd) == errno.EINVAL, kind
    sysfs = opened("/sys")
    for wrong in ({"driver": b"../x"}, {"driver": b""}, {"driver": b"x" * 64}, {"address": b"a/b"}, {"address": b".."}):
        assert table.refuses(Guids(**{**given, **wrong}), sysfs) == errno.EINVAL, wrong
    assert table.refuses(Guids(**given), sysfs) in (errno.EOPNOTSUPP, errno.ENODEV), "a loopback has no functions"
