# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of an image that run before its init does, as hooks, and would keep the start from going on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.rootful.planned import Planned, image
from tests.rootful.test_resctrl import linked

OWN = "/sys/fs/cgroup/own"
FREEZE = f"#!/bin/sh\n/bin/busybox mkdir {OWN} && echo 1 >{OWN}/cgroup.procs && echo 1 >{OWN}/cgroup.freeze\n"


def test_init_is_frozen_before_it_is_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monitor would wait for it for ever, and hear nobody."""
    folder = tmp_path / "libexec"
    folder.mkdir()
    monkeypatch.setenv("CTRMGR_LIBEXEC", str(linked(folder, "poll_double.c", ["poll"])))
    root = image(tmp_path)
    (root / "freeze").write_text(FREEZE)
    (root / "freeze").chmod(0o755)
    planned = Planned(tmp_path, root, rows="hook\tdevice\trun\t5\t/freeze\t1\tfreeze\n")
    report = planned.monitor()
    assert (report.step, report.error) == ("run init", errno.ETIMEDOUT)
    assert planned.gone()
    planned.close()
