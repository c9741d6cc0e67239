# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests that touch nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import trees


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., str]:
    """Unpack trees, each call into a root of its own."""
    count = iter(range(1000))

    def unpack(*names: str, change: Callable[[str], str] = str) -> str:
        return trees.unpack(tmp_path / str(next(count)), *names, change=change)

    return unpack
