# SPDX-License-Identifier: GPL-3.0-or-later
"""The administrator's list of hooks: what a line allows and what it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrmgr.cdi import allowed
from ctrmgr.devices import cdi_hooks
from ctrmgr.edits import Hook
from ctrmgr.errors import HostError, SpecError, UnsupportedError

PROGRAM = os.path.realpath("/bin/true")
HOOK = Hook("createRuntime", PROGRAM, ["true", "--card", "1 2", "*"], ["A=b"], 5)


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(allowed, "place", lambda: str(tmp_path / "hooks.allow"))
    monkeypatch.setattr(allowed, "_roots", lambda *_, **__: None)  # the folder is whose it is
    return tmp_path / "hooks.allow"


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        (f"createRuntime A=b {PROGRAM} --card '1 2' '[*]'", True),
        (f"createRuntime A=* {PROGRAM} --card * *  # ours", True),
        (f"createRuntime ?=b B=* {PROGRAM} --card ...", True),
        (f"createRuntime A=b {PROGRAM} ...", True),
        (f"createRuntime A=b {PROGRAM}", False),
        (f"createRuntime A=b {PROGRAM} --card '1 2' '[*]' more", False),
        (f"createRuntime A=b {PROGRAM} --card '1 2' '[*]' more ...", False),
        (f"createRuntime A=b {PROGRAM} --card 1 2 '[*]'", False),
        (f"createRuntime {PROGRAM} --card ...", False),
        (f"createRuntime A=c {PROGRAM} --card ...", False),
        (f"prestart A=b {PROGRAM} --card ...", False),
        (f"createRuntime A=b {PROGRAM}x --card ...", False),
        (f"createRuntime A=b {os.path.dirname(PROGRAM)}/* --card ...", False),
    ],
)
def test_lines(listed: Path, line: str, fits: bool) -> None:
    listed.write_text(f"\n# others\npoststop /bin/false\n{line}\n")
    if fits:
        allowed.check(HOOK)
    else:
        with pytest.raises(UnsupportedError, match="nobody has allowed it") as told:
            allowed.check(HOOK)
        listed.write_text(f"{str(told.value.hint).partition(': ')[2]}\n")
        allowed.check(HOOK)
        with pytest.raises(UnsupportedError):
            allowed.check(HOOK.replace(args=("true", "--card", "1 2", "x")))


@pytest.mark.parametrize(
    "line", ["createRuntime", "createRuntime A=b", "createcontainer /x", "poststop x/y", "poststop 'x"]
)
def test_a_list_that_is_none(listed: Path, line: str) -> None:
    listed.write_text(f"# fine\n{line}\n")
    with pytest.raises(SpecError, match=":2: "):
        allowed.check(HOOK)


def test_rows_and_back(listed: Path) -> None:
    listed.write_text(f"createRuntime A=* {PROGRAM} ...\nstartContainer /bin/x\n")
    (row,) = cdi_hooks.rows(HOOK)
    assert row == ["host", "createRuntime", "5", PROGRAM, "4", "true", "--card", "1 2", "*", "A=b"]
    assert cdi_hooks.hook_of(["host-hook", "dev", *row[1:]]) == HOOK
    inside = Hook("startContainer", "/bin/x")
    (row,) = cdi_hooks.rows(inside)
    assert row == ["run", "60", "/bin/x", "1", "/bin/x"]
    assert cdi_hooks.hook_of(["hook", "dev", *row]) == inside.replace(args=("/bin/x",), timeout=60)
    assert cdi_hooks.hook_of(["hook", "dev", "symlink", "a", "/b"]) is None
    with pytest.raises(UnsupportedError, match="too many words"):
        cdi_hooks.rows(HOOK.replace(args=["true", *"x" * 40]))


def test_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRMGR_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert allowed.place() == "/etc/ctrmgr/hooks.allow"  # a user's own allows nothing
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    path = tmp_path / "hooks.allow"
    assert allowed.place() == str(path)
    (tmp_path / "list").write_text("")
    path.symlink_to("list")
    with pytest.raises(HostError, match="cannot be used"):
        allowed.lines()
    path.unlink()
    path.mkdir()
    with pytest.raises(HostError, match="is not a file"):
        allowed.lines()
