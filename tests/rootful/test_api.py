# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python API: what instances use and what happens to them, without printing."""

from __future__ import annotations

import time

import pytest

import ctrmgr
from tests.conftest import Ctr


@pytest.fixture
def c1(ctr: Ctr, monkeypatch: pytest.MonkeyPatch) -> ctrmgr.Instance:
    for key, value in ctr.env.items():
        if key.startswith("CTRMGR_"):
            monkeypatch.setenv(key, value)
    limits = {"limits.processes": "20", "limits.cpu.allowance": "50ms/100ms"}
    return ctrmgr.launch("builtin:busybox", "c1", profiles=["no-network"], config=limits)


def test_use_against_limits(c1: ctrmgr.Instance, capfd: pytest.CaptureFixture[str]) -> None:
    c1.exec(["sh", "-c", "(while :; do :; done) >/dev/null 2>&1 &"])
    use = c1.usage(seconds=0.5)
    assert (use.name, use.processes_limit, use.cpu_limit) == ("c1", 20, 50)
    assert use.cpu is not None and 5 < use.cpu < 75
    assert use.processes == 2
    assert abs(use.when - time.time()) < 10 and use.gpus == {}
    assert "cpu=" in repr(use)
    assert capfd.readouterr() == ("", "")


def test_samples_of_all(c1: ctrmgr.Instance) -> None:
    other = ctrmgr.launch("builtin:busybox", "c2", profiles=["no-network"])
    samples = ctrmgr.top(interval=0.05)
    assert [use.name for use in next(samples)] == ["c1", "c2"]
    other.delete(force=True)
    assert [use.name for use in next(samples)] == ["c1"]
    assert [use.name for use in next(ctrmgr.top("c1", interval=0.05))] == ["c1"]


def test_events_until_one(c1: ctrmgr.Instance) -> None:
    with c1.events() as events:
        assert events.wait(timeout=0.05) == []
        c1.attach("full", type="unix-char", source="/dev/full", path="/dev/mine")
        first = next(events)
        assert (first.type, first.event, first.instance) == ("device", "attached", "c1")
        assert first.details["device"] == "full" and abs(first.when - time.time()) < 10
        c1.stop(force=True)
        assert "stopped" in [event.event for event in events.wait(timeout=10)] or next(events).event == "stopped"
    assert list(events) == []
    with pytest.raises(ctrmgr.ConflictError, match="closed"):
        events.wait(timeout=0)


def test_events_of_a_type_and_of_all(c1: ctrmgr.Instance) -> None:
    with ctrmgr.events(types=["limit"]) as limits, ctrmgr.events("c2") as others:
        c1.exec(["sh", "-c", "i=0; while [ $i -lt 40 ]; do sleep 1 & i=$((i+1)); done; wait"])
        event = next(limits)
        assert (event.type, event.event, event.details["resource"]) == ("limit", "max", "pids")
        assert others.wait(timeout=0.05) == []


def test_refused(c1: ctrmgr.Instance) -> None:
    with pytest.raises(ctrmgr.NotFoundError, match="c9"):
        ctrmgr.Instance("c9").usage()
    with pytest.raises(ctrmgr.NotFoundError, match="c9"):
        ctrmgr.top("c9")
    with pytest.raises(ctrmgr.SpecError, match="interval"):
        ctrmgr.top(interval=0)
    with pytest.raises(ctrmgr.SpecError, match="weather"):
        ctrmgr.events(types=["weather"])
    c1.stop(force=True)
    with pytest.raises(ctrmgr.ConflictError, match="not running"):
        c1.usage(seconds=0.01)
