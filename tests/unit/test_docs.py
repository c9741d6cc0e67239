# SPDX-License-Identifier: GPL-3.0-or-later
"""The documents are true: links lead somewhere, commands parse, the man page is clean."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ctrmgr.cli import main
from ctrmgr.cli.command import parse

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "native_helpers").rglob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The ids that a forge gives to the headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def command_lines(page: Path) -> list[list[str]]:
    found = []
    for kind, text in FENCE.findall(page.read_text()):
        if kind in ("", "sh"):
            for line in text.splitlines():
                words = shlex.split(line.removeprefix("# ").partition(" > ")[0], comments=True)
                if words[:1] == ["ctrmgr"]:
                    found.append(words[1:])
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)], ids=by_name)
def test_commands_parse(page: Path) -> None:
    for words in command_lines(page):
        command, rest = main.find(words)
        parse(command, rest)


def test_every_verb_is_in_the_guide() -> None:
    shown = {main.find(words)[0].name for page in PAGES for words in command_lines(page)}
    assert {command.name for command in main.every_command()} - shown - {"help"} == set()


def test_files_that_the_text_names() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:tests|scripts|native_helpers|docs|profiles)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_man_page() -> None:
    done = subprocess.run(
        ["man", "--warnings", "--encoding=UTF-8", "--local-file", ROOT / "docs/man/ctrmgr.1"],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "attach-device INSTANCE" in done.stdout
