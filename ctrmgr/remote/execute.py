# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands in a remote instance: standard streams, a terminal, signals and the exit code, over the server's websockets.

One loop, no threads. It ends when every stream of output has ended and the server has told the exit code, and not before: nothing
is cut off.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the library's own makes enums of it
import os
import select
import time

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError
from ctrmgr.remote import instances
from ctrmgr.remote.body import dumps
from ctrmgr.remote.server import OperationError, Server, quoted
from ctrmgr.remote.websocket import BINARY, TEXT, WebSocket
from ctrmgr.remote.wire import BLOCK, GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

FORWARDED = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT")
BACKLOG = 1 << 20
"""Bytes of input that may wait for a server; then standard input is not read."""


class Streams:
    """Where input comes from and output goes: descriptors, or (for programs) bytes in and two buffers."""

    def __init__(self, stdin: int = 0, write: Callable[[int, bytes], None] | None = None) -> None:
        self.stdin = stdin
        self.write = write or write_all


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def run(
    server: Server,
    name: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    uid: int = 0,
    gid: int = 0,
    cwd: str = "",
    tty: bool = False,
    streams: Streams | None = None,
) -> int:
    """Run a command to its end; returns its exit code, 128+n after signal n, 127 and 126 as shells do.

    Raises NotFoundError, ConflictError when the instance is not running, BackendError.
    """
    width, height = _size() if tty else (0, 0)
    asked: dict[str, Any] = {
        "command": list(command),
        "environment": dict(env),
        "wait-for-websocket": True,
        "interactive": tty,
        "user": uid,
        "group": gid,
        "cwd": cwd,
    }
    if tty:
        asked |= {"width": width, "height": height}
    found = server.decoded(server.send("POST", f"/instances/{quoted(name)}/exec", asked))
    operation = str(found["id"])
    secrets: dict[str, str] = found["metadata"]["fds"]
    sockets: dict[str, WebSocket] = {}
    running = False
    try:
        _open(server, operation, secrets, sockets)
        running = True
        with _Signals(tty) as signals:
            if tty:
                with _Raw():
                    _Loop(sockets, signals, streams or Streams(), tty).go()
            else:
                _Loop(sockets, signals, streams or Streams(), tty).go()
        return exit_code(server, operation, command[0])
    except BaseException:
        # Whoever ran us is not to find the command still running: without its streams the server ends it.
        if not running:
            server.cancel(operation)
        raise
    finally:
        for each in sockets.values():
            each.drop()


def _open(server: Server, operation: str, secrets: Mapping[str, str], sockets: dict[str, WebSocket]) -> None:
    """The websockets of an operation by their names. Raises BackendError, GoneError; then some of them may be there."""

    def ask(key: str) -> WebSocket:
        sockets[key] = WebSocket(
            server.target, server.url(f"/operations/{operation}/websocket", {"secret": secrets[key]})
        )
        return sockets[key]

    # A command begins when its streams are there, and may be done before `control` is if that comes last.
    if "control" in secrets:
        ask("control").opened()
    for each in [ask(key) for key in secrets if key != "control"]:
        each.opened()


def exit_code(server: Server, operation: str, program: str) -> int:
    """Wait for the end of the operation."""
    try:
        done = server.wait(operation)
    except OperationError as error:
        reason = error.reason.lower()
        if "not found" in reason or "no such file" in reason:
            raise NotRunError(f"run `{program}`: No such file or directory", 127) from None
        if "not executable" in reason or "permission denied" in reason:
            raise NotRunError(f"run `{program}`: Permission denied", 126) from None
        raise
    return int(done["metadata"]["return"])


