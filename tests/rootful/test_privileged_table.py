# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table, asked by somebody who is not to be trusted: what is refused, with which errno, untouched.

What it does when all is right, every other test shows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from ctypes import Structure, c_uint32
from pathlib import Path

import pytest

from tests.conftest import dev_nodes
from tests.rootful.double import SOURCES
from tests.rootful.table import (
    BLOCK,
    CHAR,
    NOBODY,
    OPERATIONS,
    OWNER,
    Address,
    Allow,
    Bind,
    CgroupCreate,
    CgroupRemove,
    CgroupWrite,
    Class,
    ClassLink,
    Clone,
    Console,
    Deny,
    Dev,
    Fence,
    FenceSet,
    Grant,
    IdMap,
    Idmap,
    Inside,
    KernelMounts,
    Layer,
    Link,
    Mask,
    Node,
    Opened,
    Overlay,
    Place,
    Program,
    Revoke,
    Table,
    Uevent,
    Unbind,
)  # fmt: skip


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_sizes_and_counts(table: Table, opened: Opened, kind: type[Structure]) -> None:
    least, most = OPERATIONS[kind]
    null, size, number = opened("/dev/null"), ctypes.sizeof(kind), kind.number  # type: ignore[attr-defined]
    for wrong in (0, size - 1, size + 1, size * 2 + 64):
        assert table.raw(number, bytes(wrong), *[null] * least) == (errno.EINVAL, 0)
    for count in {least - 1, most + 1} - {-1}:
        assert table.raw(number, bytes(size), *[null] * count) == (errno.EINVAL, 0)


@pytest.mark.parametrize("number", [-1, 0, 24, 1 << 20, 2**31 - 1])
def test_there_is_no_other_operation(table: Table, number: int) -> None:
    assert table.raw(number, b"") == (errno.EINVAL, 0)


