# SPDX-License-Identifier: GPL-3.0-or-later
"""What programs inside hear of devices that are attached and detached, as libudev listens: root's words only."""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import uevent
from tests.conftest import Ctr
from tests.rootful.test_hotplug import LAUNCH, Loop, loop  # noqa: F401

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CREDENTIALS = struct.Struct("3i")


class Listener:
    """A process in the network and user namespace of an instance, as its root, that listens to the kernel's group."""

    def __init__(self, pid: int) -> None:
        self.text, writer = os.pipe()
        self.lines: list[bytes] = []
        self.pid = os.fork()
        if not self.pid:
            try:
                self._listen(pid, writer)
            finally:
                os._exit(1)
        os.close(writer)
        assert self._line() == {"ready": "yes"}

    def _listen(self, pid: int, writer: int) -> None:
        kinds = (("net", CLONE_NEWNET), ("user", CLONE_NEWUSER))
        for fd, kind in [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in kinds]:
            assert ctypes.CDLL(None).setns(fd, kind) == 0
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, uevent.NETLINK_KOBJECT_UEVENT) as kernel:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            kernel.bind((0, uevent.KERNEL_GROUP))
            os.write(writer, b'{"ready": "yes"}\n')
            while True:
                data, control, _, sender = kernel.recvmsg(1 << 16, socket.CMSG_SPACE(CREDENTIALS.size))
                (credentials,) = (CREDENTIALS.unpack(found) for *_, found in control)
                said = {
                    **uevent.parse(data),
                    "first": data.split(b"\0")[0].decode(),
                    "from": f"{sender} {credentials[1:]}",
                }
                os.write(writer, json.dumps(said).encode() + b"\n")

    def _line(self, seconds: float = 5) -> dict[str, str] | None:
        if not self.lines and select.select([self.text], [], [], seconds)[0]:
            self.lines += os.read(self.text, 1 << 16).splitlines()
        found: dict[str, str] | None = json.loads(self.lines.pop(0)) if self.lines else None
        return found

    def hears(self, action: str, name: str) -> dict[str, str]:
        said = self._line()
        assert said, f"no `{action}` of {name}"
        assert (said["ACTION"], said["DEVNAME"]) == (action, name), said
        assert said["first"] == f"{action}@{said['DEVPATH']}"
        assert said["from"] == "(0, 1) (0, 0)", "libudev believes nobody but the kernel, and root"
        assert int(said["SEQNUM"]) > 0
        return said

    def hears_nothing(self) -> None:
        assert (said := self._line(0.2)) is None, said

    def end(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.text)


@pytest.fixture
def listener(ctr: Ctr) -> Iterator[Listener]:
    ctr(*LAUNCH, "c1")
    made = Listener(int(json.loads(ctr("info", "c1", "--format", "json").stdout)["pid"]))
    yield made
    made.end()


def test_attach_suspend_resume_detach(ctr: Ctr, listener: Listener) -> None:
    ctr("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse", "path=/dev/my/fuse")
    said = listener.hears("add", "my/fuse")
    assert (said["MAJOR"], said["MINOR"], said["SUBSYSTEM"]) == ("10", "229", "misc")
    assert Path(f"/sys{said['DEVPATH']}/dev").read_text() == "10:229\n"
    assert "DEVMODE" not in said, "who may open it is said by whoever attached it"
    ctr("suspend-device", "c1", "fuse")
    listener.hears("remove", "my/fuse")
    ctr("resume-device", "c1", "fuse")
    listener.hears("add", "my/fuse")
    ctr("detach-device", "c1", "fuse")
    assert listener.hears("remove", "my/fuse")["DEVPATH"] == said["DEVPATH"]
    listener.hears_nothing()


def test_detach_of_what_is_suspended_is_said_once(ctr: Ctr, listener: Listener) -> None:
    ctr("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse")
    listener.hears("add", "fuse")
    ctr("suspend-device", "c1", "fuse")
    listener.hears("remove", "fuse")
    ctr("detach-device", "c1", "fuse")
    listener.hears_nothing()


def test_another_name_of_the_same_remains(ctr: Ctr, listener: Listener) -> None:
    """What listens knows a device by where it is in sysfs: in the end it has the name under which it still is there."""
    for name in ("one", "other"):
        ctr("attach-device", "c1", name, "type=unix-char", "source=/dev/fuse", f"path=/dev/{name}")
        listener.hears("add", name)
    ctr("detach-device", "c1", "other")
    listener.hears("remove", "other")
    listener.hears("add", "one")
    ctr("detach-device", "c1", "one")
    listener.hears("remove", "one")
    listener.hears_nothing()


def test_an_attach_that_fails_is_not_heard(ctr: Ctr, listener: Listener) -> None:
    ctr("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse", "path=/dev/null", code=4)
    listener.hears_nothing()


def test_hot_plug(ctr: Ctr, listener: Listener, loop: Loop) -> None:  # noqa: F811
    """What the kernel says of a disk that it has taken away is passed on; sysfs has nothing of it any more."""
    ctr("attach-device", "c1", "late", "type=unix-block", f"source={loop.node}", "path=/dev/late", "required=false")
    listener.hears_nothing()
    loop.add()
    said = listener.hears("add", "late")
    assert (said["SUBSYSTEM"], said["DEVTYPE"], "DISKSEQ" in said) == ("block", "disk", True)
    loop.remove()
    assert listener.hears("remove", "late")["DEVPATH"] == said["DEVPATH"] == f"/devices/virtual/block/{loop.name}"
    listener.hears_nothing()


def test_the_hosts_network_is_left_alone(ctr: Ctr, loop: Loop) -> None:  # noqa: F811
    """There the host's own udev would hear it."""
    ctr("launch", "builtin:busybox", "c1", "-p", "host-network")
    kernel = uevent.Uevents()
    try:
        ctr("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse")
        ctr("detach-device", "c1", "fuse")
        assert [said for said in kernel.read() or [] if said.get("DEVNAME") == "fuse"] == []
        loop.add()
        assert any(said.get("DEVNAME") == loop.name for said in kernel.read() or [])
    finally:
        kernel.close()