class NotRunError(CtrmgrError):
    """The command could not be begun: 127 when there is none, 126 when it is no program."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


def refuse_if_stopped(server: Server, name: str) -> None:
    """Raises ConflictError with the local words for it."""
    status, label = instances.get(server, name)["status"], instances.label(server, name)
    if status == "Frozen":
        raise ConflictError(f"`{label}` is frozen", hint=f"ctrmgr unfreeze {label}")
    if status != "Running":
        raise not_running(server, name)


def not_running(server: Server, name: str) -> ConflictError:
    label = instances.label(server, name)
    return ConflictError(f"`{label}` is not running", hint=f"ctrmgr start {label}")


def _size() -> tuple[int, int]:
    try:
        found = os.get_terminal_size(1)
    except OSError:
        return 80, 24
    return found.columns, found.lines


class _Raw:
    """The terminal hands every key through, until the end whatever it is."""

    def __enter__(self) -> None:
        import termios
        import tty

        self.old: list[Any] | None = None
        if os.isatty(0):
            self.old = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)

    def __exit__(self, *_: object) -> None:
        import termios

        if self.old is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self.old)


class _Signals:
    """Signals for us, as bytes in a pipe that the loop reads."""

    def __init__(self, tty: bool) -> None:
        names = (*FORWARDED, "WINCH") if tty else FORWARDED
        self.numbers: list[int] = [getattr(signal, "SIG" + name) for name in names]

    def __enter__(self) -> _Signals:
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.old_fd = signal.set_wakeup_fd(self.write, warn_on_full_buffer=False)
        self.old = {number: signal.getsignal(number) for number in self.numbers}
        for number in self.numbers:
            if self.old[number] != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self.old_fd)
        os.close(self.read)
        os.close(self.write)

    def taken(self) -> list[int]:
        try:
            return [number for number in os.read(self.read, 64) if number in self.numbers]
        except BlockingIOError:
            return []


class _Loop:
    def __init__(self, sockets: dict[str, WebSocket], signals: _Signals, streams: Streams, tty: bool) -> None:
        self.control = sockets.get("control")
        self.input = sockets["0"]
        self.outputs = {self.input: 1} if tty else {sockets["1"]: 1, sockets["2"]: 2}
        self.signals, self.streams, self.tty = signals, streams, tty
        self.stdin_open = True
        self.dead: set[int] = set()
        """Descriptors of ours that nobody reads any more."""

    def go(self) -> None:
        """Until all output has come."""
        everything = {self.input, *self.outputs, *([self.control] if self.control else [])}
        while not self._over():
            poll = select.poll()
            busy = False
            for each in everything:
                if not each.ended:
                    poll.register(each.fileno(), select.POLLIN | (select.POLLOUT if each.out else 0))
                    busy = busy or each.more
            poll.register(self.signals.read, select.POLLIN)
            if self.stdin_open and len(self.input.out) < BACKLOG and self._listens():
                poll.register(self.streams.stdin, select.POLLIN)
            ready = dict(poll.poll(0 if busy else self._patience()))
            self._signals()
            if self.streams.stdin in ready and self.stdin_open:
                self._stdin()
            for each in everything:
                if not each.ended and (each.more or each.fileno() in ready):
                    self._receive(each)
                self._flush(each)

    def _over(self) -> bool:
        return all(each.ended for each in self.outputs)

    def _listens(self) -> bool:
        """Whether the other side takes input by now."""
        return True

    def _patience(self) -> int | None:
        """Milliseconds after which to look again although nothing has happened."""
        return None

    def _flush(self, each: WebSocket) -> None:
        try:
            each.flush()
        except GoneError:
            # A command that ends does not take what is still typed; whether it ended well the output's end says.
            each.out.clear()
            if each is self.input:
                self.stdin_open = False

    def _receive(self, each: WebSocket) -> None:
        fd = self.outputs.get(each)
        try:
            messages = each.feed()
        except GoneError:
            if fd is not None:
                raise
            each.ended = True  # input and control end as they like
            return
        for _, data in messages:
            if fd is None:
                continue
            if not data:
                # The server's mark for the end of a stream; its farewell comes with or after it.
                each.close()
                self._flush(each)
                each.ended = True
                break
            if fd not in self.dead:
                try:
                    self.streams.write(fd, data)
                except BrokenPipeError:
                    # as a pipe would: the command hears of it when it is told to end
                    self.dead.add(fd)
                    self._signal(signal.SIGPIPE)

    def _stdin(self) -> None:
        try:
            data = os.read(self.streams.stdin, BLOCK)
        except OSError:
            data = b""
        if data:
            self.input.send(BINARY, data)
        else:
            self.stdin_open = False
            if not self.tty:
                self.input.send(TEXT, b"")

    def _signals(self) -> None:
        for number in self.signals.taken():
            if number == signal.SIGWINCH:
                width, height = _size()
                self._say({"command": "window-resize", "args": {"width": str(width), "height": str(height)}})
            else:
                self._signal(number)

    def _signal(self, number: int) -> None:
        self._say({"command": "signal", "signal": number})

    def _say(self, words: dict[str, Any]) -> None:
        if self.control and not self.control.ended:
            self.control.send(TEXT, dumps(words).encode())
            self._flush(self.control)


ESCAPE, LEAVE = 1, ord("q")
"""Ctrl-a q leaves a console; ctrl-a ctrl-a is one ctrl-a."""


AWAKE_SECONDS, QUIET_SECONDS, SILENT_SECONDS = 0.5, 0.2, 2.0
"""A server throws away what comes before its own program is at the console, and what that has not read when we go."""
REFUSED, ENDED = b"Failed running forkconsole", b"is not running"
"""What LXD types when its own program could not get to the console; the instance may have been stopped just then."""
TAKEN = "somebody is at its console already"


class _Console(_Loop):
    """A console has no end of its own: whoever looks at it leaves, by the keys for it or when the input ends.

    What is typed by a program comes at once, and then its end: it is sent when somebody is there to read it, and the console shows it,
    unless it is a secret, before we go.
    """

    escaped = left = False
    heard = typed = 0.0

    def __init__(self, sockets: dict[str, WebSocket], signals: _Signals, streams: Streams) -> None:
        super().__init__(sockets, signals, streams, True)
        self.begun = time.monotonic()
        self.people = os.isatty(streams.stdin)

    @property
    def shown(self) -> bool:
        """Whether anything came after what was typed."""
        return self.people or self.heard >= self.typed

    def go(self) -> None:
        super().go()
        self.input.close()
        self._flush(self.input)

    def _over(self) -> bool:
        if super()._over():
            return True
        if not self.left or self.input.out:  # what was typed before is to get there
            return False
        now = time.monotonic()
        quiet = now - self.heard >= QUIET_SECONDS if self.shown else now - self.typed >= SILENT_SECONDS
        return self.people or not self.typed or quiet or now - self.typed >= SILENT_SECONDS

    def _listens(self) -> bool:
        return self.people or bool(self.heard) or time.monotonic() - self.begun >= AWAKE_SECONDS

    def _patience(self) -> int | None:
        return 50 if self.left or not self._listens() else None

    def _receive(self, each: WebSocket) -> None:
        if each is self.input:
            self.heard = time.monotonic()
        super()._receive(each)

    def _stdin(self) -> None:
        try:
            data = os.read(self.streams.stdin, BLOCK)
        except OSError:
            data = b""
        self.left = not data
        typed = bytearray()
        for byte in data:
            if self.escaped and byte == LEAVE:
                self.left = True
                break
            if byte == ESCAPE and not self.escaped:
                self.escaped = True
                continue
            if self.escaped and byte != ESCAPE:
                typed.append(ESCAPE)
            typed.append(byte)
            self.escaped = False
        if typed:
            self.typed = time.monotonic()
            self.input.send(BINARY, bytes(typed))
        if self.left:
            self.stdin_open = False


def console(server: Server, name: str, streams: Streams | None = None) -> bool:
    """Until it is left, the input ends, or the instance stops. False: the console has shown nothing after what a program has typed, and
    nobody knows whether it was read. Raises NotFoundError, ConflictError, BackendError."""
    width, height = _size()
    asked = {"width": width, "height": height, "type": "console"}
    streams = streams or Streams()
    write, refused = streams.write, b""

    def watched(fd: int, data: bytes) -> None:
        nonlocal refused
        refused = refused or (data if REFUSED in data else b"")
        if not refused:
            write(fd, data)

    try:
        found = server.decoded(server.send("POST", f"/instances/{quoted(name)}/console", asked))
    except BackendError as error:
        if "already connected" in error.message:
            raise ConflictError(TAKEN) from None
        raise
    operation = str(found["id"])
    secrets: dict[str, str] = found["metadata"]["fds"]
    sockets: dict[str, WebSocket] = {}
    try:
        _open(server, operation, secrets, sockets)
        with _Signals(True) as signals, _Raw():
            sitting = _Console(sockets, signals, Streams(streams.stdin, watched))
            sitting.go()
    finally:
        for each in sockets.values():
            each.drop()
    if refused and ENDED not in refused:
        raise ConflictError(TAKEN)
    return sitting.shown


def record(server: Server, name: str, command: Sequence[str]) -> int:
    """A command of our own that says nothing: without websockets, which takes half the time. Returns its exit code."""
    asked = {"command": list(command), "environment": {}, "wait-for-websocket": False, "interactive": False}
    try:
        done = server.change("POST", f"/instances/{quoted(name)}/exec", asked)
    except OperationError as error:
        raise BackendError(f"`{server.name}:{name}`: `{command[0]}` cannot be run: {error.reason}") from error
    return int(done["metadata"]["return"])