@pytest.mark.parametrize(
    "request_",
    [
        CgroupCreate(name=b"a"),
        CgroupWrite(file=b"memory.max", value=b"1"),
        CgroupRemove(name=b"a"),
        Idmap(uids=1, gids=1),
        Layer(),
        Node(aside=b"x", type=CHAR),
        Revoke(path=b"x"),
        Place(aside=b"x", path=b"x", root_uid=OWNER, root_gid=OWNER),
        Grant(uid=OWNER, gid=OWNER),
        Clone(),
        Bind(path=b"x", uid=OWNER, gid=OWNER),
        Unbind(path=b"x", uid=OWNER, gid=OWNER),
        Program(),
        Mask(path=b"proc/kcore"),
        Console(uid=1, gid=1),
        KernelMounts(uid=1, gid=1, tty_gid=1),
        Fence(),
        Uevent(uid=OWNER, gid=OWNER, size=2, text=b"a"),
        Class(name=b"infiniband"),
        ClassLink(name=b"mlx5_0"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_no_descriptor(table: Table, request_: Structure) -> None:
    assert table.refuses(request_, *[-1] * OPERATIONS[type(request_)][0]) == errno.EBADF


NAMES = (b"", b".", b"..", b"a/b", b"/a", b"../a", b"a/", b"x" * 64)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_cgroups(table: Table, opened: Opened, cgroup: Path, name: bytes) -> None:
    fd = opened(cgroup)
    assert table.refuses(CgroupCreate(name=name), fd) == errno.EINVAL
    assert table.refuses(CgroupRemove(name=name), fd) == errno.EINVAL
    assert table.refuses(CgroupWrite(file=name, value=b"1"), fd) == errno.EINVAL
    assert [path for path in cgroup.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "file",
    [b"cgroup.procs", b"cgroup.threads", b"cgroup.kill", b"cgroup.freeze", b"cgroup.type", b"tasks", b"notify_on_release",
     b"release_agent", b"devices.allow", b"freezer.state", b"memory", b"x.memory.max"],
)  # fmt: skip
def test_files_of_cgroups(table: Table, opened: Opened, cgroup: Path, file: bytes) -> None:
    """None that moves, stops or kills: `1` would be init."""
    assert table.refuses(CgroupWrite(file=file, value=b"0"), opened(cgroup)) == errno.EINVAL


def test_a_value_without_an_end(table: Table, opened: Opened, cgroup: Path) -> None:
    assert table.refuses(CgroupWrite(file=b"memory.max", value=b"1" * 256), opened(cgroup)) == errno.EINVAL
    assert table.refuses(CgroupCreate(name=b"a", uid=NOBODY, gid=1), opened(cgroup)) == errno.EINVAL
    assert [path for path in cgroup.iterdir() if path.is_dir()] == []


def test_what_is_no_cgroup(table: Table, opened: Opened) -> None:
    """Directories with files of the right names among it."""
    for name in ("memory.max", "devices.deny", "devices.allow"):
        (opened.folder / name).write_text("before")
    (opened.folder / "below").mkdir()
    for kind, fd in opened.kinds().items():
        for request in (
            CgroupCreate(name=b"new"),
            CgroupWrite(file=b"memory.max", value=b"1"),
            CgroupRemove(name=b"below"),
            Program(v1=0),
            Program(v1=1),
            Allow(v1=1, type=CHAR, major=1, minor=3, access=7),
            Deny(v1=1, type=CHAR, major=9, minor=3),
            Allow(v1=0, type=CHAR, major=1, minor=3, access=7),
            Deny(v1=0, type=CHAR, major=9, minor=3),
        ):
            assert table.refuses(request, fd) == errno.EINVAL, (kind, request)
    assert {path.name: path.read_text() for path in opened.folder.iterdir() if path.suffix in (".max", ".deny", ".allow")} == {
        "memory.max": "before", "devices.deny": "before", "devices.allow": "before",
    }  # fmt: skip
    assert (opened.folder / "below").is_dir()
    assert not (opened.folder / "new").exists()


def test_maps_that_are_not_the_filter(table: Table, opened: Opened) -> None:
    """A map with larger keys, by the kernel's own system call: its update would have read beyond ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    attr = (c_uint32 * 16)(1, 64, 256, 1)
    fd = libc.syscall({"x86_64": 321, "aarch64": 280}[os.uname().machine], 0, attr, 64)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    opened.fds.append(fd)
    assert table.refuses(Allow(type=CHAR, major=1, minor=3, access=7), fd) == errno.EINVAL
    assert table.refuses(Deny(type=CHAR, major=9, minor=3), fd) == errno.EINVAL


@pytest.mark.parametrize(
    "rule",
    [
        Allow(type=0, major=1, minor=3, access=7),
        Allow(type=0o100000, major=1, minor=3, access=7),
        Allow(type=CHAR, major=1, minor=3, access=0),
        Allow(type=CHAR, major=1, minor=3, access=8),
        Deny(type=0, major=9, minor=3),
    ],
)
def test_rules(table: Table, opened: Opened, cgroup: Path, rule: Allow) -> None:
    rule.v1 = 1  # a cgroup is what it takes then, so it is the rule that is refused
    assert table.refuses(rule, opened(cgroup)) == errno.EINVAL


@pytest.fixture
def process() -> Iterator[Path]:
    """With a user namespace that is still to be mapped."""
    child = subprocess.Popen(["unshare", "--user", "sleep", "100"])
    folder = Path(f"/proc/{child.pid}")
    while (folder / "comm").read_text() != "sleep\n":
        pass
    yield folder
    child.kill()
    child.wait()


def idmap(uid: tuple[int, int, int], gid: tuple[int, int, int] = (0, OWNER, 10), uids: int = 1, gids: int = 1) -> Idmap:
    request = Idmap(uids=uids, gids=gids)
    request.uid[0], request.gid[0] = IdMap(*uid), IdMap(*gid)
    return request


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (idmap((0, 0, 1)), errno.EPERM),
        (idmap((0, OWNER, 10), (0, 0, 10)), errno.EPERM),
        (idmap((0, OWNER, 0)), errno.EINVAL),
        (idmap((0, OWNER, 2**32 - 1)), errno.EINVAL),
        (idmap((0, NOBODY, 1)), errno.EINVAL),
        (idmap((NOBODY, OWNER, 1)), errno.EINVAL),
        (idmap((0, OWNER, 10), (0, NOBODY - 5, 10)), errno.EINVAL),
        (idmap((0, OWNER, 10), uids=0), errno.EINVAL),
        (idmap((0, OWNER, 10), gids=0), errno.EINVAL),
        (idmap((0, OWNER, 10), uids=33), errno.EINVAL),
        (idmap((0, OWNER, 10), gids=NOBODY), errno.EINVAL),
    ],
)
def test_id_maps(table: Table, opened: Opened, process: Path, request_: Idmap, code: int) -> None:
    """One half of a map is not written either."""
    assert table.refuses(request_, opened(process)) == code
    assert ((process / "uid_map").read_text(), (process / "gid_map").read_text()) == ("", "")


def test_maps_of_what_is_no_process(table: Table, opened: Opened) -> None:
    for name in ("uid_map", "gid_map"):
        (opened.folder / name).write_text("before")
    for fd in opened.kinds().values():
        assert table.refuses(idmap((0, OWNER, 10)), fd) == errno.EINVAL
    assert (opened.folder / "uid_map").read_text() == "before"


def test_a_map_is_written_once(table: Table, opened: Opened, process: Path) -> None:
    fd = opened(process)
    assert table(idmap((0, OWNER, 10)), fd) == (0, 0)
    assert table.refuses(idmap((0, OWNER + 20, 10)), fd) == errno.EPERM
    assert (process / "uid_map").read_text().split() == ["0", str(OWNER), "10"]


def test_layers(table: Table, opened: Opened) -> None:
    """Here, because what lies in another mount namespace cannot be cloned at all."""
    kinds = opened.kinds()
    directory = kinds["directory"]
    for kind, fd in kinds.items():
        alone, idmapped = (table.raw(Layer.number, bytes(4), *fds, apart=False) for fds in ((fd,), (directory, fd)))
        assert alone == ((0, 1) if fd == directory else (errno.EINVAL, 0)), kind
        assert idmapped == (errno.EINVAL, 0), kind


IDS = [(0, OWNER, errno.EPERM), (OWNER, 0, errno.EPERM), (NOBODY, OWNER, errno.EINVAL), (OWNER, NOBODY, errno.EINVAL)]


@pytest.mark.parametrize(("uid", "gid", "code"), IDS)
def test_ids_that_no_instance_has(table: Table, opened: Opened, tmpfs: Path, uid: int, gid: int, code: int) -> None:
    """Host root, and the -1 that chown and setfsuid take for "as it is": what follows would be host root's."""
    null, dev = opened("/dev/null"), opened(tmpfs)
    assert table.refuses(Overlay(uid=uid, gid=gid), dev, dev, dev) == code
    assert table.refuses(Dev(uid=uid, gid=gid, tty_gid=OWNER)) == code
    assert table.refuses(KernelMounts(uid=uid, gid=gid, tty_gid=OWNER), dev) == code
    assert table.refuses(Console(uid=uid, gid=gid), dev, dev) == code
    assert table.refuses(Node(aside=b"x", type=CHAR, major=1, minor=3, mode=0o600, uid=uid, gid=gid), dev, null) == code
    assert table.refuses(Place(aside=b"x", path=b"a/x", root_uid=uid, root_gid=gid), dev) == code
    for kind in (Bind, Unbind):
        assert table.refuses(kind(path=b"a/x", uid=uid, gid=gid), dev, null) == code
    assert list(tmpfs.iterdir()) == []
    os.mknod(tmpfs / "kept", CHAR, os.makedev(1, 3))
    assert table.refuses(Grant(mode=0o600, uid=uid, gid=gid), dev, opened(tmpfs / "kept", os.O_PATH)) == code
    assert ((tmpfs / "kept").stat().st_mode, (tmpfs / "kept").stat().st_uid) == (CHAR, 0)


def node(aside: bytes = b"x", **more: int) -> Node:
    return Node(
        aside=aside, **{"type": CHAR, "major": 1, "minor": 3, "mode": 0o600, "uid": OWNER, "gid": OWNER, **more}
    )


def place(path: bytes, aside: bytes = b"kept") -> Place:
    return Place(aside=aside, path=path, root_uid=OWNER, root_gid=OWNER)


PATHS = (b"", b"/", b"/x", b"x/", b"a//x", b".", b"..", b"../x", b"a/../x", b"a/..", b"./x", b"x/.", b"x" * 256)


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_nodes(table: Table, opened: Opened, tmpfs: Path, path: bytes) -> None:
    """Not even a directory is made."""
    dev, null = opened(tmpfs), opened("/dev/null", os.O_PATH)
    if len(path) < 64:
        assert table.refuses(node(path), dev, null) == errno.EINVAL
        assert table.refuses(place(b"x", path), dev) == errno.EINVAL
    assert table.refuses(node(b"a/b"), dev, null) == errno.EINVAL
    os.mknod(tmpfs / "kept", 0o600 | CHAR, os.makedev(1, 3))
    kept = opened(tmpfs / "kept", os.O_PATH)
    assert table.refuses(Revoke(path=path, uid=1, gid=1), dev, kept) == errno.EINVAL
    assert table.refuses(place(path), dev) == errno.EINVAL
    for kind in (Bind, Unbind):
        assert table.refuses(kind(path=path, uid=OWNER, gid=OWNER), dev, dev) == errno.EINVAL
    assert [(path.name, path.stat().st_uid) for path in tmpfs.iterdir()] == [("kept", 0)]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"mode": 0o4755}, errno.EINVAL),
        ({"mode": NOBODY}, errno.EINVAL),
        ({"type": BLOCK}, errno.ENODEV),
        ({"type": 0}, errno.ENODEV),
        ({"major": 10}, errno.ENODEV),
        ({"minor": 5}, errno.ENODEV),
    ],
)
def test_nodes_that_are_not_what_was_asked(
    table: Table, opened: Opened, tmpfs: Path, wrong: dict[str, int], code: int
) -> None:
    dev, null = opened(tmpfs), opened("/dev/null", os.O_PATH)
    assert table.refuses(node(b"x", **wrong), dev, null) == code
    assert list(tmpfs.iterdir()) == []


