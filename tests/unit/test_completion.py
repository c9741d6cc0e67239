# SPDX-License-Identifier: GPL-3.0-or-later
"""Completion in the shells themselves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cdi_specs import put, spec
from tests.conftest import Ctr

BASH = """
source <(ctrmgr completion bash)
COMP_WORDS=(ctrmgr "$@") COMP_CWORD=$#
_ctrmgr ctrmgr "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Outside of the line editor its builtins are not there: compadd is what would be called with the matches.
ZSH = """
compdef() { : }
compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@" }
_files() { print -- FILES }
source <(ctrmgr completion zsh)
words=(ctrmgr "$@") CURRENT=$(($# + 1))
_ctrmgr
"""
FISH = """
ctrmgr completion fish | source
complete -C (string join -- ' ' ctrmgr $argv)
"""
SHELLS = {
    "bash": ("bash", "--norc", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "--no-config", "-c", FISH),
}


@pytest.fixture
def path(ctr: Ctr, tmp_path: Path) -> str:
    """A PATH with this tree's ctrmgr."""
    program = tmp_path / "ctrmgr"
    program.write_text(f'#!/bin/sh\nexec {" ".join(ctr.argv)} "$@"\n')
    program.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected", "other"),
    [
        (["att"], "attach-device", None),
        (["image", "alias", ""], "create", "launch"),
        (["launch", ""], "builtin:busybox", None),
        (["stop", "--for"], "--force", None),
        (["detach-device", "c1", "fuse", "--holders", ""], "freeze", None),
        (["launch", "builtin:busybox", "-p", ""], "no-network", None),
        (["device", "list", ""], "infiniband", "launch"),
        (["device", "show", "/dev/fu"], "/dev/fuse", None),
        (["config", "set", "c1", "limits.mem"], "limits.memory=", None),
        (["attach-device", "c1", "g", "type=gpu", ""], "pci=", "source="),
    ],
)
def test_completes(ctr: Ctr, path: str, shell: str, line: list[str], expected: str, other: str | None) -> None:
    done = subprocess.run(
        [*SHELLS[shell], *line], env={**ctr.env, "PATH": path, "HOME": str(ctr.folder)}, capture_output=True, text=True
    )
    assert done.stderr == ""
    found = [word.split("\t")[0] for word in done.stdout.splitlines()]
    assert expected in found
    assert other is None or other not in found


@pytest.mark.parametrize("shell", SHELLS)
def test_names_of_instances(ctr: Ctr, path: str, shell: str) -> None:
    for name in ("web", "worker"):
        ctr("create", "builtin:busybox", name)
    done = subprocess.run(
        [*SHELLS[shell], "start", "w"],
        env={**ctr.env, "PATH": path, "HOME": str(ctr.folder)},
        capture_output=True,
        text=True,
    )
    assert {"web", "worker"} <= set(done.stdout.split())
    ctr("attach-device", "web", "full", "type=unix-char", "source=/dev/full", "path=/dev/mine")
    for verb, found in ((["detach-device"], "full\n"), (["config", "device", "get"], "eth0\nfull\nroot\n")):
        assert ctr("completion", "words", "--", *verb, "web", "").stdout == found
        assert ctr("completion", "words", "--", *verb, "nosuch", "").stdout == "\n"
    assert "source=\n" in ctr("completion", "words", "--", "config", "device", "set", "web", "full", "").stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_names_of_cdi_devices(ctr: Ctr, path: str, shell: str) -> None:
    put(ctr.folder / "cdi", "a.json", spec("vendor.example/class", "one", "two"))
    done = subprocess.run(
        [*SHELLS[shell], "cdi", "show", "vend"],
        env={**ctr.env, "PATH": path, "HOME": str(ctr.folder), "XDG_CONFIG_HOME": str(ctr.folder)},
        capture_output=True,
        text=True,
    )
    assert {"vendor.example/class=one", "vendor.example/class=two"} <= set(done.stdout.split())


def test_unknown_shell(ctr: Ctr) -> None:
    assert "`tcsh`" in ctr("completion", "tcsh", code=2).stderr
