# SPDX-License-Identifier: GPL-3.0-or-later
"""One LXD and one Incus for all tests of this folder, started when the first of them asks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.daemons import Daemon, Incus, Known, Lxd, Remote, knowing, started
from tests.remote.middle import Middle


@pytest.fixture(scope="package")
def servers() -> Iterator[dict[str, Daemon]]:
    scratch = Path(tempfile.mkdtemp(prefix="ctr-servers-", dir="/var/tmp"))
    with started((Lxd, Incus), scratch) as found:
        yield {daemon.kind: daemon for daemon in found}
    shutil.rmtree(scratch)


@pytest.fixture(params=["lxd", "incus"])
def daemon(request: pytest.FixtureRequest, servers: dict[str, Daemon]) -> Daemon:
    return servers[request.param].alive()


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


@pytest.fixture
def both(servers: dict[str, Daemon]) -> Iterator[Known]:
    """A `ctrmgr` that knows the two servers by their sockets, as `lxd` and `incus`."""
    with knowing(servers) as found:
        yield found


@pytest.fixture
def middle(unix: Remote) -> Iterator[Middle]:
    """`far` is the server behind it; `host` is the same without."""
    path = unix.folder / "far.sock"
    found = Middle(path, unix.daemon.socket)
    unix("remote", "add", "far", str(path))
    yield found
    found.close()
