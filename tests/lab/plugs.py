# SPDX-License-Identifier: GPL-3.0-or-later
"""USB devices that are plugged in and out: by the guest itself, through the monitor of its own QEMU."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import select
import shutil
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ctrmgr.backend import events
from ctrmgr.kernel import control, uevent
from tests.lab.commands import ctr, host, info, sh
from tests.lab.tries import outcome

SECONDS = 30
KEYBOARD, SERIAL = "0627:0001", "0403:6001"
CLAIM = 0x8004550F
"""USBDEVFS_CLAIMINTERFACE"""


@functools.cache
def machine() -> Plugs:
    """The port can be opened once."""
    return Plugs()


class Plugs:
    """QMP over a port of virtio-serial."""

    def __init__(self) -> None:
        names = Path("/sys/class/virtio-ports").glob("*/name")
        (port,) = (name.parent.name for name in names if name.read_text().strip() == "lab.plug")
        self.fd, self.text = os.open(f"/dev/{port}", os.O_RDWR | os.O_CLOEXEC), b""
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> None:
        os.write(self.fd, json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while "return" not in (answer := self._line()):
            assert "error" not in answer, answer

    def _line(self) -> dict[str, object]:
        while b"\n" not in self.text:
            assert select.select([self.fd], [], [], SECONDS)[0], "QEMU does not answer"
            self.text += os.read(self.fd, 1 << 16)
        line, _, self.text = self.text.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def plug(self, driver: str, name: str = "", **more: object) -> None:
        self.ask("device_add", driver=driver, id=name or driver, bus="xhci.0", **more)

    def pull(self, name: str) -> None:
        self.ask("device_del", id=name)


def paths(device: str) -> list[str]:
    """The nodes that c1 has of it now."""
    parts = control.ask("/run/ctrmgr/c1", control.DEVICES).devices()
    return sorted(part.path for part in parts if part.name == device and part.kind in ("char", "block"))


def leases() -> list[str]:
    return [file for file in os.listdir("/run/ctrmgr/.leases") if " c1 " in file]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Reader:
    """A process of the instance that opens a device, and says what comes of an action on it: reading, if nothing else is said."""

    def __init__(
        self, node: str, action: Callable[[int], object] = lambda fd: os.read(fd, 4096), first: str = "EAGAIN"
    ) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = f"/proc/{info()['pid']}/root{node}"
        self.pid = os.fork()
        if not self.pid:
            try:
                Path("/sys/fs/cgroup/ctrmgr/c1/cgroup.procs").write_text("0")
                fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
                while True:
                    theirs.send(outcome(lambda: action(fd)).encode())
                    theirs.recv(1)
            finally:
                os._exit(1)
        theirs.close()
        assert (said := self.socket.recv(64).decode()) == first, said or "it could not open the node"

    def reads(self) -> str:
        self.socket.send(b"\1")
        return self.socket.recv(64).decode()

    def end(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.socket.close()


def usb_devices_come_and_go() -> None:
    """A serial adapter and what it brings, by rules that nothing fitted when they were made; and what is heard of it."""
    host("modprobe", "-a", "usbserial", "ftdi_sio", "usbhid", "hid-generic", "evdev")
    plugs = machine()
    ctr("attach-device", "c1", "adapter", "type=usb", "vendorid=0403", "productid=6001")
    ctr(
        "attach-device",
        "c1",
        "serial",
        "type=unix-hotplug",
        "vendorid=0403",
        "subsystem=tty",
        "gid=dialout",
        "lease=exclusive",
    )
    assert paths("adapter") == paths("serial") == []
    kernel = uevent.Uevents()
    for _ in range(2):
        plugs.plug("usb-serial", chardev="wire0", **{"always-plugged": True})
        until(lambda: paths("serial") and paths("adapter"), "it does not come")
        (tty,), (usb,) = paths("serial"), paths("adapter")
        assert sh(f"stat -c '%F %G %a' {tty}") == "character special file dialout 660"
        assert usb.startswith("/dev/bus/usb/") and sh(f"head -c 2 {usb} | od -An -tx1").split() == ["12", "01"]
        (row,) = (
            row
            for row in json.loads(ctr("device", "list", "usb", "--format", "json").stdout)
            if row["id"].startswith(SERIAL)
        )
        assert [(held["device"], held["lease"]) for held in row["holders"]] == [("adapter", "shared")], row
        assert sorted(file.split(" ", 1)[1] for file in leases()) == ["exclusive c1 serial", "shared c1 adapter"]
        plugs.pull("usb-serial")
        until(lambda: not paths("serial") and not paths("adapter"), "it does not go")
        assert "No such file" in sh(f"ls {tty}", code=1)
    assert any(said.get("SUBSYSTEM") == "tty" and said["ACTION"] == "remove" for said in kernel.read() or [])
    kernel.close()
    assert leases() == []
    for device in ("adapter", "serial"):
        ctr("detach-device", "c1", device)


def input_devices_are_revoked_by_their_driver() -> None:
    """For good: also where the kernel would let them through again once the device is back. A suspension is not."""
    plugs = machine()
    plugs.plug("usb-kbd")
    newer = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)
    for subsystem in ("input", "hidraw") if newer else ("input",):
        attach = ("attach-device", "c1", "it", "type=unix-hotplug", "vendorid=0627", f"subsystem={subsystem}")
        ctr(*attach, "--wait=30")
        node = next(path for path in paths("it") if "event" in path or "hidraw" in path)
        reader = Reader(node)
        try:
            ctr("suspend-device", "c1", "it")
            ctr("resume-device", "c1", "it")
            assert reader.reads() == "EAGAIN"
            assert "its driver has revoked 1 open descriptors for good" in ctr("detach-device", "c1", "it").stderr
            ctr(*attach)
            assert reader.reads() == "ENODEV"
        finally:
            reader.end()
        ctr("detach-device", "c1", "it")
    usb_interfaces_are_taken_back()
    plugs.pull("usb-kbd")
    until(lambda: not list(Path("/dev").glob("hidraw*")), "it does not go")


def usb_interfaces_are_taken_back() -> None:
    """Those that a descriptor has claimed; and it gets none again."""
    for interface in Path("/sys/bus/usb/drivers/usbhid").glob("*:1.0"):
        Path(interface, "driver/unbind").write_text(interface.name)
    attach = ("attach-device", "c1", "it", "type=usb", f"vendorid={KEYBOARD[:4]}")
    ctr(*attach)
    (node,) = paths("it")
    claim = Reader(node, lambda fd: fcntl.ioctl(fd, CLAIM, bytes(4)), "ok")
    try:
        ctr("suspend-device", "c1", "it")
        ctr("resume-device", "c1", "it")
        assert claim.reads() == "ok"
        assert ": 1 open" in ctr("detach-device", "c1", "it").stderr  # control requests pass
        ctr(*attach)
        assert claim.reads() == "EACCES"
        other = Reader(node, lambda fd: fcntl.ioctl(fd, CLAIM, bytes(4)), "ok")
        other.end()
    finally:
        claim.end()
    ctr("detach-device", "c1", "it")


def number(path: str) -> tuple[int, int] | None:
    """Of the node that c1's device `it` has there now."""
    parts = control.ask("/run/ctrmgr/c1", control.DEVICES).devices()
    return next(((part.major, part.minor) for part in parts if part.name == "it" and part.path == path), None)


