# SPDX-License-Identifier: GPL-3.0-or-later
"""What the privileged table refuses about kernel parameters and links."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rootful.table import OWNER, Netdev, Opened, Rdma, Shape, Sysctl, Table


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


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces with nothing but their loopback."""
    children = [subprocess.Popen(["unshare", "--net", "sleep", "100"]) for _ in range(2)]
    for child in children:
        while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
            pass
    yield [f"/proc/{child.pid}/ns/net" for child in children]
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Netdev(index=0, name=b"x"), errno.EINVAL),
        (Netdev(index=1 << 31, name=b"x"), errno.EINVAL),
        (Netdev(index=1, name=b""), errno.EINVAL),
        (Netdev(index=1, name=b"x" * 16), errno.EINVAL),
        (Netdev(index=1, name=b"a/b"), errno.EINVAL),
        (Netdev(index=1, name=b"eth%d"), errno.EINVAL),
        (Netdev(index=1, name=b"a b"), errno.EINVAL),
        (Netdev(index=1, name=b".."), errno.EINVAL),
        (Netdev(index=1, name=b"x", address_size=33), errno.EINVAL),
        (Netdev(index=1, name=b"x", mtu=1 << 31), errno.EINVAL),
        (Netdev(index=77, name=b"x"), errno.ENODEV),
        (Netdev(index=1, name=b"x"), errno.EINVAL),  # the loopback: what its namespace has for good
    ],
)
def test_links_that_do_not_move(
    table: Table, opened: Opened, namespaces: list[str], request_: Netdev, error: int
) -> None:
    one, other = (opened(path) for path in namespaces)
    assert table.refuses(request_, one, other, other) == error


@pytest.mark.parametrize("request_", [Netdev(index=1, name=b"x"), Rdma(index=1)])
def test_what_is_no_network_namespace(table: Table, opened: Opened, request_: Netdev | Rdma) -> None:
    own = opened("/proc/self/ns/net")
    for wrong in ("/proc/self/ns/mnt", "/proc/self/ns/user", "/dev/null"):
        for place in range(3):
            fds = [own, own, own]
            fds[place] = opened(wrong)
            assert table.refuses(request_, *fds) == errno.EINVAL
    assert table.refuses(request_, own, own, -1) == errno.EBADF
