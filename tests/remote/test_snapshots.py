# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots on servers, with the words of those of this machine."""

from __future__ import annotations

import json

import pytest

from tests.remote.daemons import Remote
from tests.remote.middle import Middle


def names(host: Remote) -> list[str]:
    return [row["name"] for row in json.loads(host("snapshot", "list", "host:c1", "-f", "json").stdout)]


def test_back_again(https: Remote) -> None:
    https("launch", "tiny", "host:c1", "-c", "user.a=1")
    https("exec", "host:c1", "--", "sh", "-c", "echo before >/etc/x")
    assert https("snapshot", "create", "host:c1").stdout == "snap0\n"
    assert https("snapshot", "create", "host:c1", "two").stdout == "two\n"
    assert names(https) == ["snap0", "two"]
    https("exec", "host:c1", "--", "sh", "-c", "echo after >/etc/x")
    https("config", "set", "host:c1", "user.a=2")
    assert "is running" in https("snapshot", "restore", "host:c1", "snap0", code=4).stderr
    https("stop", "--force", "host:c1")
    assert "already" in https("snapshot", "create", "host:c1", "two", code=4).stderr
    assert "there are: snap0, two" in https("snapshot", "restore", "host:c1", "three", code=3).stderr
    https("snapshot", "restore", "host:c1", "snap0")
    assert https("config", "get", "host:c1", "user.a").stdout == "1\n"
    https("start", "host:c1")
    assert https("exec", "host:c1", "--", "cat", "/etc/x").stdout == "before\n"
    https("snapshot", "delete", "host:c1", "snap0", "two")
    assert names(https) == []
    assert "has no snapshot" in https("snapshot", "delete", "host:c1", "snap0", code=3).stderr
    assert "no instance `host:c9`" in https("snapshot", "list", "host:c9", code=3).stderr


@pytest.mark.parametrize("daemon", ["incus"], indirect=True)
def test_gone_in_the_middle(unix: Remote, middle: Middle) -> None:
    unix("create", "tiny", "host:c1")
    middle.rule = lambda data: "deaf" if data.startswith(b"POST /1.0/instances/c1/snapshots") else "pass"
    gone = unix("snapshot", "create", "far:c1", "one", code=6)
    assert "`far` went away" in gone.stderr and "whether the snapshot was made is not known" in gone.stderr
