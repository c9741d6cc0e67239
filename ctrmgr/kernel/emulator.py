# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr-tpm`, which keeps an emulated TPM: begun in two steps, so that it is known before it does anything, and ended. Cold."""

from __future__ import annotations

import os
import select
import signal

from ctrmgr.errors import HelperError
from ctrmgr.kernel import helper, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "ctrmgr-tpm"
SECONDS = 60.0
"""More than it gives itself."""
GRACE = 5.0


class Emulator:
    """One that waits to be told to go on. `key` is what it is known by later: its pid, and when it began."""

    __slots__ = ("_ears", "_heard", "_mouth", "key")

    def __init__(self, words: Sequence[str], log: int) -> None:
        """Raises HelperError."""
        path = helper.find(NAME)
        listens, self._mouth = os.pipe2(os.O_CLOEXEC)
        self._ears, speaks = os.pipe2(os.O_CLOEXEC)
        self._heard = b""
        try:
            actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((listens, speaks, log))]
            say(f"spawn {path} {' '.join(words)}")
            pid = os.posix_spawn(path, [NAME, *words], {}, file_actions=actions)
        finally:
            os.close(listens)
            os.close(speaks)
        os.waitpid(pid, 0)  # what it left behind is nobody's child
        try:
            number = self._line().removeprefix("pid ")
        except HelperError:
            self.close()
            raise
        self.key = f"{number} {_began(int(number))}"

    def go(self) -> list[str]:
        """Have it make the TPM; what it is as nodes of the host. Raises HelperError."""
        os.write(self._mouth, b"g")
        word, *nodes = self._line().split()
        if word != "made":
            raise HelperError(" ".join(nodes), operation=NAME)
        return nodes

    def close(self) -> None:
        """One that has not been told to go on ends by that."""
        os.close(self._mouth)
        os.close(self._ears)

    def _line(self) -> str:
        poll = select.poll()
        poll.register(self._ears, select.POLLIN)
        while b"\n" not in self._heard:
            block = os.read(self._ears, 4096) if poll.poll(SECONDS * 1000) else b""
            if not block:
                raise HelperError("it ended before the TPM could be used", operation=NAME)
            self._heard += block
        line, _, self._heard = self._heard.partition(b"\n")
        text = line.decode(errors="replace")
        if text.startswith("failed "):
            raise HelperError(text.removeprefix("failed "), operation=NAME)
        return text


def lives(key: str) -> bool:
    """Whether it has not ended."""
    pid, _, began = key.partition(" ")
    return bool(began) and _began(int(pid)) == began


def end(key: str) -> None:
    """End it, and wait until it has. Raises HelperError when it does not."""
    if not lives(key):
        return
    try:
        fd = os.pidfd_open(int(key.partition(" ")[0]))
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not lives(key):
                return  # another has its number now
            signal.pidfd_send_signal(fd, number)
            if poll.poll(GRACE * 1000):
                return
    except ProcessLookupError:
        return
    finally:
        os.close(fd)
    raise HelperError(f"`{NAME}` ({key.partition(' ')[0]}) does not end", operation=NAME)


def _began(pid: int) -> str:
    """When a process of that number began, in ticks since the boot; "" when there is none of this name, or it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return ""
    words = rest.split()
    return words[19] if head.endswith(f"({NAME}") and words[0] not in "ZX" else ""
