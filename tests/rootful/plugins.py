# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugins of docs/examples, for the tests that use them."""

from __future__ import annotations

import atexit
import os
import shutil
from pathlib import Path

from tests.conftest import ROOT, Ctr

EXAMPLES = ROOT / "docs/examples/plugins"
SLICES = Path(f"/run/demo-scratch-{os.getpid()}")
"""Not where the example has them: whoever else tests on this machine is not another user of the same card."""
atexit.register(shutil.rmtree, SLICES, ignore_errors=True)


def install_noise(ctr: Ctr) -> Path:
    """A plugin of one file."""
    folder = ctr.folder / "etc/devices.d"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo-noise.py"
    shutil.copy(EXAMPLES / "demo-noise.py", path)
    path.chmod(0o644)
    return path


def install_scratch(ctr: Ctr) -> None:
    """A plugin of a package: what pip would make of it."""
    site = ctr.folder / "site"
    info = site / "demo_scratch-1.0.dist-info"
    info.mkdir(parents=True)
    code = (EXAMPLES / "demo-scratch/demo_scratch.py").read_text()
    (site / "demo_scratch.py").write_text(code.replace('"/run/demo-scratch"', f'"{SLICES}"'))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-scratch\nVersion: 1.0\n")
    text = (EXAMPLES / "demo-scratch/pyproject.toml").read_text()
    entry = text.partition('[project.entry-points."ctrmgr.devices.v1"]\n')[2].partition("\n")[0].replace('"', "")
    (info / "entry_points.txt").write_text(f"[ctrmgr.devices.v1]\n{entry}\n")
    ctr.env["PYTHONPATH"] += f"{os.pathsep}{site}"


def slices() -> dict[str, str]:
    """What demo-scratch has made: the id of the allocation to the loop device, "" where there is none."""
    found = dict.fromkeys(os.listdir(SLICES), "") if SLICES.exists() else {}
    for disk in Path("/sys/block").glob("loop*"):
        try:
            file = (disk / "loop/backing_file").read_text().strip()
        except OSError:
            continue
        if file.startswith(f"{SLICES}/"):
            found[file.rpartition("/")[2].removesuffix(" (deleted)")] = disk.name
    return found
