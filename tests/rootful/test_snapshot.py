# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots of local instances, and what a command killed in the middle leaves."""

from __future__ import annotations

import json
import os

import pytest

import ctrmgr
from tests.conftest import Ctr


@pytest.fixture
def c1(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network", "-c", "user.a=1")
    ctr("exec", "c1", "--", "sh", "-c", "echo before >/etc/x; rm /bin/vi; ln /etc/x /etc/y; chown 5:107 /etc/x")
    return ctr


def sh(ctr: Ctr, command: str) -> str:
    return str(ctr("exec", "c1", "--", "sh", "-c", command).stdout)


def names(ctr: Ctr) -> list[str]:
    return [row["name"] for row in json.loads(ctr("snapshot", "list", "c1", "-f", "json").stdout)]


def test_back_again(c1: Ctr) -> None:
    assert c1("snapshot", "create", "c1").stdout == "snap0\n"
    assert "RUNNING" in c1("list").stdout  # it was frozen, and goes on
    sh(c1, "echo after >/etc/x; rm /etc/y; echo new >/etc/new; echo tool >/bin/vi")
    c1("config", "set", "c1", "user.a=2", "user.b=3")
    assert "is running" in c1("snapshot", "restore", "c1", "snap0", code=4).stderr
    c1("stop", "--force", "c1")
    assert c1("snapshot", "create", "c1", "later").stdout == "later\n"
    c1("snapshot", "restore", "c1", "snap0")
    assert (c1("config", "get", "c1", "user.a").stdout, c1("config", "get", "c1", "user.b").stdout) == ("1\n", "\n")
    c1("start", "c1")
    assert sh(c1, "cat /etc/x /etc/y; stat -c '%u %g %h' /etc/x; ls /etc/new /bin/vi 2>/dev/null || true").split() == [
        "before", "before", "5", "107", "2",
    ]  # fmt: skip
    c1("stop", "--force", "c1")
    c1("snapshot", "restore", "c1", "later")
    c1("start", "c1")
    assert sh(c1, "cat /etc/x /bin/vi") == "after\ntool\n"


def test_names(c1: Ctr) -> None:
    c1("snapshot", "create", "c1", "one")
    assert "already" in c1("snapshot", "create", "c1", "one", code=4).stderr
    assert "cannot be the name" in c1("snapshot", "create", "c1", "../one", code=2).stderr
    assert "there are: one" in c1("snapshot", "delete", "c1", "two", code=3).stderr
    assert "no instance `c9`" in c1("snapshot", "list", "c9", code=3).stderr
    c1("stop", "--force", "c1")
    c1("rename", "c1", "c2")
    c1("rename", "c2", "c1")
    assert names(c1) == ["one"]
    c1("snapshot", "delete", "c1", "one")
    assert names(c1) == []


@pytest.mark.parametrize(
    "step", ["snapshot-written", "restore-copied", "restore-decided", "restore-half", "restore-moved"]
)
def test_killed(c1: Ctr, step: str) -> None:
    """Wherever the command dies: the old state or the new one, no part of each; and a frozen instance goes on."""
    verb, dies = ("create", "two") if step.startswith("snapshot") else ("restore", "one")
    c1("snapshot", "create", "c1", "one")
    sh(c1, "echo after >/etc/x")
    c1("config", "set", "c1", "user.a=2")
    if verb == "restore":
        c1("stop", "--force", "c1")
    c1("snapshot", verb, "c1", dies, code=-9, env={"CTRMGR_CRASH_AT": step})
    if verb == "restore":
        c1("start", "c1")
    assert "RUNNING" in c1("list").stdout
    done = step not in ("snapshot-written", "restore-copied")
    assert (sh(c1, "cat /etc/x"), c1("config", "get", "c1", "user.a").stdout) == (
        ("before\n", "1\n") if done else ("after\n", "2\n")
    )
    assert names(c1) == ["one"]
    c1("snapshot", "create", "c1", "two")
    home = c1.folder / "state/instances/c1"
    left = [path.name for path in (*home.iterdir(), *(home / "snapshots").iterdir())]
    assert [name for name in left if name.endswith((".restored", ".old")) or name == "restore" or name[0] == "."] == []


def test_killed_while_deleting(c1: Ctr) -> None:
    c1("snapshot", "create", "c1", "one")
    c1("snapshot", "delete", "c1", "one", code=-9, env={"CTRMGR_CRASH_AT": "snapshot-del"})
    assert names(c1) == []
    c1("snapshot", "create", "c1", "one")
    assert os.listdir(c1.folder / "state/instances/c1/snapshots") == ["one"]


def test_from_python(c1: Ctr, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in c1.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)
    instance = ctrmgr.Instance("c1")
    instance.write("/etc/x", b"written", mode=0o600, uid=7)
    name = instance.snapshot()
    instance.stop(force=True)
    instance.write("/etc/x", b"later")
    assert instance.read("/etc/x") == b"later"
    instance.restore(name)
    assert instance.read("/etc/x") == b"written"
    instance.start()
    assert sh(c1, "stat -c '%a %u' /etc/x") == "600 7\n"
