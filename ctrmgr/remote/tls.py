# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS over a connected socket, to exactly one certificate.

OpenSSL checks it as in the library's `ssl`, of whose C part this is a thin wrapper: that module alone takes as long to import as a whole
request to a server.
"""

from __future__ import annotations

import _ssl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

Error = _ssl.SSLError
UnverifiedError = _ssl.SSLCertVerificationError
AGAIN = (BlockingIOError, _ssl.SSLWantReadError, _ssl.SSLWantWriteError)
"""What a socket that does not wait says when it would have to."""

PARTIAL_CHAIN = 0x80000
"""X509_V_FLAG_PARTIAL_CHAIN: the server's own certificate may be the anchor, whoever has signed it."""


class Context:
    """What the connections to one server have in common."""

    def __init__(self, certificate: bytes, identity: tuple[str, str] | None) -> None:
        """`certificate` is the only one that is right (DER); `identity` are the files of our own and its key."""
        self.certificate = certificate
        self.made = made = _ssl._SSLContext(_ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = False  # the certificate is compared whole, below
        made.verify_mode = _ssl.CERT_REQUIRED
        made.verify_flags |= PARTIAL_CHAIN
        made.minimum_version = _ssl.PROTO_TLSv1_2
        made.load_verify_locations(cadata=certificate)
        if identity:
            made.load_cert_chain(*identity)
        self.session: _ssl.SSLSession | None = None
        """Of the last connection: the next need not prove everything again."""


class Secure:
    """A socket as `wire` uses them."""

    def __init__(self, context: Context, plain: socket, host: str) -> None:
        """Raises UnverifiedError when another certificate answers; nothing is sent to that. OSError."""
        self.context, self.plain = context, plain
        self.end: Any = context.made._wrap_socket(  # type: ignore[attr-defined]
            plain, False, host, owner=self, session=context.session
        )
        self.end.do_handshake()
        if self.getpeercert() != context.certificate:
            raise UnverifiedError("another certificate of the same key")

    def getpeercert(self) -> bytes:
        """DER."""
        return bytes(self.end.getpeercert(True) or b"")

    @property
    def resumed(self) -> bool:
        return bool(self.end.session_reused)

    def keep_session(self) -> None:
        """The ticket comes with the server's first answer."""
        self.context.session = self.end.session

    def recv(self, size: int) -> bytes:
        try:
            return bytes(self.end.read(size))
        except _ssl.SSLEOFError:
            return b""  # without a goodbye: whoever reads knows whether it has had all

    def send(self, data: bytes | bytearray | memoryview) -> int:
        return int(self.end.write(data))

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.end.write(view) :]

    def fileno(self) -> int:
        return self.plain.fileno()

    def settimeout(self, seconds: float | None) -> None:
        self.plain.settimeout(seconds)

    def setblocking(self, blocks: bool) -> None:
        self.plain.setblocking(blocks)

    def close(self) -> None:
        self.plain.close()
