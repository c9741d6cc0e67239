# SPDX-License-Identifier: GPL-3.0-or-later
"""One LXD and one Incus for all tests of this folder, started when the first of them asks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.daemons import Daemon, Incus, Lxd, Remote, started


@pytest.fixture(scope="package")
def servers() -> Iterator[dict[str, Daemon]]:
    scratch = Path(tempfile.mkdtemp(prefix="ctr-servers-", dir="/var/tmp"))
    with started((Lxd, Incus), scratch) as found:
        yield {daemon.kind: daemon for daemon in found}
    shutil.rmtree(scratch)


@pytest.fixture(params=["lxd", "incus"])
def daemon(request: pytest.FixtureRequest, servers: dict[str, Daemon]) -> Daemon:
    return servers[request.param]


@pytest.fixture
def bare(daemon: Daemon) -> Iterator[Remote]:
    """`ctrmgr` that sees a server and does not know it yet."""
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    runner = Remote(folder, daemon)
    yield runner
    runner.clean_up()
    shutil.rmtree(folder)


@pytest.fixture
def unix(bare: Remote) -> Remote:
    """It knows it as `host`, by its socket."""
    bare("remote", "add", "host", str(bare.daemon.socket))
    return bare


@pytest.fixture
def https(bare: Remote) -> Remote:
    """The same by https, trusted by a token."""
    bare("remote", "add", "host", "--token", bare.daemon.token(bare.folder.name))
    return bare