def hear(watcher: events.Watcher, event: str, **details: object) -> None:
    """Until this has been told of a device of c1's."""
    told: list[dict[str, object]] = []
    deadline = time.monotonic() + SECONDS
    while not any(details.items() <= each.items() for each in told):
        assert time.monotonic() < deadline, told
        told += [each.details for each in watcher.wait(timeout=SECONDS) or [] if each.event == event]


def another_of_the_same_model_takes_its_place() -> None:
    """Two adapters: one goes, the other is given under its path; both go, and one comes."""
    plugs = machine()
    for index, name in enumerate(("one", "two")):
        plugs.plug("usb-serial", name, chardev=f"wire{index}", **{"always-plugged": True})
        until(lambda there=f"/dev/ttyUSB{index}": os.path.exists(there), "it does not come")
    serial = Path("/sys/class/tty/ttyUSB0/device/../../serial").read_text().strip()
    ctr("attach-device", "c1", "it", "type=unix-hotplug", f"serial={serial}", "subsystem=tty", "failover=same-model")
    watcher, path = events.Watcher(["c1"], ["device"]), "/dev/ttyUSB0"
    told: list[tuple[str, object]] = []

    def hear(*wanted: str) -> None:
        while not set(wanted) <= {event for event, _ in told}:
            told.extend((event.event, event.details.get("number")) for event in watcher.wait() or [])

    try:
        assert number(path) == (188, 0)
        plugs.pull("one")
        until(lambda: number(path) == (188, 1), "the other one does not take its place")
        assert sh(f"stat -c '%t:%T' {path}") == "bc:1"
        assert "188:1 shared c1 it" in {file.removeprefix("char:") for file in leases()}
        plugs.pull("two")
        hear("unplugged")
        assert number(path) is None
        plugs.plug("usb-serial", "three", chardev="wire0", **{"always-plugged": True})
        hear("plugged")
        assert number(path) is not None
    finally:
        watcher.close()
    ctr("detach-device", "c1", "it")
    plugs.pull("three")
    until(lambda: not list(Path("/dev").glob("ttyUSB*")), "it does not go")


