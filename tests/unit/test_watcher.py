# SPDX-License-Identifier: GPL-3.0-or-later
"""What `Watcher` makes of a run's files, without a run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from ctrmgr.backend import events


def test_state_that_is_being_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "state/instances/c1").mkdir(parents=True)
    (tmp_path / "run/c1").mkdir(parents=True)
    path = tmp_path / "run/c1/state"
    text = f"monitor\t{os.getpid()}\ninit\t1\ncgroup\tx\nstarted\t{time.time_ns()}\nfrozen\t"
    path.write_text(f"{text}0\n")
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        watcher = events.Watcher()
        for torn in ("", "monitor\t", text.partition("frozen")[0]):
            path.write_text(torn)
            assert watcher.wait(timeout=0.05) == []
        path.write_text(f"{text}1\n")
        assert [event.event for event in watcher.wait(timeout=5) or ()] == ["frozen"]
    path.unlink()
    assert [event.event for event in watcher.wait(timeout=5) or ()] == ["stopped"]
    watcher.close()
