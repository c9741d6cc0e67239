# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python API with a server."""

from __future__ import annotations

import pytest

import ctrmgr
from tests.remote.daemons import Remote


def test_a_life(unix: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in unix.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)
    with ctrmgr.connect("host") as host, host.launch("tiny", "p1", config={"user.a": "1"}) as instance:
        assert [each.name for each in host.instances()] == ["p1"] and instance.info()["status"] == "RUNNING"
        data = bytes(range(256)) * 4000
        done = instance.exec(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=data)
        assert (done.code, done.stdout, done.stderr) == (3, data, b"err\n")
        assert instance.exec(["nothing"]).code == 127
        assert instance.exec(["id", "-u"], user="user").stdout == b"1000\n"
        assert instance.attach("zero", type="unix-char", source="/dev/zero", path="/dev/card")
        assert instance.exec(["ls", "/dev/card"]).code == 0
        assert instance.detach("zero").live
        instance.write("/etc/x", b"before", mode=0o640, gid=107)
        instance.configure({"user.a": None, "user.b": "2"})
        instance.stop(force=True)
        # Before its files are looked at: after that servers take 15 seconds to delete one that was renamed.
        instance.rename("p2")
        assert instance.info()["name"] == "host:p2"
        name = instance.snapshot()
        instance.write("/etc/x", b"after")
        instance.restore(name)
        assert instance.read("/etc/x") == b"before"
        with pytest.raises(ctrmgr.NotFoundError):
            instance.read("/etc/nothing")
        with pytest.raises(ctrmgr.UnsupportedError):
            host.create("tiny", "p3", config={"limits.enforcement": "strict"})
        with pytest.raises(ctrmgr.ConflictError):
            instance.exec(["true"])
    assert ctrmgr.connect("host").instances() == []