def test_descriptors_that_are_no_node(table: Table, opened: Opened, tmpfs: Path) -> None:
    dev = opened(tmpfs)
    for kind, fd in opened.kinds().items():
        if kind != "device":
            assert table.refuses(node(), dev, fd) == errno.ENODEV, kind
        assert table.refuses(Revoke(path=b"x", uid=1, gid=1), dev, fd) == errno.EINVAL, kind
        assert table.refuses(Grant(mode=0o600, uid=OWNER, gid=OWNER), dev, fd) == errno.EINVAL, kind
    assert list(tmpfs.iterdir()) == []


def test_places_that_are_no_dev_of_ours(table: Table, opened: Opened, tmpfs: Path) -> None:
    """The host's own /dev above all: to `statfs` it is a tmpfs, too."""
    before = dev_nodes()
    null = opened("/dev/null", os.O_PATH)
    (tmpfs / "file").touch()
    os.chown(tmpfs / "file", OWNER, OWNER)
    places = {**opened.kinds(), "host": opened("/dev"), "run": opened("/run"), "inside": opened(tmpfs / "file")}
    for kind, where in places.items():
        assert table.refuses(node(b"ctrmgr-test"), where, null) == errno.EINVAL, kind
        assert table.refuses(place(b"null", b"zero"), where) == errno.EINVAL, kind
        assert table.refuses(Revoke(path=b"null", uid=1, gid=1), where, null) == errno.EINVAL, kind
        assert table.refuses(Grant(mode=0o600, uid=OWNER, gid=OWNER), where, null) == errno.EINVAL, kind
    assert table.refuses(Revoke(path=b"null", uid=1, gid=1), opened(tmpfs), null) == errno.EINVAL
    assert dev_nodes() == before


