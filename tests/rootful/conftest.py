# SPDX-License-Identifier: GPL-3.0-or-later
"""The privileged table, for those who ask it for what it must refuse; and a disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rootful.double import cgroup2
from tests.rootful.table import OWNER, Opened, Table


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """A real block device, of a file of zeros."""
    file = tmp_path / "disk"
    with file.open("wb") as stream:
        stream.truncate(1 << 20)
    loop = subprocess.check_output(["losetup", "--find", "--show", file], text=True).strip()
    yield loop
    subprocess.run(["losetup", "--detach", loop], check=True)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(tmp_path_factory.mktemp("table"))


@pytest.fixture
def opened() -> Iterator[Opened]:
    # pytest's own folder is closed to the ids of an instance
    folder = Path(tempfile.mkdtemp(prefix="ctrmgr-table-", dir="/var/tmp"))
    folder.chmod(0o755)
    found = Opened(folder)
    yield found
    for fd in found.fds:
        os.close(fd)
    shutil.rmtree(folder)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A /dev as an instance has it: not host root's."""
    place = tmp_path / "dev"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={OWNER},gid={OWNER},mode=755", "dev", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    folder = cgroup2() / f"ctrmgr-test-table-{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()
