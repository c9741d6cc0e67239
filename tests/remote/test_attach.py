# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices come and go in a running instance on a server; nobody's is lost, and what is said to be there is there."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.remote.daemons import PATIENCE, Remote


@pytest.fixture
def c1(https: Remote) -> Remote:
    https("launch", "tiny", "host:c1")
    return https


def sh(host: Remote, script: str, code: int | None = 0) -> str:
    return host("exec", "host:c1", "--", "sh", "-c", script, code=code).stdout


def test_live_with_its_owner(c1: Remote) -> None:
    c1("attach-device", "host:c1", "/dev/fuse", "gid=render", "mode=0640")
    assert sh(c1, "stat -c '%u %G %a %t:%T' /dev/fuse").split() == ["0", "render", "640", "a:e5"]
    assert "has a device `fuse` already" in c1("attach-device", "host:c1", "/dev/fuse", code=4).stderr
    twice = c1("attach-device", "host:c1", "f2", "type=unix-char", "source=/dev/fuse", code=4)
    assert "is where device `fuse` is" in twice.stderr
    c1("detach-device", "host:c1", "fuse")
    assert (
        sh(c1, "exec 3</dev/fuse", code=None) == ""
        and "no device `fuse`" in c1("detach-device", "host:c1", "fuse", code=3).stderr
    )
    c1("attach-device", "host:c1", "dri", "type=unix-char", "source=/dev/zero", "path=/dev/dri/card7")
    assert sh(c1, "head -c 3 /dev/dri/card7 | od -An -tx1").split() == ["00", "00", "00"]
    c1("detach-device", "host:c1", "dri")
    sh(c1, "! test -e /dev/dri/card7")


def test_success_that_is_none(c1: Remote) -> None:
    """The server says that all is well, and nothing is inside: an error, and taken out again."""
    lie = c1("attach-device", "host:c1", "/dev/not-here", "required=false", code=6)
    assert "says that `not-here` is attached" in lie.stderr and "taken out again" in lie.stderr
    c1("attach-device", "host:c1", "/dev/not-here", code=6)
    hidden = c1("attach-device", "host:c1", "x", "type=unix-char", "source=/dev/fuse", "path=/dev/null", code=4)
    assert "there is a `/dev/null`" in hidden.stderr
    disk = ("host:c1", "d", "type=disk", "source=/not-here", "required=false")
    for path, said in (("/mnt/x", "nothing is at `/mnt/x`"), ("/root", "`/root` is what was there before")):
        lie = c1("attach-device", *disk, f"path={path}", code=6)
        assert f"{said}, because" in lie.stderr and "taken out again" in lie.stderr
    assert "devices: {}" in c1("config", "show", "host:c1").stdout
    for path in ("/mnt/a b", "/root"):
        c1("attach-device", "host:c1", "d", "type=disk", "source=/usr/share/doc", "required=false", f"path={path}")
        sh(c1, f"grep -qF ' {path.replace(' ', chr(92) + '040')} ' /proc/self/mountinfo")
        c1("detach-device", "host:c1", "d")


def test_links(c1: Remote) -> None:
    """Also one that the instance has renamed meanwhile, and where it has no /sys to look at."""
    nic = ("type=nic", "nictype=p2p")
    c1("attach-device", "host:c1", "chosen", *nic)
    c1("attach-device", "host:c1", "n", *nic, "name=net7")
    assert sh(c1, "ls /sys/class/net").split() == ["eth0", "lo", "net7"]
    sh(c1, "ip link set net7 name net8; ip link add net9 type bridge")
    assert "net9" in c1("attach-device", "host:c1", "m", *nic, "name=net9", code=6).stderr
    c1("detach-device", "host:c1", "n")
    c1("detach-device", "host:c1", "chosen")
    assert sh(c1, "ls /sys/class/net").split() == ["lo", "net9"]
    sh(c1, "umount -l /sys")
    c1("attach-device", "host:c1", "n", *nic, "name=net7")
    sh(c1, "grep net7 /proc/net/dev")
    c1("detach-device", "host:c1", "n")
    assert "devices: {}" in c1("config", "show", "host:c1").stdout


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_refused_before_anything(c1: Remote) -> None:
    assert (
        "`host` cannot do `zero.readonly`"
        in c1("attach-device", "host:c1", "/dev/zero", "readonly=true", code=5).stderr
    )
    assert (
        "no user `nobody9`" in c1("attach-device", "host:c1", "/dev/zero", "uid=nobody9", "path=/dev/z", code=3).stderr
    )
    assert "no `type`" in c1("attach-device", "host:c1", "x", "source=/dev/zero", code=2).stderr
    assert "--holders" in c1("detach-device", "host:c1", "x", "--holders=kill", code=2).stderr
    assert "no instance `host:c9`" in c1("attach-device", "host:c9", "/dev/fuse", code=3).stderr


