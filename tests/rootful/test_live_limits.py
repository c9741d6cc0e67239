# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits that change while an instance runs, against processes that do not stand still and numbers that are used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.kernel import control
from tests.rootful.planned import Planned, image
from tests.rootful.test_resctrl import linked

SECONDS = 10
RESET = 201
"""To which nobody lets himself be set (`rlimits_double.c`)."""
ROWS = "rlimit\tnofile\t100\t4096\noom-score-adj\t300\n"


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Planned]:
    own = Planned(tmp_path, image(tmp_path), rows=ROWS)
    yield own
    own.close()


def nofile(planned: Planned, soft: int) -> control.Reply:
    return control.ask(str(planned.run), control.RLIMIT, path="nofile", value=f"{soft}:4096", timeout=SECONDS)


def begun(planned: Planned, script: str) -> str:
    return planned.sh(f"sh -c '{script}' </dev/null >/dev/null 2>&1 & echo $!").stdout.strip()


def soft(planned: Planned, pid: str) -> str:
    lines = planned.sh(f"cat /proc/{pid}/limits").stdout.splitlines()
    return next(line.split()[3] for line in lines if line.startswith("Max open files"))


def test_who_sets_itself_back_holds_nobody_up(planned: Planned) -> None:
    """And does not keep the others from what is theirs."""
    planned.start()
    for _ in range(3):
        begun(planned, "while :; do ulimit -Sn 100; done")
        begun(planned, "while :; do echo 300 >/proc/self/oom_score_adj; done")
    still = begun(planned, "sleep 1000")
    assert not nofile(planned, 200).error
    assert soft(planned, still) == "200"
    assert not control.ask(str(planned.run), control.OOM, value="200", timeout=SECONDS).error
    assert planned.sh(f"cat /proc/{still}/oom_score_adj").stdout.strip() == "200"
    assert not planned.ask(control.STATUS).status()[2]


def test_numbers_are_the_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prlimit(2) takes nothing else: of the host's, one may be anybody's by then."""
    folder = tmp_path / "libexec"
    folder.mkdir()
    monkeypatch.setenv("CTRMGR_LIBEXEC", str(linked(folder, "rlimits_double.c", ["prlimit64"])))
    planned = Planned(tmp_path, image(tmp_path), rows="rlimit\tnofile\t100\t4096\n")
    planned.start()
    try:
        own = begun(planned, f"ulimit -Sn {soft(planned, '1')}; exec sleep 1000")
        assert not nofile(planned, 200).error
        assert soft(planned, own) == own
        assert not nofile(planned, RESET).error, "nobody goes after it for ever"
    finally:
        planned.close()
