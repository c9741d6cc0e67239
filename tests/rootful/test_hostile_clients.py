# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a client sends to a monitor, the monitor lives, answers the next one and keeps no descriptor of it.

One monitor of the sanitizer build for all tests: what one client did must not be felt by the next.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import random
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control
from tests.rootful.planned import Planned, image, wait_for
from tests.rootful.sanitized import sanitized

SIZE = control.HEADER.size + control.DEVICE.size
ENDS = (control.STOP, control.KILL)
OPS = [op for op in range(control.OOM + 1) if op not in ENDS]
FUSE = "/dev/fuse"


class Monitor:
    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.pid = planned.start().monitor_pid
        self.own = self.descriptors()

    def descriptors(self) -> dict[str, str]:
        found = {}
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found[path.name] = os.readlink(path)
        return found

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(f"{self.planned.run}/control")
        client.settimeout(10)
        return client

    def send(self, packet: bytes, fds: tuple[int, ...] = ()) -> control.Reply | None:
        """The reply, or None when the monitor ended the connection."""
        with self.connect() as client:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            client.sendmsg([packet], rights)
            try:
                answer = client.recv(1 << 17)
            except ConnectionResetError:
                return None
        return control.Reply(answer) if answer else None

    def ask(self, op: int, *, name: str = "") -> control.Reply:
        reply = self.send(request(op, device=control.DEVICE.pack(name.encode(), b"", b"", b"", *[0] * 7)))
        assert reply is not None
        return reply


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    folder = tmp_path_factory.mktemp("hostile")
    with sanitized() as build, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CTRMGR_LIBEXEC", str(build.libexec))
        planned = Planned(folder, image(folder))
        yield Monitor(planned)
        said = build.said()
        planned.close()
        assert said + build.said() == ""


@pytest.fixture
def monitor(shared: Monitor) -> Iterator[Monitor]:
    yield shared
    with contextlib.suppress(AssertionError):
        wait_for(lambda: shared.descriptors() == shared.own, 5)
    assert shared.descriptors() == shared.own
    assert shared.ask(control.DEVICES).count == 0
    assert shared.ask(control.STATUS).status()[0] == shared.pid


def request(op: int, *, arg: int = 0, device: bytes = control.EMPTY_DEVICE, version: int = control.VERSION) -> bytes:
    return control.HEADER.pack(version, op, arg, 0, b"") + device


def fuse(name: str = "fuse", path: str = FUSE) -> bytes:
    number = os.stat(FUSE).st_rdev
    numbers = (os.major(number), os.minor(number))
    return control.Device(name, "char", path, numbers, user="0", group="0", mode=0o600, access="rw").pack()


@contextlib.contextmanager
def opened(*fds: int) -> Iterator[tuple[int, ...]]:
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("seed", range(4))
def test_noise(monitor: Monitor, seed: int) -> None:
    noise = random.Random(seed)
    for _ in range(100):
        length = noise.choice((0, 1, SIZE - 1, SIZE, SIZE + 1, noise.randrange(3 * SIZE)))
        monitor.send(noise.randbytes(length))


@pytest.mark.parametrize("seed", range(4))
def test_noise_in_every_field(monitor: Monitor, seed: int) -> None:
    """The right version and a known operation, and all else by chance: texts without an end among it."""
    noise = random.Random(1000 + seed)
    kinds = (control.EMPTY_DEVICE, b"\xff" * control.DEVICE.size, b"/" * control.DEVICE.size, fuse())
    for _ in range(100):
        arg = noise.choice((0, -1, 2**31 - 1, -(2**31), noise.randrange(65, 1000)))
        op = noise.choice(OPS)
        if op == control.WAIT:
            continue
        device = bytearray(noise.choice((*kinds, noise.randbytes(control.DEVICE.size))))
        for _ in range(noise.randrange(4)):
            device[noise.randrange(len(device))] = noise.randrange(256)
        packet = bytearray(
            request(op, arg=arg if op == control.SIGNAL else noise.choice((arg, 1, 2, 3)), device=device)
        )
        packet[16 : control.HEADER.size] = noise.choice((bytes(256), noise.randbytes(256)))
        reply = monitor.send(bytes(packet))
        assert reply is not None
        assert len(reply.step) < 64 and len(reply.detail) < 256
    monitor.send(request(control.THAW))
    for device in monitor.ask(control.DEVICES).devices():
        monitor.ask(control.DETACH, name=device.name)


@pytest.mark.parametrize("hierarchy", ["", ",", "memory,", "none"])
def test_a_limit_of_no_hierarchy(monitor: Monitor, hierarchy: str) -> None:
    reply = monitor.ask(control.LIMIT, name=hierarchy)
    assert (reply.error, reply.step) == (errno.ENOENT, "set a limit")


def test_cut_off(monitor: Monitor) -> None:
    whole = request(control.STATUS)
    for length in range(0, SIZE, 13):
        assert monitor.send(whole[:length]) is None
    assert monitor.send(request(control.STATUS, version=0)) is None
    assert monitor.send(request(control.STATUS, version=2**32 - 1)) is None


