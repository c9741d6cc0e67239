# SPDX-License-Identifier: GPL-3.0-or-later
"""A terminal that shows one picture at a time, redrawn in place: resizes, keys, and an end that leaves it as it was."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
BOLD, REVERSE, RED, YELLOW, PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCHED = (*ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class EndedError(Exception):
    """A signal that ends programs came; `number` is which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Screen:
    """The terminal of stdin and stdout, for as long as the `with` block runs."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._kept = termios.tcgetattr(self._input)
        self._reader, self._writer = -1, -1
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Screen:
        # Signals become bytes in a pipe: `select` sees them beside the keys, and none is lost between two of its calls.
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _note) for number in WATCHED}
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
        except OSError:
            pass  # the terminal has gone away
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._reader)
        os.close(self._writer)

    def _begin(self) -> None:
        tty.setcbreak(self._input)
        self._write(ENTER)

    def _end(self) -> None:
        self._write(LEAVE)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._kept)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._output, data) :]

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = os.get_terminal_size(self._output)
        return max(1, size.columns), max(1, size.lines)

    def show(self, lines: Sequence[str]) -> None:
        """Draw `lines`, which may hold colours and must fit; what is below them is cleared. In one write, so that it does not
        flicker."""
        _, height = self.size()
        drawn = "".join(f"\x1b[{row};1H{line}{PLAIN}\x1b[K" for row, line in enumerate(lines[:height], 1))
        self._write(f"{drawn}\x1b[J" if len(lines) < height else drawn)

    def wait(self, seconds: float) -> str:
        """The next key; `resize` when it has another size; "" when `seconds` have gone by. Raises EndedError."""
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self._input, self._reader], [], [], max(0.0, until - time.monotonic()))
            if self._reader in ready:
                word = self._signals()
                if word:
                    return word
            if self._input in ready:
                data = os.read(self._input, 64)
                if not data:
                    raise EndedError(signal.SIGHUP)
                return "" if data[:1] == b"\x1b" and len(data) > 1 else data[:1].decode(errors="replace")
            if not ready:
                return ""

    def _signals(self) -> str:
        found = ""
        for number in os.read(self._reader, 256):
            if number in ENDING:
                raise EndedError(number)
            if number == signal.SIGTSTP:
                self._suspend()
            found = "resize"
        return found

    def _suspend(self) -> None:
        """Ctrl-Z: the terminal is the shell's until it wakes us again."""
        self._end()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _note)
        self._begin()


def _note(number: int, frame: FrameType | None) -> None:
    """The pipe has it already."""
