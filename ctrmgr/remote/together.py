# SPDX-License-Identifier: GPL-3.0-or-later
"""Several servers asked at the same time: it takes as long as the slowest of them."""

from __future__ import annotations

from ctrmgr.errors import CtrmgrError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

AT_ONCE = 64


def together(calls: Mapping[str, Callable[[], T]]) -> dict[str, T | CtrmgrError]:
    """What each call has returned, or the error that it has raised. One alone needs no threads, whose import is not cheap."""

    def told(call: Callable[[], T]) -> T | CtrmgrError:
        try:
            return call()
        except CtrmgrError as error:
            return error

    if len(calls) < 2:
        return {name: told(call) for name, call in calls.items()}
    from threading import Thread

    found: dict[str, T | CtrmgrError] = {}
    bugs: list[BaseException] = []
    left = iter(list(calls.items()))

    def work() -> None:
        try:
            for name, call in left:
                found[name] = told(call)
        except BaseException as error:
            bugs.append(error)

    threads = [Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(calls)))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if bugs:
        raise bugs[0]
    return found
