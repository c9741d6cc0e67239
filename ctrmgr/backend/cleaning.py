# SPDX-License-Identifier: GPL-3.0-or-later
"""What a dead monitor has left, killed and removed by a helper. Cold."""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import record
from ctrmgr.kernel import spawn


def clean(name: str, run: str) -> spawn.Report:
    """Ask a helper to kill and remove what a dead monitor has left."""
    home = record.home(name)
    try:
        report = spawn.monitor("clean", f"{home}/plan", home, run)
        if report.step != "read the plan":
            return report
    except FileNotFoundError:
        pass
    # The plan is lost or damaged, and what ran must end all the same: its cgroups have its name in every hierarchy.
    from ctrmgr.host import cgroup

    rows = [["ctrmgr-plan", "1"], ["name", name], ["cgroup", f"{state.cgroup_parent()}/{name}"], ["init", "builtin"],
            ["layer", "/"], ["uidmap", "0", "1", "1"], ["gidmap", "0", "1", "1"]]  # fmt: skip
    rows += [["cgroup-file", controller, "none", ""] for controller in cgroup.read().v1]
    fd = os.memfd_create("plan")
    try:
        os.write(fd, state.dump_flat(rows))
        return spawn.monitor("clean", f"/proc/self/fd/{fd}", home if os.path.isdir(home) else run, run)
    finally:
        os.close(fd)
