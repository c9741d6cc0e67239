# SPDX-License-Identifier: GPL-3.0-or-later
"""The README's two commands on a machine that has nothing: a minimal root of each suite, made for this test.

The first command runs whole. Of the second, everything that it installs, and the unit tests and some tests with real
namespaces: the rest is what the surrounding run is doing anyway.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.images import build
from tests.conftest import ROOT

ENTER = Path(__file__).with_name("enter.sh")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""This machine's authorities: its mirrors may be signed by one of its own."""

SELECTION = (
    "tests/unit/test_spec.py",
    "tests/unit/test_plan.py",
    "tests/unit/test_remote_tls.py",
    "tests/unit/test_remote_wire.py",
    "tests/rootful/test_seccomp.py",
)
"""Also what stands on the inside of the interpreter, which is another one in each suite."""


def pip_environment() -> dict[str, str]:
    """How this machine's pip reaches its index."""
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True).stdout
    found = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.endswith("_proxy")}
    for line in listed.splitlines():
        scope, _, value = line.partition("=")
        name = scope.partition(".")[2].replace("-", "_").upper()
        found.setdefault(f"PIP_{name}", value.strip("'").replace("\\n", " "))
    found["PIP_CACHE_DIR"] = str(cache())
    if BUNDLE.exists():
        found["PIP_CERT"] = found["SSL_CERT_FILE"] = "/etc/authorities.crt"
    return found


def cache() -> Path:
    path = ROOT / "build/pip-cache"
    path.mkdir(parents=True, exist_ok=True)
    return path


def local_folders(env: dict[str, str]) -> list[Path]:
    """Folders of this machine that the package clients look into."""
    words = " ".join(env.values()).replace("file://", "").split()
    found = {Path(word) for word in words if re.fullmatch(r"/[\w./-]+", word)}
    # an index's files lie beside its pages
    return sorted(path.parent if path.name == "simple" else path for path in found if path.is_dir())


def readme_commands() -> tuple[str, str]:
    """The two: each the only line of a block below that heading."""
    section = (ROOT / "README.md").read_text().partition("\n## Two commands\n")[2].partition("\n## ")[0]
    install, test = re.findall(r"^```\n(.+)\n```$", section, re.M)
    return install, test


class Root:
    """A root directory of `suite`, with this clone in /src."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.folder = folder
        sources = build._sources(build.DISTRIBUTIONS["debian"], "debian", suite)
        options = [word for word in build._apt_options() if word.startswith("--aptopt=")]
        # nothing of it must outlive a power cut
        options.append("--dpkgopt=force-unsafe-io")
        command = ["mmdebstrap", "--variant=minbase", "--mode=root", *options, suite, str(folder), *sources]
        subprocess.run(command, check=True, capture_output=True)
        # nobody looks for a manual page in it
        quiet = ["chroot", str(folder), "debconf-set-selections"]
        subprocess.run(quiet, input=b"man-db man-db/auto-update boolean false\n", check=True)
        if BUNDLE.exists():
            shutil.copy(BUNDLE, folder / "etc/authorities.crt")
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        shutil.copy("/etc/hosts", folder / "etc/hosts")
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(folder / "src")], check=True)

    def run(self, *command: str) -> str:
        env = pip_environment()
        env |= {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
        }
        env["CTRMGR_CGROUP_PARENT"] = f"ctrmgr-test-cleanroot-{os.getpid()}"
        env["CTRMGR_MUST_WORK"] = "1"
        binds = [word for path in local_folders(env) for word in ("--bind", str(path))]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        done = subprocess.run(
            [*unshare, str(ENTER), str(self.folder), *binds, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


def drop_bridge() -> None:
    """The clean root shares our network: its bridge goes with it."""
    subprocess.run(["ip", "link", "delete", "ctrbr0"], capture_output=True)
    subprocess.run(["nft", "delete", "table", "inet", "ctrmgr-ctrbr0"], capture_output=True)


@pytest.fixture
def bridge() -> Iterator[None]:
    drop_bridge()
    yield
    drop_bridge()


NEEDED = 10 << 20
"""kB: a root with all that is installed has 3 GB, and a build beside it wants some, too."""


@contextlib.contextmanager
def in_memory(folder: Path) -> Iterator[None]:
    """Where there is enough of it, what is there for minutes need not be written to a disk."""
    if int(re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[0]) < NEEDED:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={NEEDED}k", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_both_commands(suite: str, tmp_path: Path, bridge: None) -> None:
    tmp_path.chmod(0o755)
    with in_memory(tmp_path):
        both_commands(suite, tmp_path / suite)


def both_commands(suite: str, folder: Path) -> None:
    root = Root(suite, folder)
    try:
        install, test = readme_commands()
        said = root.run(install)
        assert "ctrmgr works here" in said
        assert "the first sector of a real block device" in said
        assert re.search(r"crw-rw---- +1 user +render", said)
        again = root.run(install)  # safe to run twice
        assert "installing packages" not in again
        tested = root.run(test, "-q", *SELECTION)
        assert re.search(r"\d+ passed", tested.splitlines()[-1])
    finally:
        for parent in glob.glob(f"/sys/fs/cgroup/**/ctrmgr-test-cleanroot-{os.getpid()}", recursive=True):
            os.rmdir(parent)
        shutil.rmtree(folder, ignore_errors=True)