def test_symlinks_in_dev(table: Table, opened: Opened, tmpfs: Path) -> None:
    dev, null = opened(tmpfs), opened("/dev/null", os.O_PATH)
    (tmpfs / "up").symlink_to("..")
    (tmpfs / "out").symlink_to(opened.folder)
    (tmpfs / "name").symlink_to("nothing")
    os.mknod(tmpfs / "kept", CHAR, os.makedev(1, 3))
    assert table.refuses(node(b"name"), dev, null) == errno.EEXIST
    assert table.refuses(place(b"up/x"), dev) == errno.ELOOP
    assert table.refuses(place(b"out/x"), dev) == errno.ELOOP
    assert table.refuses(place(b"new/below/../x"), dev) == errno.EINVAL
    assert table.refuses(place(b"name"), dev) == errno.EEXIST
    assert table.refuses(place(b"new/below/x", b"nothing"), dev) == errno.ENOENT
    assert sorted(path.name for path in tmpfs.iterdir()) == ["kept", "name", "out", "up"]


@pytest.mark.parametrize(
    "path",
    [b"", b"proc", b"proc/", b"/proc/kcore", b"etc/shadow", b"proc/../etc/shadow", b"sys/..", b"sys/./x", b"proc//kcore",
     b"process/x", b"proc/" + b"x" * 251],
)  # fmt: skip
def test_covers(table: Table, opened: Opened, path: bytes) -> None:
    root, dev = opened("/"), opened("/dev")
    for read_only in (0, 1):
        assert table.refuses(Mask(path=path, read_only=read_only), root, dev) == errno.EINVAL


