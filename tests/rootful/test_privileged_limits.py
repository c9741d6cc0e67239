# SPDX-License-Identifier: GPL-3.0-or-later
"""What the privileged table refuses about kernel parameters and links."""

from __future__ import annotations

import errno

import pytest

from tests.rootful.table import OWNER, Opened, Shape, Sysctl, Table


@pytest.mark.parametrize(
    "name",
    [b"", b"kernel/hostname", b"kernel/core_pattern", b"vm/swappiness", b"user/max_user_namespaces", b"../sys/net/x",
     b"net/../kernel/core_pattern", b"/net/x", b"net" * 85 + b"x"],
)  # fmt: skip
def test_parameters_of_the_whole_machine(table: Table, opened: Opened, name: bytes) -> None:
    assert table.refuses(Sysctl(name=name, value=b"1", uid=OWNER, gid=OWNER), opened("/")) == errno.EINVAL


def test_parameters_that_are_not_the_kernels(table: Table, opened: Opened) -> None:
    (opened.folder / "proc/sys/net").mkdir(parents=True)
    (opened.folder / "proc/sys/net/x").write_text("0")
    (opened.folder / "proc/sys/net/y").symlink_to("x")
    root = opened(opened.folder)
    assert table.refuses(Sysctl(name=b"net/x", value=b"1", uid=OWNER, gid=OWNER), root) == errno.EINVAL
    assert table.refuses(Sysctl(name=b"net/y", value=b"1", uid=OWNER, gid=OWNER), root) == errno.ELOOP
    assert table.refuses(Sysctl(name=b"net/z", value=b"1", uid=OWNER, gid=OWNER), root) == errno.ENOENT
    assert (opened.folder / "proc/sys/net/x").read_text() == "0"


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (Shape(link=b"", egress=8000), errno.EINVAL),
        (Shape(link=b"x" * 16, egress=8000), errno.EINVAL),
        (Shape(link=b"nosuch", egress=8000), errno.ENODEV),
        (Shape(link=b"lo", egress=8000), errno.EMEDIUMTYPE),
        (Shape(link=b"lo", ingress=8000), errno.EMEDIUMTYPE),
        (Shape(link=b"lo"), errno.EMEDIUMTYPE),
        (Shape(link=b"lo", egress=7999), errno.EINVAL),
        (Shape(link=b"lo", ingress=1), errno.EINVAL),
    ],
)
def test_limits_of_links_that_are_no_pairs(table: Table, shape: Shape, error: int) -> None:
    assert table.refuses(shape) == error
