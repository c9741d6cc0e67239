# SPDX-License-Identifier: GPL-3.0-or-later
"""The hot verbs import the standard library's cheap part and our own hot modules, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import trees
from tests.conftest import ROOT, Ctr

# What the interpreter itself has loaded by the time a script begins, and what may come on top.
CHEAP = {"errno", "fcntl", "posix", "stat", "time", "_socket", "struct", "_struct", "__future__"}
DUMP = """
import sys
before = set(sys.modules)
sys.path.insert(0, {root!r})
sys.argv = ["ctrmgr", *{words!r}]
import os
real = os.execve
def show(*_):
    print("\\n".join(["MODULES", *sorted(set(sys.modules) - before)]), file=sys.stderr)
def become(*arguments):
    show()
    sys.stderr.flush()
    real(*arguments)
os.execve = become
from ctrmgr.cli.main import main
code = main()
show()
sys.exit(code)
"""


def modules(ctr: Ctr, *words: str) -> set[str]:
    """The modules that a verb has imported, as the verb itself ended or became another program."""
    script = DUMP.format(root=str(ROOT), words=list(words))
    done = subprocess.run([sys.executable, "-I", "-c", script], env=ctr.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.partition("MODULES\n")[2].split())


@pytest.fixture
def running(ctr: Ctr) -> Ctr:
    ctr("launch", "builtin:busybox", "c1", "-p", "no-network")
    return ctr


def foreign(found: set[str]) -> set[str]:
    return {name for name in found if name != "ctrmgr" and not name.startswith("ctrmgr.")} - CHEAP


def test_launch_with_an_unchanged_profile(running: Ctr) -> None:
    assert foreign(modules(running, "launch", "builtin:busybox", "c2", "-p", "no-network")) == set()


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("exec", "c1", "--", "/bin/true"),
        ("attach-device", "c1", "fuse", "type=unix-char", "source=/dev/fuse"),
        ("stop", "c1"),
    ],
    ids=lambda words: words[0],
)
def test_hot_verb(running: Ctr, words: tuple[str, ...]) -> None:
    found = modules(running, *words)
    assert foreign(found) == set()
    assert "ctrmgr.cli.main" in found  # the test would see an import


def test_start_and_detach(running: Ctr) -> None:
    running("attach-device", "c1", "/dev/fuse")
    found = modules(running, "detach-device", "c1", "fuse")
    assert foreign(found) == set()
    assert not {"ctrmgr.backend.placement", "ctrmgr.plan.numa"} & found
    running("stop", "c1")
    assert foreign(modules(running, "start", "c1")) == set()


def test_the_packages_are_not_small_change(ctr: Ctr) -> None:
    """The check itself: a cold verb does import them."""
    assert {"pydantic", "yaml"} <= modules(ctr, "profile", "validate", str(Path(ROOT / "profiles/default.yaml")))


def test_resolving_drivers(tmp_path: Path) -> None:
    """All drivers but CDI's look at the machine with hot modules alone."""
    root = trees.unpack(tmp_path, "nvidia", "mlx5", "aic100", "usb", "disks")
    script = f"""
import sys
before = set(sys.modules)
sys.path.insert(0, {str(ROOT)!r})
from ctrmgr.devices import rows
for values in (
    {{"type": "gpu", "id": "1", "driver.capabilities": "none"}}, {{"type": "accel", "id": "1"}}, {{"type": "usb"}},
    {{"type": "infiniband", "id": "mlx5_0"}}, {{"type": "unix-hotplug", "subsystem": "tty"}}, {{"type": "unix-block", "source": "/dev/sdb"}},
):
    assert rows.rows("d", values, {root!r})
import ctrmgr.backend.leases, ctrmgr.host.libraries, ctrmgr.host.nvidia_files
print("\\n".join(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert foreign(set(done.stdout.split())) == set()


def test_verbs_on_servers(ctr: Ctr, tmp_path: Path) -> None:
    """They are compared with the servers' own clients, which are compiled: only C parts of the library on top, and little of ours."""
    for kind, url in (("near", f"unix://{tmp_path}/nobody"), ("far", "https://127.0.0.1:1")):
        (ctr.folder / "etc/servercerts").mkdir(parents=True, exist_ok=True)
        ctr.folder.joinpath("etc/remotes").write_text(f"remote\t{kind}\t{url}\tlxd\t\nend\n")
        ctr.folder.joinpath("etc/servercerts/far.crt").write_text(CERTIFICATE)
        for words in (
            ("launch", "image", f"{kind}:c1"),
            ("exec", f"{kind}:c1", "--", "true"),
            ("attach-device", f"{kind}:c1", "fuse", "type=unix-char", "source=/dev/fuse"),
            ("detach-device", f"{kind}:c1", "fuse"),
            ("list", f"{kind}:"),
            ("delete", "--force", f"{kind}:c1"),
        ):
            script = DUMP.format(root=str(ROOT), words=list(words))
            done = subprocess.run([sys.executable, "-I", "-c", script], env=ctr.env, capture_output=True, text=True)
            assert done.returncode == 6 and "cannot be reached" in done.stderr, (words, done.stderr)
            found = set(done.stderr.partition("MODULES\n")[2].split())
            assert foreign(found) - {"_json", "_signal", "_ssl", "binascii", "select"} == set(), words
            assert not {name for name in found if name.startswith(("ctrmgr.backend", "ctrmgr.plan", "ctrmgr.spec"))}, (
                words
            )


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