def test_two_and_more_at_once(c1: Remote) -> None:
    """Eight clients, eight devices: each is told the truth, and all are there; then all go at once."""
    names = [f"d{n}" for n in range(8)]
    running = [
        c1.popen(
            "attach-device",
            "host:c1",
            name,
            "type=unix-char",
            "source=/dev/zero",
            f"path=/dev/{name}",
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    assert [(each.wait(PATIENCE), each.stderr.read()) for each in running] == [(0, b"")] * 8
    assert sh(c1, "cd /dev; echo d[0-9]").split() == names
    devices = json.loads(c1("info", "host:c1", "--format", "json").stdout)["devices"]
    assert {each["name"] for each in devices} == {*names, "root"}
    running = [c1.popen("detach-device", "host:c1", name, stderr=subprocess.PIPE) for name in names]
    assert [(each.wait(PATIENCE), each.stderr.read()) for each in running] == [(0, b"")] * 8
    assert sh(c1, "cd /dev; echo d[0-9]").split() == ["d[0-9]"]


def test_beside_the_vendors_client(c1: Remote) -> None:
    """It overwrites the whole configuration if nobody has changed it: both devices are there in the end."""
    daemon = c1.daemon
    for turn in range(4):
        ours = c1.popen("attach-device", "host:c1", "ours", "type=unix-char", "source=/dev/zero", "path=/dev/ours")
        told = daemon.run(
            *daemon.client,
            "config",
            "device",
            "add",
            "c1",
            "theirs",
            "unix-char",
            "source=/dev/zero",
            "path=/dev/theirs",
            code=None,
        )
        assert ours.wait(PATIENCE) == 0
        if told[0] == 0:
            assert sh(c1, "ls /dev/ours /dev/theirs").split() == ["/dev/ours", "/dev/theirs"], turn
            c1("detach-device", "host:c1", "theirs")
        c1("detach-device", "host:c1", "ours")


@pytest.mark.parametrize("daemon", ["lxd"], indirect=True)
def test_stopped(https: Remote) -> None:
    https("create", "tiny", "host:c1")
    told = https("attach-device", "host:c1", "/dev/fuse", "gid=render")
    assert "comes with its next start" in told.stderr
    https("start", "host:c1")
    assert sh(https, "stat -c '%G' /dev/fuse") == "render\n"


def test_from_a_profile(https: Remote) -> None:
    """One of ours, which the server does not have: its owner by name is looked up in the image."""
    https(
        "profile", "create", "card", "-",
        stdin="config:\n  security.no_new_privs: true\ndevices:\n  card:\n    type: unix-char\n    source: /dev/zero\n    path: /dev/card\n    gid: render\n",
    )  # fmt: skip
    shown = https("launch", "tiny", "host:c1", "-p", "default", "-p", "card", "--dry-run").stdout
    assert "raw.lxc: lxc.no_new_privs = 1" in shown
    https("launch", "tiny", "host:c1", "-p", "default", "-p", "card")
    assert sh(https, "stat -c '%G' /dev/card; grep NoNewPrivs /proc/1/status") == "render\nNoNewPrivs:\t1\n"
    order = https("launch", "tiny", "host:c2", "-p", "card", "-p", "default", code=2)
    assert "comes after one of ours" in order.stderr
    refused = https(
        "launch", "tiny", "host:c2", "-c", "limits.enforcement=strict", "-d", "n,type=nic,network=nonet", code=5
    )
    assert "limits.enforcement" in refused.stderr
    place = https("launch", "tiny", "host:c2", "-d", "n,type=nic,network=nonet", code=5)
    assert "`n.network`: it has no `nonet`" in place.stderr
    group = https(
        "launch", "tiny", "host:c2", "-d", "e,type=unix-char,source=/dev/zero,path=/dev/q,gid=nogroup9", code=3
    )
    assert "no group `nogroup9`" in group.stderr
    assert [row["name"] for row in json.loads(https("list", "host:", "--format", "json").stdout)] == ["host:c1"]
