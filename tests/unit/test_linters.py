# SPDX-License-Identifier: GPL-3.0-or-later
"""Style and types are tests, so that they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def ours() -> list[Path]:
    """The files of a clone or of an unpacked release: what git knows, or what lies there."""
    done = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    skipped = {"build", ".venv-test", "__pycache__"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)]


FILES = ours()
SHELL = [path for path in FILES if path.read_bytes()[:40].startswith((b"#!/bin/sh", b"#!/usr/bin/env bash"))]
C = [path for path in FILES if path.suffix in (".c", ".h")]


def clean(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types() -> None:
    clean(sys.executable, "-m", "mypy", "--strict", "-p", "ctrmgr")


def test_python_style() -> None:
    clean(BIN / "ruff", "check", "--no-cache", ".")


def test_python_format() -> None:
    clean(BIN / "ruff", "format", "--no-cache", "--check", ".")


def test_c_format() -> None:
    assert len(C) > 30
    clean("clang-format", "--dry-run", "--Werror", *C)


def test_shell() -> None:
    assert len(SHELL) >= 5
    clean("shellcheck", *SHELL)


def test_licence_header() -> None:
    """Every source says its licence in its first lines."""
    kinds = (".py", ".c", ".h", ".yaml", ".toml", ".build", ".policy", "")
    other = ("LICENSE", ".gitignore")
    without = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path.suffix in kinds
        and path.name not in other
        and b"SPDX-License-Identifier: GPL-3.0-or-later" not in path.read_bytes()[:300]
    ]
    assert without == []


@pytest.mark.parametrize(("suffix", "limit"), [(".c", 400), (".py", 450)])
def test_no_file_swells(suffix: str, limit: int) -> None:
    long = [path.name for path in FILES if path.suffix == suffix and len(path.read_text().splitlines()) > limit]
    assert long == []