def a_gpu_that_goes_and_comes_again() -> None:
    """Hot-unplug of PCI: nothing of the same model is free until it is back."""
    card = os.path.realpath("/sys/class/drm/renderD128/device")
    function = next(str(path) for path in (Path(card), *Path(card).parents) if (path / "remove").exists())
    ctr("attach-device", "c1", "it", "type=gpu", "kms=true", "failover=same-model")
    there = paths("it")
    assert "/dev/dri/renderD128" in there and len(there) == 2, there
    Path(function, "remove").write_text("1")
    until(lambda: not paths("it"), "it does not go")
    Path("/sys/bus/pci/rescan").write_text("1")
    until(lambda: paths("it") == there, "it does not come")
    sh("exec 3<>/dev/dri/renderD128")
    ctr("detach-device", "c1", "it")


def nvidia_says(cards: dict[str, int]) -> None:
    """What its driver has in /proc: the GPUs by address, with their numbers."""
    top = Path("/proc/driver/nvidia/gpus")
    for folder in top.iterdir() if top.is_dir() else ():
        if folder.name not in cards:
            shutil.rmtree(folder)
    for address, minor in cards.items():
        (top / address).mkdir(parents=True, exist_ok=True)
        (top / address / "information").write_text(f"Model: \t\t NVIDIA A\nDevice Minor: \t {minor}\n")


def a_gpu_of_nvidias_comes_under_its_own_number() -> None:
    """Its driver's part is played by files over /proc/driver and nodes that nobody serves; the functions that go are real. Leases move,
    and one that somebody has for himself is not taken."""
    host("mount", "-t", "tmpfs", "driver", "/proc/driver")
    functions = [
        path for path in Path("/sys/bus/pci/devices").iterdir() if Path(path, "device").read_text() == "0x0005\n"
    ]
    one, two = sorted(path.name for path in functions)
    for minor in (0, 1, 255):
        os.mknod(f"/dev/nvidia{'ctl' if minor == 255 else minor}", 0o600 | stat.S_IFCHR, os.makedev(195, minor))
    nvidia_says({one: 0, two: 1})
    keys = ("type=gpu", "driver.capabilities=none", "lease=exclusive")
    try:
        ctr("attach-device", "c1", "it", *keys, f"pci={one}", "failover=same-model")
        ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-d", f"it,{','.join(keys)},pci={two}")
        assert paths("it") == ["/dev/nvidia0", "/dev/nvidiactl"]
        nvidia_says({two: 1})
        Path(f"/sys/bus/pci/devices/{one}/remove").write_text("1")
        until(lambda: paths("it") == ["/dev/nvidiactl"], "it does not go")
        watcher = events.Watcher(["c1"], ["device"])
        ctr("delete", "--force", "c2")
        until(lambda: paths("it") == ["/dev/nvidia1", "/dev/nvidiactl"], "the other one does not take its place")
        assert sh("stat -c '%t:%T' /dev/nvidia1; ls /dev/nvidia0", code=1).startswith("c3:1\n")
        hear(watcher, "plugged", path="/dev/nvidia1")
        assert {f"pci:{two} exclusive c1 it", "char:195:1 exclusive c1 it"} <= set(leases())
        assert not [lease for lease in leases() if one in lease or lease.startswith("char:195:0 ")]
        Path("/sys/bus/pci/rescan").write_text("1")
        nvidia_says({one: 0})
        Path(f"/sys/bus/pci/devices/{two}/remove").write_text("1")
        hear(watcher, "replaced", path="/dev/nvidia0", was_path="/dev/nvidia1", number="195:0", was="195:1")
        watcher.close()
    finally:
        ctr("detach-device", "c1", "it", code=None)
        host("umount", "/proc/driver")
        for path in Path("/dev").glob("nvidia*"):
            path.unlink()
        Path("/sys/bus/pci/rescan").write_text("1")
    assert leases() == []


CHECKS = (
    usb_devices_come_and_go,
    input_devices_are_revoked_by_their_driver,
    another_of_the_same_model_takes_its_place,
    a_gpu_that_goes_and_comes_again,
    a_gpu_of_nvidias_comes_under_its_own_number,
)
