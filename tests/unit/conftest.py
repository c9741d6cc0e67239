# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests that touch nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import trees

# A machine that is busy is slow, and that is no property of what is tested.
settings.register_profile("ctrmgr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ctrmgr")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., str]:
    """Unpack trees, each call into a root of its own."""
    count = iter(range(1000))

    def unpack(*names: str, change: Callable[[str], str] = str) -> str:
        return trees.unpack(tmp_path / str(next(count)), *names, change=change)

    return unpack
