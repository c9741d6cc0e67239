# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers that these tests start are seen by nobody else, and leave nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.conftest import same, settle
from tests.remote.daemons import Incus, Remote, cgroups, started


def test_a_server_comes_and_goes(host_snapshot: Callable[[], dict[str, object]]) -> None:
    settle()
    before, groups = host_snapshot(), cgroups()
    folder = Path(tempfile.mkdtemp(prefix="ctr-", dir="/var/tmp"))
    with started((Incus,), folder) as (daemon,):
        host = Remote(folder / "ours", daemon)
        host("remote", "add", "host", str(daemon.socket))
        host("launch", "tiny", "host:c1")
        host("attach-device", "host:c1", "/dev/fuse")
        same(before, host_snapshot(), besides=("cgroups", "programs"))
        host("delete", "--force", "host:c1")
    shutil.rmtree(folder)
    settle()
    same(before, host_snapshot())
    assert cgroups() == groups