def test_roots_with_symlinks(table: Table, opened: Opened) -> None:
    """An image in which the places to mount on lead elsewhere."""
    for name in ("proc", "sys", "dev"):
        (opened.folder / name).symlink_to("/etc")
    root = opened(opened.folder)
    assert table.refuses(KernelMounts(uid=OWNER, gid=OWNER, tty_gid=OWNER), root) == errno.ELOOP
    assert table.refuses(Mask(path=b"proc/passwd"), root, root) == errno.ELOOP
    assert table.refuses(Console(uid=OWNER, gid=OWNER), root, root) == errno.ELOOP


def test_a_console_that_is_no_terminal(table: Table, opened: Opened) -> None:
    (opened.folder / "dev/pts").mkdir(parents=True)
    (opened.folder / "dev/pts/ptmx").touch()
    (opened.folder / "dev/pts/ptmx").chmod(0o666)
    root = opened(opened.folder)
    assert table.refuses(Console(uid=OWNER, gid=OWNER), root, root) == errno.EINVAL


LINKS = (b"", b".", b"..", b"a/b", b"a:b", b"x" * 16)


@pytest.mark.parametrize("name", LINKS)
def test_names_of_links(table: Table, opened: Opened, name: bytes) -> None:
    netns = opened("/proc/self/ns/net")
    for wrong in ("bridge", "host", "inside"):
        names = {"bridge": b"br0", "host": b"h0", "inside": b"i0", wrong: name}
        assert table.refuses(Link(**names), netns) == errno.EINVAL
    assert table.refuses(Link(bridge=b"nosuch", host=b"h0", inside=b"i0"), netns) == errno.ENODEV
    assert table.refuses(Link(bridge=b"lo", host=b"h0", inside=b"i0"), netns) == errno.EMEDIUMTYPE


@pytest.mark.parametrize(
    "inside",
    [
        Inside(addresses=5),
        Inside(gateways=3),
        Inside(addresses=NOBODY),
        Inside(addresses=1),
        Inside(addresses=1, address=(Address * 4)(Address(2, 33))),
        Inside(addresses=1, address=(Address * 4)(Address(10, 129))),
        Inside(gateways=1, gateway=(Address * 2)(Address(7, 0))),
    ],
)
def test_addresses(table: Table, inside: Inside) -> None:
    assert table.refuses(inside) == errno.EINVAL


def test_fences(table: Table, opened: Opened, cgroup: Path, tmp_path: Path) -> None:
    types = tmp_path / "btf"
    types.write_bytes(b"\x9f\xeb\1\0" + bytes(100))
    assert table.refuses(Fence(), opened(tmp_path), opened(types)) == errno.EINVAL, "a folder is no cgroup"
    for wrong in (types, "/dev/null", tmp_path):
        assert table.refuses(Fence(), opened(cgroup), opened(wrong)) == errno.EINVAL
    for wrong in (cgroup, "/dev/null"):
        assert table.refuses(FenceSet(type=CHAR, major=1, minor=1, closed=1), opened(wrong)) == errno.EINVAL


def test_uevents(table: Table, opened: Opened, process: Path) -> None:
    """Heard nowhere but in an instance's network: not in one that belongs to the user namespace of the host's own."""
    ours, theirs = opened("/proc/self/ns/net"), opened(process / "ns/net")
    event = Uevent(uid=OWNER, gid=OWNER, size=6, text=b"add@/")
    assert table.refuses(event, ours, ours) == errno.EPERM
    assert table.refuses(event, theirs, ours) == errno.EPERM, "it has the host's network"
    for kind, fd in opened.kinds().items():
        assert table.refuses(event, fd, ours) in (errno.EINVAL, errno.ENOTTY), kind
        assert table.refuses(event, ours, fd) in (errno.EINVAL, errno.ENOTTY), kind
    for size in (0, 5, 1969, 2**32 - 1):
        assert table.refuses(Uevent(uid=OWNER, gid=OWNER, size=size, text=b"add@/"), ours, ours) == errno.EINVAL
    assert table.refuses(Uevent(uid=0, gid=OWNER, size=6, text=b"add@/"), ours, ours) == errno.EPERM
    assert table.refuses(Uevent(uid=OWNER, gid=NOBODY, size=6, text=b"add@/"), ours, ours) == errno.EINVAL


def test_the_table_is_known_here() -> None:
    """A new operation needs its refusals, too."""
    text = (SOURCES / "priv.h").read_text()
    declared = {int(line.split("=")[1].strip(" ,")) for line in text.splitlines() if line.startswith("\tPRIV_")}
    assert declared == {kind.number for kind in OPERATIONS}  # type: ignore[attr-defined]
