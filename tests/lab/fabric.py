# SPDX-License-Identifier: GPL-3.0-or-later
"""The bridge; and two instances that share an RDMA device and speak with each other by it, while one that they do not have is
hidden."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from ctrmgr.backend import events
from tests.lab.commands import ctr, host, info, sh, wait_for

PROGRAMS = {"usr": ("source=/usr", "path=/usr"), "drivers": ("source=/etc/libibverbs.d", "path=/etc/libibverbs.d")}
"""Of the guest, with what they load; the image has its own in /bin."""
RUN = "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu /usr/lib64/ld-linux-x86-64.so.2 /usr/bin/"
PINGPONG = f"{RUN}ibv_rc_pingpong -d rxe0 -g 0 -n 20"
ATTACH = ("ib", "type=infiniband", "parent=rxe0")
LOOK = f"""cd /sys/class; for i in infiniband*/*[0-9]; do [ ! -e $i/uevent ] || echo ${{i##*/}}; done
{RUN}ibv_devices 2>&1 | tail -n +3"""


def the_bridge_carries() -> None:
    """An address of one's own, and the host answers. `net` stays for the next check."""
    ctr("launch", "builtin:busybox", "net")
    route = sh("ip route", name="net")
    gateway = re.search(r"default via (\S+)", route)
    assert gateway, route
    sh(f"ping -c 1 -W 5 {gateway[1]}", name="net")
    (address,) = (text.partition("/")[0] for text in info("net")["addresses"] if "." in text)  # type: ignore[attr-defined]
    host("ping", "-c", "1", "-W", "5", address)


def seen(name: str) -> str:
    """The RDMA devices and nodes in sysfs, each of which leads somewhere; then, with a GUID, those of libibverbs, which asks by
    netlink first."""
    return " ".join(sh(LOOK, name=name).split())


def connect(server: str, client: str) -> str:
    """What both say of a connection, once the client has found the server."""
    address = sh(f"ip -4 -o address show eth0; {PINGPONG} >/tmp/said 2>&1 </dev/null &", name=server).split()[3]
    begin = f"for i in 1 2 3 4 5 6 7 8 9; do {PINGPONG} {address.partition('/')[0]} && break; sleep 0.1; done"
    return sh(begin, name=client, code=None) + sh("cat /tmp/said", name=server)


def another_takes_its_place() -> None:
    """Of two devices the one that `net` has is deleted: all nodes of the other one come, under the names that the kernel gave them, and
    libibverbs finds it."""
    ctr(
        "attach-device",
        "net",
        "ib",
        "type=infiniband",
        "parent=rxe1",
        "access=full",
        "failover=same-model",
        "lease=shared:2",
    )
    assert seen("net").startswith("rxe1 umad1 uverbs1 rxe1 ")
    watcher = events.Watcher(["net"], ["device"])
    host("rdma", "link", "delete", "rxe1")
    other = "rxe0 umad0 uverbs0 rxe0 505400fffe123456"
    until(lambda: seen("net") == other, lambda: f"the other one does not take its place: {seen('net')}")
    told = [event.fields() for event in watcher.wait(timeout=5) or []]
    watcher.close()
    assert {"/dev/infiniband/uverbs0", "/dev/infiniband/umad0"} <= {str(each.get("path")) for each in told}, told
    ctr("detach-device", "net", "ib")
    assert seen("net") == ""


def until(fits: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 20
    while not fits():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def instances_speak_by_rdma() -> None:
    """Each sees the device that it has, given live or at its start, in sysfs and by libibverbs. Data flows both ways, and after a
    detach no more."""
    host("ip", "link", "add", "lab0", "type", "dummy")
    host("ip", "link", "set", "lab0", "up")
    host("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "lab0")
    wait_for("/sys/class/infiniband_verbs/uverbs1")
    programs = [f"{name},type=disk,{','.join(keys)}" for name, keys in PROGRAMS.items()]
    options = [word for device in (*programs, ",".join(ATTACH)) for word in ("-d", device)]
    ctr("launch", "builtin:busybox", "peer", *options)
    try:
        for name, keys in PROGRAMS.items():
            ctr("attach-device", "net", name, "type=disk", *keys)
        assert seen("net") == ""
        assert "denied" in sh("umount /sys/class/infiniband; mount -t sysfs s /mnt", name="net", code=1)
        ctr("attach-device", "net", *ATTACH)
        mine = "rxe0 uverbs0 rxe0 505400fffe123456"
        assert (seen("net"), seen("peer")) == (mine, mine)
        said = connect("net", "peer")
        assert said.count("163840 bytes in") == 2, said
        ctr("attach-device", "net", "other", "type=infiniband", "parent=rxe1", "access=full")
        ctr("detach-device", "net", "ib")
        left = seen("net")
        assert left.startswith("rxe1 umad1 uverbs1 rxe1 "), left
        assert "IB device rxe0 not found" in sh(PINGPONG, name="net", code=1)
        ctr("detach-device", "net", "other")
        another_takes_its_place()
    finally:
        ctr("delete", "--force", "net", "peer")
        if "rxe1" in os.listdir("/sys/class/infiniband"):
            host("rdma", "link", "delete", "rxe1")
        host("ip", "link", "delete", "lab0")
    assert "rxe0" in os.listdir("/sys/class/infiniband")
