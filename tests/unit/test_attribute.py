# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written to files of sysfs and the like."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrmgr.errors import ConflictError, HostError, UnsupportedError
from ctrmgr.kernel import attribute


def test_the_kernel_refuses(tmp_path: Path) -> None:
    """What comes of the errors of a write."""
    with pytest.raises(UnsupportedError, match="No such file"):
        attribute.write(f"{tmp_path}/nothing", "1")
    with pytest.raises(ConflictError, match="No space left on device"):
        attribute.write("/dev/full", "1")
    with pytest.raises(HostError, match="Is a directory"):
        attribute.write(str(tmp_path), "1")
