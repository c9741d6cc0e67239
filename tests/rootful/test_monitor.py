# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that stays with an instance: what it costs, what it records, and how it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.conftest import ROOT, Ctr, build

LAUNCH = ("launch", "builtin:busybox", "-p", "no-network")
FUSE = "/dev/fuse"
PRIVATE_KB = 100


def state(ctr: Ctr, name: str = "c1") -> dict[str, str]:
    """What the monitor says of itself: pids, start time, `frozen`."""
    return dict(line.split("\t") for line in (ctr.folder / f"run/{name}/state").read_text().splitlines())


def private_kb(pid: str) -> int:
    """What would be free if this process had never been: neither program text nor files are its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def test_memory(ctr: Ctr) -> None:
    """Two, so that what they share is seen to be shared: as they start, and after they have done all that they can."""
    ctr.env["CTRMGR_LIBEXEC"] = str(build(ROOT / "build" / "test"))  # sanitizers have memory of their own
    names = ("c1", "c2")
    for name in names:
        ctr(*LAUNCH, name)
    fresh = {name: private_kb(state(ctr, name)["monitor"]) for name in names}
    assert all(0 < kb <= PRIVATE_KB for kb in fresh.values()), fresh
    for name in names:
        ctr("attach-device", name, FUSE, "uid=user", "gid=render")
        hold = ("exec", name, "--", "sh", "-c", f"exec 3<{FUSE}; echo ready; exec sleep 100")
        holder = ctr.popen(*hold, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert "sleep" in ctr("detach-device", name, "fuse", "--holders=kill").stderr
        assert holder.wait(10) == 128 + 9
        holder.stdout.close()
        ctr("freeze", name)
        ctr("unfreeze", name)
        ctr("config", "set", name, "limits.processes=100")
        ctr("exec", name, "--", "sh", "-c", "seq 10000 > /dev/console")
    used = {name: private_kb(state(ctr, name)["monitor"]) for name in names}
    assert all(0 < kb <= PRIVATE_KB for kb in used.values()), used
