# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr` on a host that has resctrl mounted where `RESCTRL` says."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from ctrmgr.host import sysfs

mounted = sysfs.rows
LINE = f"1 1 0:1 / {os.environ['RESCTRL']} rw - resctrl resctrl rw"
sysfs.rows = lambda path: [*mounted(path), LINE] if path == "/proc/self/mountinfo" else mounted(path)
runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/ctrmgr"), run_name="__main__")
