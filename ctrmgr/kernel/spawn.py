# SPDX-License-Identifier: GPL-3.0-or-later
"""Native helpers are started here and nowhere else, with exactly the descriptors that they expect."""

from __future__ import annotations

import fcntl
import os

from ctrmgr import kernel
from ctrmgr.errors import HelperError
from ctrmgr.kernel import control, helper, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_FREE = 7
"""Descriptors are moved here and beyond before they are dealt out from 3 on, so that none is overwritten while dealing."""


QUESTION = -1
"""Instead of an errno: init does not run yet, and an answer is waited for."""


class Report:
    """What `ctrmgr-monitor` said: the pids of a running instance, or the step that failed and its errno."""

    __slots__ = ("detail", "error", "init_pid", "monitor_pid", "step")

    def __init__(self, packet: bytes) -> None:
        _, self.error, self.monitor_pid, self.init_pid, step, detail = control.REPORT.unpack_from(packet)
        self.step, self.detail = control.text(step), control.text(detail)


def monitor(verb: str, plan: str, instance: str, run: str, between: Callable[[int], None] | None = None) -> Report:
    """Run `ctrmgr-monitor start` or `clean` and wait for its report.

    `between` is called with init's pid when all is made and init does not run yet, if the plan has `host-hook` rows; what it raises is
    raised when everything is undone. Raises HelperError when it died without a report, OSError when a file or directory is missing.
    """
    path = helper.find("ctrmgr-monitor")
    read, write = os.pipe2(os.O_CLOEXEC) if between is None else _pair()
    opened = [write]
    try:
        opened += [os.open(plan, os.O_RDONLY | os.O_CLOEXEC)]
        opened += [os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for place in (instance, run)]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for fd in (*opened[1:], write)]
        opened += high
        actions = [(os.POSIX_SPAWN_DUP2, fd, 3 + index) for index, fd in enumerate(high)]
        environment = {"CTRMGR_DEBUG": "1"} if kernel.debug else {}
        say(f"spawn {path} {verb}")
        pid = os.posix_spawn(path, ["ctrmgr-monitor", verb], environment, file_actions=actions)
    finally:
        for fd in opened:
            os.close(fd)
    wrong: BaseException | None = None
    try:
        packet = os.read(read, control.REPORT.size)
        if between is not None and len(packet) == control.REPORT.size and Report(packet).error == QUESTION:
            try:
                between(Report(packet).init_pid)
                os.write(read, b"g")
            except BaseException as error:
                wrong = error
                os.write(read, b"n")
            packet = os.read(read, control.REPORT.size)
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    if wrong is not None:
        raise wrong
    if len(packet) != control.REPORT.size:
        raise HelperError("`ctrmgr-monitor` died before it could say why", hint="see the kernel's log")
    return Report(packet)


def _pair() -> tuple[int, int]:
    """A pipe whose reader can answer, in packets."""
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ours.detach(), theirs.detach()


def run(name: str, words: Sequence[str]) -> None:
    """Run a helper to its end. Raises HelperError with what it said on stderr."""
    _run(name, words, 2)


def ask(name: str, words: Sequence[str]) -> str:
    """What a helper says on stdout. Raises HelperError when it fails; why goes to stderr."""
    return _run(name, words, 1)


def _run(name: str, words: Sequence[str], heard: int) -> str:
    path = helper.find(name)
    read, write = os.pipe2(os.O_CLOEXEC)
    say(f"spawn {path} {' '.join(words)}")
    try:
        actions = [(os.POSIX_SPAWN_DUP2, write, heard)]
        pid = os.posix_spawn(path, [name, *words], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, file_actions=actions)
    finally:
        os.close(write)
    said = b""
    while block := os.read(read, 4096):
        said += block
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = said.decode(errors="replace").strip()
    if code:
        first = text.partition("\n")[0]
        raise HelperError(first.removeprefix("error: ") or f"`{name}` ended with {code}", operation=name)
    return text


def inside(run: str, words: Sequence[str], seconds: float) -> None:
    """Run `ctrmgr-hook` in the instance whose run directory is `run`, as its root. Raises HelperError with what it said."""
    import select

    path = helper.find("ctrmgr-exec")
    argv = ["ctrmgr-exec", "--control", f"{run}/control", "--no-tty", "--hook", "--", "ctrmgr-hook", *words]
    read, write = os.pipe2(os.O_CLOEXEC)
    say(f"spawn {' '.join(argv)}")
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Nothing of the caller's terminal: the instance's root can look at what its processes have open.
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, write, 2)]
        pid = os.posix_spawn(path, argv, {}, file_actions=actions)
    finally:
        os.close(write)
        os.close(null)
    said, poll = b"", select.poll()
    poll.register(read, select.POLLIN)
    while ready := poll.poll(seconds * 1000):
        block = os.read(read, 4096) if ready else b""
        if not block or len(said) > 1 << 16:
            break
        said += block
    else:
        os.kill(pid, 9)
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        first = said.decode(errors="replace").strip().partition("\n")[0]
        raise HelperError(first.removeprefix("error: ") or "it did not end in time", operation="ctrmgr-hook")
