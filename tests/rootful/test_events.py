# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr monitor` beside real instances: what happens to them is told, once, and soon."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import inotify, uevent
from tests.conftest import Ctr
from tests.rootful.test_hotplug import Loop, loop  # noqa: F401

OFFLINE = ("-p", "no-network")
Event = dict[str, object]


class Monitor:
    """A running `ctrmgr monitor`; made when it watches."""

    def __init__(self, ctr: Ctr, *words: str) -> None:
        self.process = ctr.popen("monitor", "--format", "json", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.rest = b""
        self.seen: list[Event] = []
        self.until("watching")

    def until(self, event: str, seconds: float = 15, **fields: object) -> Event:
        """The next event of this name and with these fields; those before it are in `seen`."""
        end = time.monotonic() + seconds
        while True:
            while b"\n" in self.rest:
                line, _, self.rest = self.rest.partition(b"\n")
                found = json.loads(line)
                self.seen.append(found)
                if found["event"] == event and all(found.get(key) == value for key, value in fields.items()):
                    return found  # type: ignore[no-any-return]
            assert time.monotonic() < end, f"no {event} {fields} in {self.seen}"
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)  # type: ignore[union-attr]
                assert data, self.process.communicate()
                self.rest += data

    def told(self, *types: str) -> list[tuple[object, object]]:
        return [(each["event"], each.get("instance")) for each in self.seen if each["type"] in types]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def monitor(ctr: Ctr) -> Iterator[Monitor]:
    found = Monitor(ctr)
    yield found
    found.end()


def test_a_life(ctr: Ctr, monitor: Monitor) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    monitor.until("started")
    ctr("freeze", "c1")
    monitor.until("frozen")
    ctr("unfreeze", "c1")
    monitor.until("unfrozen")
    ctr("restart", "c1")
    monitor.until("started")
    ctr("kill", "c1")
    assert monitor.until("stopped") | {"how": "signaled", "number": 9} == monitor.seen[-1]
    ctr("rename", "c1", "c2")
    assert monitor.until("renamed")["to"] == "c2"
    ctr("start", "c2")
    monitor.until("started", instance="c2")
    ctr("delete", "--force", "c2")
    monitor.until("deleted")
    assert monitor.told("lifecycle") == [
        ("created", "c1"), ("started", "c1"), ("frozen", "c1"), ("unfrozen", "c1"), ("stopped", "c1"), ("started", "c1"),
        ("stopped", "c1"), ("renamed", "c1"), ("started", "c2"), ("stopped", "c2"), ("deleted", "c2"),
    ]  # fmt: skip
    assert all(str(each["time"])[10] == "T" and str(each["time"])[-1] == "Z" for each in monitor.seen)


def test_a_monitor_that_is_killed_is_told(ctr: Ctr, monitor: Monitor) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    monitor.until("started")
    os.kill(json.loads(ctr("info", "c1", "--format", "json").stdout)["monitor-pid"], signal.SIGKILL)
    assert monitor.until("stopped", seconds=5)["how"] == "lost"


def test_devices(ctr: Ctr, monitor: Monitor) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    monitor.until("started")
    ctr("attach-device", "c1", "it", "type=unix-char", "source=/dev/fuse", "path=/dev/some/where")
    known = {"instance": "c1", "device": "it", "kind": "unix-char", "path": "/dev/some/where", "number": "10:229"}
    monitor.until("attached", **known)
    ctr("attach-device", "c1", "again", "type=unix-char", "source=/dev/null", "path=/dev/some/other", "--volatile")
    monitor.until("attached", device="again")
    ctr("detach-device", "c1", "it")
    monitor.until("detached", **known)
    assert len(monitor.told("device")) == 3


