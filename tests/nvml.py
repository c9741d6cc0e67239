# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's management library, as a machine without such a GPU can have it: see nvml.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path, *options: str) -> dict[str, str]:
    """Build it; returns the environment in which programs find it."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    subprocess.run(["gcc", *flags, *options, "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    (folder / "state").touch()
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_STATE": str(folder / "state")}
