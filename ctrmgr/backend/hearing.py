# SPDX-License-Identifier: GPL-3.0-or-later
"""What plugins tell of the devices that instances have, for who watches: asked again and again, aside, for they may take their time. Cold."""

from __future__ import annotations

import os
import threading
import time

from ctrmgr import state
from ctrmgr.backend import happenings, held
from ctrmgr.backend.happenings import Happening

PAUSE = 5.0
"""Seconds between two questions."""


class Hearing:
    """Asks as long as some instance has a device that was chosen for it. `fd` is readable when there is an answer."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._next = 0.0
        self._asks = False
        self._answer: list[Happening] = []
        self._known = happenings.known()
        self._lock = threading.Lock()
        self._closed = False

    def due(self) -> list[float]:
        """When it is time to ask, if it will be."""
        return [] if self._asks or not self._wanted or not state.entries(held.folder()) else [self._next]

    def ask(self) -> None:
        """Ask, if it is time. Nobody waits for the answer."""
        if any(time.monotonic() >= when for when in self.due()):
            self._asks = True
            threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            self._answer = happenings.heard()[0]
        except Exception:  # a damaged file: the next look may be better
            self._answer = []
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def read(self) -> list[Happening]:
        """What is new: it is not over, and neither this nor `ctrmgr device events` has told it yet."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        self._asks, self._next = False, time.monotonic() + PAUSE
        now = {each.row: each for each in self._answer}
        known, self._known = self._known, set(now)
        return [each for row, each in now.items() if row not in known]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self.fd)