def test_what_a_device_has_comes_and_goes(ctr: Ctr, monitor: Monitor, loop: Loop) -> None:  # noqa: F811
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    ctr("attach-device", "c1", "it", "type=unix-block", f"source={loop.node}", "path=/dev/late", "required=false")
    loop.add()
    monitor.until("attached", device="it", kind="unix-block", path="/dev/late")
    number = os.stat(loop.node).st_rdev
    known = {"instance": "c1", "device": "it", "path": "/dev/late", "number": f"{os.major(number)}:{os.minor(number)}"}
    loop.remove()
    monitor.until("unplugged", **known)
    loop.add()
    monitor.until("plugged", **known)


def test_an_oom_kill_and_no_more_processes(ctr: Ctr, monitor: Monitor) -> None:
    limits = ("-c", "limits.memory=24MiB", "-c", "limits.memory.swap=false", "-c", "limits.processes=6")
    ctr("launch", "builtin:busybox", "c1", *OFFLINE, *limits)
    ctr("launch", "builtin:busybox", "c2", *OFFLINE, *limits)
    monitor.until("started", instance="c2")
    ctr("exec", "c1", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=80M", "count=1", code=137)
    assert monitor.until("oom_kill", seconds=4)["resource"] == "memory"
    ctr("exec", "c1", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done", code=None)
    assert monitor.until("max", resource="pids")["count"] == 1
    assert {instance for _, instance in monitor.told("limit")} == {"c1"}, "the neighbour hit none"


def test_only_what_was_asked_for(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    one = Monitor(ctr, "later", "--type", "lifecycle")
    try:
        ctr("attach-device", "c1", "/dev/fuse")
        ctr("stop", "c1")
        ctr("launch", "builtin:busybox", "later", *OFFLINE)
        ctr("attach-device", "later", "/dev/fuse")
        ctr("stop", "later")
        one.until("stopped")
        assert [each["event"] for each in one.seen] == ["watching", "created", "started", "stopped"]
    finally:
        one.end()


def test_devices_of_the_machine(ctr: Ctr, tmp_path: Path) -> None:
    host = Monitor(ctr, "--type", "host")
    try:
        Path("/sys/class/mem/null/uevent").write_text("change")
        assert host.until("changed", path="/dev/null")["number"] == "1:3"
    finally:
        host.end()


def test_it_ends_when_nobody_reads_or_is_told_to(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    one, two = Monitor(ctr), Monitor(ctr)
    one.process.stdout.close()  # type: ignore[union-attr]
    assert one.process.wait(timeout=10) == 141, "at once, and not with the next event"
    two.process.send_signal(signal.SIGINT)
    said = two.process.communicate(timeout=10)
    assert two.process.returncode == 130 and said[1] == b""
    assert one.process.stderr.read() == b""  # type: ignore[union-attr]
    one.process.stderr.close()  # type: ignore[union-attr]


@pytest.mark.usefixtures("alone")
def test_it_sleeps_when_nothing_happens(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", *OFFLINE)
    one = Monitor(ctr)
    try:
        time.sleep(0.5)
        before = switches(one.process.pid)
        time.sleep(3)
        assert switches(one.process.pid) - before <= 2
    finally:
        one.end()


def switches(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_the_kernels_words() -> None:
    data = b"add@/devices/x\0ACTION=add\0DEVNAME=dri/card0\0ODD\0MAJOR=226\0MINOR=0\0"
    assert uevent.parse(data) == {"ACTION": "add", "DEVNAME": "dri/card0", "MAJOR": "226", "MINOR": "0"}


def test_inotify(tmp_path: Path) -> None:
    queue = inotify.Inotify()
    number = queue.watch(str(tmp_path), inotify.CREATE | inotify.MOVED_TO | inotify.MOVED_FROM)
    assert queue.read() == []
    (tmp_path / "one").touch()
    (tmp_path / "one").rename(tmp_path / "two")
    assert [(watch == number, mask, name) for watch, mask, name in queue.read()] == [
        (True, inotify.CREATE, "one"), (True, inotify.MOVED_FROM, "one"), (True, inotify.MOVED_TO, "two"),
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        queue.watch(str(tmp_path / "gone"), inotify.CREATE)
    queue.forget(number)
    assert [mask for _, mask, _ in queue.read()] == [inotify.IGNORED]
    queue.close()
