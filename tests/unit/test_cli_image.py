# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr image …`: what it prints and what it leaves alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from ctrmgr import state
from ctrmgr.cli.command import Command, parse
from ctrmgr.cli.image import COMMANDS
from ctrmgr.errors import ConflictError, NotFoundError
from ctrmgr.images import store

A, B = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRMGR_STATE_DIR", str(tmp_path))
    store.make_dirs()
    for fingerprint in (A, B):
        os.makedirs(f"{store.images_dir()}/{fingerprint}/rootfs")
        rows = [["init", "/sbin/init"], ["description", "An image"], ["size", "3000000"], ["created", "86400"]]
        state.write_flat(f"{store.images_dir()}/{fingerprint}/metadata", rows)
    store.set_alias("one", A)
    store.set_alias("uno", A)
    return tmp_path


def run(line: str) -> None:
    words = line.split()
    command: Command = max(
        (command for command in COMMANDS if words[: len(command.name.split())] == command.name.split()),
        key=lambda command: len(command.name),
    )
    command.run(parse(command, words[len(command.name.split()) :]))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    run("image list")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ALIAS", "FINGERPRINT", "DESCRIPTION", "ARCHITECTURE", "SIZE", "CREATED"]
    assert lines[1].startswith("one, uno  aaaaaaaaaaaa")
    assert lines[1].endswith("2.9 MiB  1970-01-02")
    run("image list --format json")
    rows = json.loads(capsys.readouterr().out)
    assert [(row["fingerprint"], row["alias"]) for row in rows] == [(A, ["one", "uno"]), (B, [])]
    assert (rows[0]["size"], rows[0]["created"]) == (3000000, "1970-01-02T00:00:00Z")
    run("image list -f csv")
    assert capsys.readouterr().out.splitlines()[1].startswith('"one, uno",' + A)


def test_list_shows_a_broken_image(capsys: pytest.CaptureFixture[str]) -> None:
    Path(store.images_dir(), A, "metadata").write_bytes(b"\xff\n")
    run("image list")
    out = capsys.readouterr().out
    assert "broken" in out
    assert "An image" in out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    run("image info one")
    shown = capsys.readouterr().out
    assert "created: 1970-01-02T00:00:00Z\n" in shown and "size: 2.9 MiB\n" in shown
    run("image info one --format yaml")
    fields = yaml.safe_load(capsys.readouterr().out)
    assert fields["fingerprint"] == A
    assert fields["aliases"] == ["one", "uno"]
    assert (fields["size"], str(fields["created"])) == (3000000, "1970-01-02T00:00:00Z")
    assert fields["used-by"] == []


def test_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    run("image alias create two b")
    assert store.find("two").fingerprint == B
    with pytest.raises(ConflictError):
        run("image alias create one b")
    run("image alias create --force one b")
    assert store.find("one").fingerprint == B
    run("image alias delete one")
    with pytest.raises(NotFoundError):
        run("image alias delete one")
    run("image alias list -f csv")
    assert capsys.readouterr().out == f"alias,fingerprint\ntwo,{B}\nuno,{A}\n"


def test_dry_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "delete one",
        "alias delete one",
        "alias create three one",
        "export one x.tar",
        "import /x",
        "build debian:sid",
    ):
        run(f"image {line} --dry-run")
        assert capsys.readouterr().out.count("\n") == 1
    assert store.fingerprints() == [A, B]
    assert [alias for alias, _ in store.aliases()] == ["one", "uno"]


def test_delete() -> None:
    run("image delete one b")
    assert store.fingerprints() == []
    with pytest.raises(NotFoundError):
        run("image delete one")