def test_more_than_it_knows(monitor: Monitor) -> None:
    """Layouts only grow: what a newer command has to say beyond ours is for newer monitors."""
    for more in (1, SIZE, 100_000):
        reply = monitor.send(request(control.STATUS) + bytes(more))
        assert reply is not None and not reply.error
        assert reply.status()[0] == monitor.pid


@pytest.mark.parametrize("count", [0, 2, 3, 16, 253])
@pytest.mark.parametrize("op", [0, control.STATUS, control.ATTACH, control.DETACH, control.ENTER, 99])
def test_a_wrong_number_of_descriptors(monitor: Monitor, op: int, count: int) -> None:
    """Not one of them stays, and an attach does not take the first of many."""
    with opened(*(os.open(FUSE, os.O_PATH) for _ in range(count))) as fds:
        reply = monitor.send(request(op, device=fuse()), fds)
        assert reply is not None
        if op == control.ATTACH:
            assert (reply.error, reply.step) == (errno.EBADF, "look at the host's node")
        for packet in (b"", b"short", request(op, version=7)):
            assert monitor.send(packet, fds) is None


@pytest.mark.parametrize("op", OPS)
def test_one_descriptor_where_none_is_expected(monitor: Monitor, op: int) -> None:
    with opened(os.open(FUSE, os.O_PATH)) as fds:
        if op not in (control.ATTACH, control.WAIT):
            assert monitor.send(request(op, arg=4096), fds) is not None
        for packet in (b"", b"short", request(op, version=7)):
            assert monitor.send(packet, fds) is None
    assert monitor.send(request(control.THAW)) is not None


@pytest.mark.parametrize(
    "kind", ["file", "directory", "pipe", "socket", "epoll", "event", "namespace", "symlink", "null", "tty", "process"]
)
def test_a_descriptor_of_another_kind(monitor: Monitor, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "symlink").symlink_to(FUSE)
    if kind in ("pipe", "tty"):
        fds = os.pipe() if kind == "pipe" else os.openpty()
    elif kind == "socket":
        fds = tuple(end.detach() for end in socket.socketpair())
    elif kind == "epoll":
        with select.epoll() as epoll:
            fds = (os.dup(epoll.fileno()),)
    elif kind == "event":
        fds = (os.eventfd(0),)
    elif kind == "process":
        fds = (os.pidfd_open(os.getpid()),)
    else:
        path, flags = {
            "file": (tmp_path / "file", os.O_RDWR),
            "directory": (tmp_path, os.O_DIRECTORY),
            "namespace": (Path("/proc/self/ns/mnt"), 0),
            "symlink": (tmp_path / "symlink", os.O_PATH | os.O_NOFOLLOW),
            "null": (Path("/dev/null"), os.O_RDWR),
        }[kind]
        fds = (os.open(path, flags),)
    with opened(*fds) as given:
        reply = monitor.send(request(control.ATTACH, device=fuse()), given[:1])
    assert reply is not None
    assert (reply.error, reply.step) == (errno.ENODEV, "look at the host's node")
    assert monitor.planned.sh("ls -a /dev | grep -e fuse -e ctrmgr-[0-9]").stdout == ""


def test_its_own_connection_as_a_descriptor(monitor: Monitor) -> None:
    """A circle that only the kernel could break."""
    with monitor.connect() as client:
        client.sendmsg(
            [request(control.ATTACH, device=fuse())],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [client.fileno()]))],
        )
        assert control.Reply(client.recv(1 << 17)).error == errno.ENODEV


def test_clients_that_vanish(monitor: Monitor) -> None:
    for op in OPS:
        if op == control.ATTACH:
            continue
        for half in (None, socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            client = monitor.connect()
            client.send(request(op, arg=4096))
            if half is not None:
                client.shutdown(half)
            client.close()
    for _ in range(50):
        monitor.connect().close()
    assert monitor.send(request(control.THAW)) is not None


def test_descriptors_of_a_client_that_vanished(monitor: Monitor) -> None:
    """The attach is done all the same: whoever asked can have died of it."""
    with opened(os.open(FUSE, os.O_PATH)) as fds, monitor.connect() as client:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        client.sendmsg([request(control.ATTACH, device=fuse())], rights)
    wait_for(lambda: monitor.ask(control.DEVICES).count == 1)
    assert monitor.ask(control.DETACH, name="fuse").error == 0


def test_a_client_that_does_not_read(monitor: Monitor) -> None:
    """Its answers are lost; the others' are not."""
    with monitor.connect() as deaf:
        deaf.setblocking(False)
        sent = 0
        for _ in range(5000):
            try:
                deaf.send(request(control.ENTER))
                sent += 1
            except BlockingIOError:
                reply = monitor.send(request(control.STATUS))
                assert reply is not None and not reply.error
                if sent > 1000:
                    break
        assert sent > 100
        assert monitor.ask(control.STATUS).error == 0


def test_a_client_that_waits_and_asks(monitor: Monitor) -> None:
    with monitor.connect() as client:
        client.send(request(control.WAIT))
        client.send(request(control.STATUS))
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1 << 17) == b""
