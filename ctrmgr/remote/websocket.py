# SPDX-License-Identifier: GPL-3.0-or-later
"""The client's side of RFC 6455 on a socket of `wire`, without threads: bytes in, frames out, frames in, bytes out."""

from __future__ import annotations

import binascii
import os

from ctrmgr.errors import BackendError
from ctrmgr.remote.wire import BLOCK, Connection, GoneError, Target, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.remote.wire import Socket

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PAYLOAD_MAX = 1 << 26


def masked(data: bytes, key: bytes) -> bytes:
    """A client's bytes go out masked; one big number is xored faster than bytes are."""
    size = len(data)
    stream = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(size)


def frame(kind: int, data: bytes) -> bytes:
    """One whole message."""
    size = len(data)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8)
    key = os.urandom(4)
    return head + key + masked(data, key)


class Frames:
    """Takes a stream apart into (kind, data). Messages in several frames are handed out frame by frame, of one kind."""

    def __init__(self, rest: bytes = b"") -> None:
        self.buffer = bytearray(rest)
        self.kind = BINARY

    def add(self, data: bytes) -> None:
        self.buffer += data

    def next(self) -> tuple[int, bytes] | None:
        """The next frame; None while it is not whole. Raises ValueError for what is none."""
        buffer = self.buffer
        if len(buffer) < 2:
            return None
        kind, size, start = buffer[0] & 15, buffer[1] & 127, 2
        if buffer[0] & 0x70 or buffer[1] & 0x80 or kind not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise ValueError("this is no websocket")
        if size >= 126:
            wide = 2 if size == 126 else 8
            if len(buffer) < 2 + wide:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + wide]), 2 + wide
        if size > PAYLOAD_MAX:
            raise ValueError("a frame is too large")
        if len(buffer) < start + size:
            return None
        data = bytes(buffer[start : start + size])
        del buffer[: start + size]
        if kind == CONTINUATION:
            return self.kind, data
        if kind in (TEXT, BINARY):
            self.kind = kind
        return kind, data


class WebSocket:
    """One websocket. `feed` reads what is there, `flush` writes what the other side takes; neither waits."""

    def __init__(self, target: Target, path: str) -> None:
        """It is asked for; `opened` waits until it is there."""
        self.target = target
        self.connection = connection = Connection(target)
        key = binascii.b2a_base64(os.urandom(16), newline=False).decode()
        connection.ask(
            "GET",
            path,
            headers={
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": key,
                "Sec-WebSocket-Version": "13",
            },
        )
        assert connection.socket
        self.socket: Socket = connection.socket
        self.frames = Frames()
        self.out = bytearray()
        self.ended = False
        """The other side has said its last."""
        self.closing = False
        self.more = False
        """`feed` has stopped although there was more, which `poll` may not see: TLS has it already."""

    def opened(self) -> WebSocket:
        """Raises BackendError, GoneError."""
        head, body = self.connection.answer("GET")
        if head[0] != 101:
            reason = b"".join(body)[:200].decode(errors="replace")
            self.drop()
            raise BackendError(f"`{self.target.name}` opens no websocket: {reason or head[0]}")
        self.socket.setblocking(False)
        self.frames.add(self.connection.rest)
        return self

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, kind: int, data: bytes) -> None:
        """Queue one message."""
        if not self.closing:
            self.out += frame(kind, data)

    def close(self) -> None:
        """Say that we are done; the socket stays until the other side has answered or `drop`."""
        if not self.closing:
            self.out += frame(CLOSE, (1000).to_bytes(2))
            self.closing = True

    def drop(self) -> None:
        self.socket.close()

    def _again(self) -> tuple[type[OSError], ...]:
        """What the socket says when it would have to wait."""
        if self.target.path:
            return (BlockingIOError,)
        from ctrmgr.remote import tls

        return tls.AGAIN

    def flush(self) -> None:
        """Raises GoneError."""
        again = self._again()
        while self.out:
            try:
                del self.out[: self.socket.send(self.out)]
            except again:
                return
            except OSError as error:
                if self.ended or self.closing:
                    self.out.clear()
                    return
                raise self._gone(error) from error

    def feed(self) -> list[tuple[int, bytes]]:
        """The messages that have come. Raises GoneError when the connection ends without a farewell."""
        taken, again = 0, self._again()
        while not self.ended and taken < BLOCK * 16:
            try:
                block = self.socket.recv(BLOCK)
            except again:
                break
            except OSError as error:
                return self._last(error)
            if not block:
                return self._last(OSError("it closed the connection"))
            self.frames.add(block)
            taken += len(block)
        self.more = taken >= BLOCK * 16
        return self.messages()

    def _last(self, error: OSError) -> list[tuple[int, bytes]]:
        """The connection is at its end: what has come before is handed out first, and then it is an error."""
        found = self.messages()
        if not found and not self.ended and not self.closing:
            raise self._gone(error)
        self.more = not self.ended
        self.ended = self.ended or self.closing
        return found

    def messages(self) -> list[tuple[int, bytes]]:
        found = []
        try:
            while message := self.frames.next():
                kind = message[0]
                if kind == CLOSE:
                    self.ended = True
                    self.close()
                elif kind not in (PING, PONG):
                    # A ping is not answered. No server counts the answers of these streams, and one that comes when the server has
                    # written everything and closed makes its kernel throw away megabytes that are still on their way to us.
                    found.append(message)
        except ValueError as error:
            raise self._gone(OSError(str(error))) from None
        return found

    def _gone(self, error: OSError) -> GoneError:
        return GoneError(f"`{self.target.name}` went away: {why(error)}", sent=True)
