# SPDX-License-Identifier: GPL-3.0-or-later
"""`config device …`: keys of devices changed while an instance runs, and what waits for a start."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from ctrmgr.kernel import control
from tests.conftest import Ctr
from tests.rootful.test_bridge import Place, place

__all__ = ("place",)

FUSE = ("config", "device", "add", "c1", "fuse", "unix-char", "source=/dev/fuse")


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-p", "fuse")
    return ctr


def node(ctr: Ctr, path: str) -> str:
    return ctr("exec", "c1", "--", "stat", "-c", "%u %g %a", path).stdout.strip()


def attached(ctr: Ctr) -> list[str]:
    return [row["path"] for row in json.loads(ctr("info", "c1", "-fjson").stdout)["attached"]]


def test_added_read_changed_and_removed(ctr: Ctr) -> None:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    ctr(*FUSE, "path=/dev/one", "gid=7")
    assert node(ctr, "/dev/one") == "0 7 660"
    assert ctr("config", "device", "list", "c1", "-fcsv").stdout.splitlines() == [
        "name,type,profile",
        "fuse,unix-char,",
    ]
    assert ctr("config", "device", "get", "c1", "fuse", "gid").stdout == "7\n"
    assert ctr("config", "device", "get", "c1", "fuse", "mode").stdout == "\n"
    said = ctr("config", "device", "set", "c1", "fuse", "path=/dev/two", "mode=0600")
    assert (said.stdout, said.stderr) == ("", "")
    assert attached(ctr) == ["/dev/two"]
    assert node(ctr, "/dev/two") == "0 7 600"
    ctr("config", "device", "set", "c1", "fuse", "uid", "8")  # LXD's older way
    ctr("config", "device", "unset", "c1", "fuse", "gid")
    assert node(ctr, "/dev/two") == "8 0 600"
    shown = yaml.safe_load(ctr("config", "device", "show", "c1").stdout)
    assert shown["fuse"] == {"type": "unix-char", "source": "/dev/fuse", "path": "/dev/two", "mode": "0600", "uid": "8"}
    ctr("restart", "c1")
    assert node(ctr, "/dev/two") == "8 0 600"
    ctr("config", "device", "remove", "c1", "fuse")
    assert attached(ctr) == []
    assert ctr("config", "device", "list", "c1", "-fcsv").stdout.splitlines() == ["name,type,profile"]


WRONG = (
    (("set", "c1", "mine", "path=/etc/x"), 2, "below /dev"),
    (("set", "c1", "mine", "colour=blue"), 2, "not a key of a unix-char device"),
    (("set", "c1", "mine", "source=/dev/nothing"), 3, "`/dev/nothing` does not exist"),
    (("set", "c1", "mine", "type=gpu"), 2, "is not a key of a gpu device"),
    (("set", "c1", "other", "uid=1"), 3, "no device `other`"),
    (("set", "c9", "mine", "uid=1"), 3, "no instance `c9`"),
    (("unset", "c1", "mine", "mode"), 3, "`mode` is not set"),
    (("unset", "c1", "mine", "type"), 3, "`type` is not set"),
    (("set", "c1", "fuse", "uid=1"), 4, "is profile `fuse`'s"),
    (("override", "c1", "mine", "uid=1"), 4, "own already"),
    (("add", "c1", "mine", "unix-char", "source=/dev/null"), 4, "has a device `mine` already"),
    (("remove", "c1", "other"), 3, "no device `other`"),
)


def test_wrong_ones_change_nothing(c1: Ctr) -> None:
    c1("config", "device", "add", "c1", "mine", "unix-char", "source=/dev/full", "path=/dev/mine")
    home, run = (c1.folder / place / "c1" for place in ("state/instances", "run"))

    def everything() -> tuple[object, ...]:
        return control.ask(str(run), control.DEVICES).data, *((home / name).read_bytes() for name in ("config", "plan"))

    before = everything()
    for words, code, said in WRONG:
        assert said in c1("config", "device", *words, code=code).stderr, words
        assert everything() == before, words


def test_a_profiles_device_is_overridden(c1: Ctr) -> None:
    assert "fuse,unix-char,fuse" in c1("config", "device", "list", "c1", "-fcsv").stdout
    assert yaml.safe_load(c1("config", "device", "show", "c1").stdout) == {}
    assert yaml.safe_load(c1("config", "device", "show", "c1", "--expanded").stdout)["fuse"]["mode"] == "0666"
    said = c1("config", "device", "override", "c1", "fuse", "mode=0600")
    assert "next start" in said.stderr
    assert node(c1, "/dev/fuse") == "0 0 666"
    c1("restart", "c1")
    assert node(c1, "/dev/fuse") == "0 0 600"
    c1("config", "device", "set", "c1", "fuse", "mode=0640")
    assert node(c1, "/dev/fuse") == "0 0 640"


def test_who_has_it_open_is_said_or_refused(c1: Ctr) -> None:
    c1("config", "device", "add", "c1", "mine", "unix-char", "source=/dev/full", "path=/dev/mine")
    c1("exec", "c1", "--", "sh", "-c", "sleep 99 3</dev/mine >/dev/null 2>&1 &")
    refused = c1("config", "device", "set", "c1", "mine", "uid=5", "--holders=refuse", code=4)
    assert "sleep" in refused.stderr
    assert node(c1, "/dev/mine") == "0 0 660"
    assert "sleep" in c1("config", "device", "set", "c1", "mine", "uid=5").stderr
    assert node(c1, "/dev/mine") == "5 0 660"


def limits(ctr: Ctr) -> dict[str, tuple[str, bool]]:
    found = json.loads(ctr("info", "c1", "-fjson").stdout)["limits"]
    return {limit["key"]: (limit["value"].rpartition(" ")[2], limit["enforced"]) for limit in found}


def test_what_cannot_be_given_anew_is_as_it_was(c1: Ctr, tmp_path: Path) -> None:
    source, marker = tmp_path / "node", c1.folder / "state/instances/c1/device-as-it-was"
    os.mknod(source, 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    c1("config", "device", "add", "c1", "mine", "unix-char", f"source={source}", "path=/dev/mine")
    refused = c1("config", "device", "set", "c1", "mine", "path=/dev/null", code=4)
    assert "`/dev/null` exists in the instance already" in refused.stderr
    assert node(c1, "/dev/mine") == "0 0 660"
    marker.write_text("")  # without power before the disk had it
    c1("config", "device", "set", "c1", "mine", "uid=5", "--quiet")
    assert node(c1, "/dev/mine") == "5 0 660"
    c1("config", "device", "set", "c1", "mine", "uid=6", code=-9, env={"CTRMGR_CRASH_AT": "change-taken"})
    source.unlink()
    c1("config", "set", "c1", "user.any=thing")
    assert c1("config", "device", "get", "c1", "mine", "uid").stdout == "5\n", "its keys are not lost"
    assert not marker.exists()


def test_the_limits_of_a_disk_change_live(ctr: Ctr, disk: str) -> None:
    given = f"d,type=unix-block,source={disk},path=/dev/d,limits.read=4MiB"
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-d", given)
    ctr("exec", "c1", "--", "sh", "-c", "sleep 99 3</dev/d >/dev/null 2>&1 &")
    said = ctr("config", "device", "set", "c1", "d", "limits.read=1MiB", "limits.write=2MiB")
    assert said.stderr == "", "nothing is taken for that"
    values = limits(ctr)
    assert values["d.limits.read"][1] and values["d.limits.write"][1]
    assert values["d.limits.read"][0].endswith(str(1 << 20)) and values["d.limits.write"][0].endswith(str(2 << 20))
    assert ctr("config", "device", "unset", "c1", "d", "limits.read", "limits.write").stderr == "", "nothing waits"
    assert limits(ctr) == {}
    assert ctr("config", "device", "set", "c1", "d", "limits.write=2MiB").stderr == ""
    ctr("config", "device", "unset", "c1", "d", "limits.write")
    wrong = ctr("config", "device", "set", "c1", "d", "limits.max=1MiB", "limits.read=1MiB", code=2)
    assert "limits.max" in wrong.stderr
    assert limits(ctr) == {}


def test_the_limits_of_a_link_change_live(place: Place) -> None:
    ctr = place.ctr
    ctr("launch", "builtin:busybox", "c1")
    assert ctr("config", "device", "override", "c1", "eth0", "limits.ingress=5Mbit").stderr == ""
    assert limits(ctr)["eth0.limits.ingress"] == ("5000000", True)
    assert ctr("config", "device", "set", "c1", "eth0", "limits.max=8Mbit", code=2).stderr
    ctr("config", "device", "unset", "c1", "eth0", "limits.ingress")
    assert ctr("config", "device", "set", "c1", "eth0", "limits.max=8Mbit").stderr == ""
    assert limits(ctr) == {"eth0.limits.ingress": ("8000000", True), "eth0.limits.egress": ("8000000", True)}
    refused = ctr("config", "device", "remove", "c1", "eth0", code=4)
    assert "other host ids or addresses" in refused.stderr
