# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles that ship, launched: those whose hardware is here, those that do without, and those that must refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ctrmgr.host.machine import Host
from tests.conftest import Ctr

ROOT = Path(__file__).resolve().parents[2]


def launch(ctr: Ctr, *profiles: str) -> None:
    ctr("launch", "builtin:busybox", "c1", *(word for name in ("no-network", *profiles) for word in ("-p", name)))


def sh(ctr: Ctr, script: str, *options: str) -> list[str]:
    return ctr("exec", *options, "c1", "--", "sh", "-c", script).stdout.split()


def test_mpi_raises_the_limits_or_says_who_may_not(ctr: Ctr) -> None:
    words = ("launch", "builtin:busybox", "c1", "-p", "no-network", "-p", "hpc-mpi")
    if Host().may_raise_limits:
        ctr(*words)
        assert sh(ctr, "ulimit -l; ulimit -s; ulimit -n; ulimit -Hn") == ["unlimited", "unlimited", "65536", "65536"]
        return
    refused = ctr(*words, code=None)
    if refused.code == 0:
        return  # who runs this has them already
    assert refused.code == 5 and "takes CAP_SYS_RESOURCE" in refused.stderr
    key = re.findall(r"`(limits\.kernel\.\w+)` cannot be set", refused.stderr)[0]
    ctr(*words, "-c", "limits.enforcement=best-effort")
    limits = json.loads(ctr("info", "c1", "--format", "json").stdout)["limits"]
    assert [limit["enforced"] for limit in limits if limit["key"] == key] == [False]


def test_a_desktop_has_fuse_for_everybody(ctr: Ctr) -> None:
    launch(ctr, "desktop-gui", "usb-phone")
    assert sh(ctr, ": < /dev/fuse && echo open", "--user", "1000", "--group", "1000") == ["open"]


def test_scratch_is_for_one_alone(ctr: Ctr, disk: str) -> None:
    """The shipped profile by its own text, with the node of a disk that is here."""
    text = (ROOT / "profiles/block-scratch.yaml").read_text()
    assert "/dev/disk/by-partlabel/scratch" in text
    ctr("profile", "create", "block-scratch-here", "-", stdin=text.replace("/dev/disk/by-partlabel/scratch", disk))
    launch(ctr, "block-scratch-here")
    assert sh(ctr, "echo mine > /dev/scratch && head -c 4 /dev/scratch") == ["mine"]
    assert ctr("exec", "c1", "--", "mount", "/dev/scratch", "/mnt", code=None).code != 0
    refused = ctr("launch", "builtin:busybox", "c2", "-p", "no-network", "-p", "block-scratch-here", code=4)
    assert "`c1`" in refused.stderr


@pytest.mark.parametrize(("profile", "key"), [("gpu-cuda", "vendorid: 10de"), ("accel-qaic", "driver: qaic")])
def test_what_is_not_here_leaves_nothing(ctr: Ctr, profile: str, key: str) -> None:
    """With a vendor and a driver that no machine has."""
    text = (ROOT / f"profiles/{profile}.yaml").read_text()
    assert key in text
    ctr("profile", "create", "nowhere", "-", stdin=text.replace(key, key.partition(":")[0] + ": '0bad'"))
    launch(ctr, "fuse")
    before = ctr.traces()
    words = ("launch", "builtin:busybox", "c2", "-p", "no-network", "-p", "nowhere")
    assert "=0bad" in ctr(*words, code=3).stderr
    assert ctr.traces() == before
