# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on the PATH understands `exec` as the Python program does, or hands it over."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctrmgr.cli import command, exec
from ctrmgr.errors import CtrmgrError
from ctrmgr.kernel import helper
from tests.conftest import ROOT

SAY = "#!/bin/sh\nprintf '%s\\0' {} \"$@\"\n"
COMMAND = next(each for each in exec.COMMANDS if each.name == "exec")
VALUED = ("--user", "--group", "--cwd")


class Installed:
    """A prefix as pip makes it, with a Python program and a ctrmgr-exec that only say what they were given."""

    def __init__(self, folder: Path) -> None:
        libexec = folder / "lib/python3.11/site-packages/ctrmgr/_libexec"
        libexec.mkdir(parents=True)
        (folder / "bin").mkdir()
        self.front, self.run = libexec / "ctrmgr", folder / "run"
        shutil.copy(helper.find("ctrmgr"), self.front)
        for path, name in ((libexec / "ctrmgr-exec", "exec"), (folder / "bin/ctrmgr", "python")):
            path.write_text(SAY.format(name))
            path.chmod(0o755)
        (self.run / "c1").mkdir(parents=True)
        self.state = os.open(self.run / "c1/state", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.state, fcntl.LOCK_EX)

    def __call__(self, *words: str, **env: str) -> list[str]:
        given = {"PATH": os.environ["PATH"], "CTRMGR_RUN_DIR": str(self.run), **env}
        done = subprocess.run([self.front, *words], env=given, capture_output=True, check=True)
        return [word.decode(errors="surrogateescape") for word in done.stdout.split(b"\0")[:-1]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    made = Installed(tmp_path_factory.mktemp("prefix"))
    yield made
    os.close(made.state)


def meant(line: list[str]) -> tuple[dict[str, str], list[str], list[str], list[str]]:
    """The arguments of ctrmgr-exec, without the order of its options: the last one of a kind counts."""
    words = iter(line)
    last: dict[str, str] = {}
    env: dict[str, str] = {}
    flags = []
    for word in words:
        if word == "--":
            break
        if word in (*VALUED, "--control"):
            last[word] = next(words)
        elif word == "--env":
            key, _, value = next(words).partition("=")
            env[key] = value
        else:
            flags.append(word)
    return last, sorted(env.items()), flags, list(words)  # type: ignore[return-value]


WORD = st.sampled_from(
    ["c1", "c2", "r:c1", "ls", "--", "-", "-l", "-u", "-u0", "-u1:2", "--user", "--user=a", "--user=", "-g", "-gwheel", "--group=7",
     "-C", "--cwd=/tmp", "--env", "--env=A=1", "--env=A=2", "--env=B=x=y", "--env==1", "--env=A", "A=1", "-t", "-T", "-tT",
     "--tty", "--no-tty", "--tty=1", "--us", "--debug", "--dry-run", "-f", "json", "-q", "-h", "", "ä", "a b", "--user=--"]
)  # fmt: skip


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORD, max_size=7))
def test_any_line_means_what_python_says(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    said = installed("exec", *words)
    if said[0] == "python":
        assert said[1:] == ["exec", *words]
        return
    seen: list[list[str]] = []
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(installed.run))
    monkeypatch.setattr(helper, "become", lambda _name, line, _env: seen.append(list(line)))
    exec.run_exec(command.parse(COMMAND, words))
    assert meant(said[1:]) == meant(seen[0])


def test_what_everybody_writes_needs_no_python(installed: Installed) -> None:
    control = ["exec", "--control", f"{installed.run}/c1/control"]
    assert installed("exec", "c1", "ls", "-l", "--", "x") == [*control, "--", "ls", "-l", "--", "x"]
    assert installed("exec", "c1", "--", "ls") == [*control, "--", "ls"]
    line = installed("exec", "-u", "build", "-gwheel", "--cwd=/src", "c1", "--env", "A=b=c", "-T", "--", "make")
    assert line == [
        *control,
        "--user",
        "build",
        "--group",
        "wheel",
        "--cwd",
        "/src",
        "--env",
        "A=b=c",
        "--no-tty",
        "--",
        "make",
    ]


@pytest.mark.parametrize(
    "words",
    [(), ("list",), ("exec",), ("exec", "c1"), ("exec", "c2", "ls"), ("exec", "c1", "--help"), ("exec", "host:c1", "ls"),
     ("exec", "c1", "--tty", "--no-tty", "ls"), ("exec", "--debug", "c1", "ls"), ("shell", "c1"),
     ("exec", "-u", "1000:1000", "c1", "ls")],
)  # fmt: skip
def test_all_else_is_pythons(installed: Installed, words: tuple[str, ...]) -> None:
    assert installed(*words) == ["python", *words]


def test_ctrl_c_while_python_starts(tmp_path: Path) -> None:
    """It is held back, and heard by our own code: no traceback, whenever it comes."""
    made = Installed(tmp_path)
    program = tmp_path / "bin/ctrmgr"
    program.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\nos.kill(os.getpid(), 2)\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from ctrmgr.cli.main import program\nprogram()\n"
    )
    done = subprocess.run([made.front, "list"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    os.close(made.state)


def test_an_instance_whose_monitor_is_gone(installed: Installed) -> None:
    (installed.run / "dead").mkdir()
    (installed.run / "dead/state").touch()
    assert installed("exec", "dead", "ls")[0] == "python"
    assert installed("exec", "c1", "ls", CTRMGR_RUN_DIR="relative")[0] == "python"
    assert installed("exec", "c1", "ls", CTRMGR_LIBEXEC="/elsewhere")[0] == "python"


def test_a_broken_installation_says_so(tmp_path: Path) -> None:
    made = Installed(tmp_path)
    os.close(made.state)
    (tmp_path / "bin/ctrmgr").unlink()
    done = subprocess.run([made.front, "list"], capture_output=True, text=True)
    assert done.returncode == 7
    assert f"{tmp_path}/bin/ctrmgr`" in done.stderr
    (tmp_path / "bin/ctrmgr").symlink_to(made.front)
    assert subprocess.run([made.front, "list"], capture_output=True, timeout=10).returncode == 7, "not itself for ever"


def test_python_refuses_what_it_gets(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that the front hands over because they are wrong are wrong there, too."""
    monkeypatch.setenv("CTRMGR_RUN_DIR", str(installed.run))
    for words in (["c1", "--env=A", "ls"], ["c1", "--tty", "--no-tty", "ls"], ["c1"], ["c1", "--us", "ls"]):
        with pytest.raises(CtrmgrError):
            exec.run_exec(command.parse(COMMAND, words))
