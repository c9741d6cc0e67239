# SPDX-License-Identifier: GPL-3.0-or-later
"""One command of the whole machine at a time, whoever runs it: while it gives out what all users share. Cold."""

from __future__ import annotations

import time
from _thread import _local
from contextlib import contextmanager

from ctrmgr import state
from ctrmgr.errors import ConflictError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = "/sys/devices"
"""Everybody may open it, nobody can remove it, and no container has the host's: what is locked on it is locked on the machine."""
PATIENCE = 30.0
"""Seconds to wait for other commands."""

_own = _local()


@contextmanager
def taken() -> Iterator[None]:
    """Nobody else of this machine gives out parts or memory of devices meanwhile. Raises ConflictError when somebody is at it for too long,
    HostError without /sys."""
    if getattr(_own, "has_it", False):  # who has the lock may take it again
        yield
        return
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lock = state.Lock(LOCK, wait=False).__enter__()
            break
        except FileNotFoundError:
            raise HostError(
                f"`{LOCK}` is not there, and without it no other user is kept out", hint="mount /sys"
            ) from None
        except ConflictError:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"another command has been giving out parts or memory of devices for {PATIENCE:g} seconds",
                    hint=f"`fuser {LOCK}` says which",
                ) from None
            time.sleep(0.02)
    _own.has_it = True
    try:
        yield
    finally:
        _own.has_it = False
        lock.__exit__(None, None, None)
