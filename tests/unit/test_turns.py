# SPDX-License-Identifier: GPL-3.0-or-later
"""How the tests share the host: those that look at all of it have it for themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import on_the_host

SOON = 0.05


def test_together_alone_and_not_overtaken(tmp_path: Path) -> None:
    """Locks of files are of who opened them: threads do for processes."""
    order: list[str] = []

    def visit(name: str, alone: bool) -> tuple[threading.Event, Callable[[], None]]:
        inside, leave = threading.Event(), threading.Event()

        def stay() -> None:
            with on_the_host(alone, tmp_path):
                order.append(name)
                inside.set()
                assert leave.wait(10)

        done = pool.submit(stay)
        return inside, lambda: (leave.set(), done.result(10))[1]

    with ThreadPoolExecutor(8) as pool:
        first, end_first = visit("first", False)
        assert first.wait(10)
        second, end_second = visit("second", False)
        assert second.wait(10), "what looks at nothing is beside each other"
        alone, end_alone = visit("alone", True)
        assert not alone.wait(SOON)
        late, end_late = visit("late", False)
        assert not late.wait(SOON), "who waits to be alone is not overtaken"
        end_first()
        assert not alone.wait(SOON)
        end_second()
        assert alone.wait(10)
        assert not late.wait(SOON)
        end_alone()
        assert late.wait(10)
        end_late()
    assert order == ["first", "second", "alone", "late"]
