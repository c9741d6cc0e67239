# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP/1.1 on a socket that stays open: unix, or TLS to exactly the certificate that was pinned.

The standard library's client (and every one built on it) costs more to import than a whole attach takes, and so does its `socket`.
"""

from __future__ import annotations

import _socket
import os

from ctrmgr.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ctrmgr.remote import tls

    Socket = _socket.socket | tls.Secure

PORT = 8443
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Of a server that has taken a request and says nothing. Waiting for an operation has no limit but a dead peer's."""

DEAD_MILLISECONDS = 30_000
HEAD_MAX = 1 << 18
BLOCK = 1 << 16


class GoneError(BackendError):
    """The connection failed: `sent` says whether the server may have seen the request."""

    def __init__(self, message: str, *, sent: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


class ChangedError(BackendError):
    """The server's certificate is not the one that was pinned."""


class Target:
    """Where a server is and how it is known."""

    __slots__ = ("certificate", "context", "identity", "name", "url")

    def __init__(
        self, name: str, url: str, *, certificate: bytes = b"", identity: tuple[str, str] | None = None
    ) -> None:
        self.name, self.url = name, url
        self.certificate = certificate
        """The pinned one, DER."""
        self.identity = identity
        """The files of our own certificate and key."""
        self.context: tls.Context | None = None
        """Made once: an `exec` opens five connections."""

    @property
    def path(self) -> str:
        """Of a unix socket, or ""."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else ""

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.url)


def split_address(url: str) -> tuple[str, int]:
    """`https://[::1]:8443/` → host and port."""
    rest = url.removeprefix("https://").partition("/")[0]
    host, colon, port = rest.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = rest, str(PORT)
    return host.strip("[]"), int(port)


def connect_seconds() -> float:
    """`CTRMGR_REMOTE_TIMEOUT` is for networks that are slower than anybody thought."""
    try:
        return float(os.environ["CTRMGR_REMOTE_TIMEOUT"])
    except (KeyError, ValueError):
        return CONNECT_SECONDS


def why(error: OSError) -> str:
    """An error of the network in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__


def dial(target: Target) -> Socket:
    """A connected socket. Raises GoneError when there is no way, ChangedError when another certificate answers."""
    try:
        if target.path:
            return _connected(_socket.AF_UNIX, target.path)
        plain = _reached(*target.address)
    except (OSError, UnicodeError) as error:
        where = target.path or "{}:{}".format(*target.address)
        reason = why(error) if isinstance(error, OSError) else str(error)
        raise GoneError(
            f"`{target.name}` cannot be reached at `{where}`: {reason}", sent=False, hint=_cure(target, error)
        ) from error
    # A host that vanished sends nothing, ever: the kernel is to ask after it.
    plain.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
    plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPIDLE, 10)
    plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPINTVL, 5)
    plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPCNT, 4)
    plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_USER_TIMEOUT, DEAD_MILLISECONDS)
    plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    return secured(target, plain)


class Plain(_socket.socket):
    """A socket that TLS can point back to."""

    __slots__ = ("__weakref__",)


def _connected(family: int, address: str | tuple[str, int]) -> _socket.socket:
    made = Plain(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    made.settimeout(connect_seconds())
    try:
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def _reached(host: str, port: int) -> _socket.socket:
    """By the first of a name's addresses that answers. Raises OSError, UnicodeError."""
    failed: OSError | None = None
    # Only a name of other letters needs the library's tables of them.
    name = host.encode() if host.isascii() else host
    for family, _, _, _, address in _socket.getaddrinfo(name, port, 0, _socket.SOCK_STREAM):
        try:
            return _connected(family, address)  # type: ignore[arg-type]
        except OSError as error:
            failed = failed or error
    raise failed or OSError(f"`{host}` has no address")


def _cure(target: Target, error: Exception) -> str | None:
    if isinstance(error, PermissionError):
        return "run it as root, or as a member of the server's group"
    if target.path:
        return "is the server running? `ctrmgr remote list` shows where each is looked for"
    return None


def secured(target: Target, plain: _socket.socket) -> tls.Secure:
    """TLS over a connected socket. Nothing is sent but to the pinned certificate."""
    from ctrmgr.remote import tls

    try:
        target.context = target.context or tls.Context(target.certificate, target.identity)
        return tls.Secure(target.context, plain, target.address[0])
    except tls.UnverifiedError as error:
        plain.close()
        raise _changed(target, error) from error
    except OSError as error:
        plain.close()
        raise GoneError(f"`{target.name}`: no TLS: {why(error)}", sent=False) from error


def _changed(target: Target, error: tls.UnverifiedError) -> ChangedError:
    found = fetch_certificate(target.name, target.url)
    if found == target.certificate:
        return ChangedError(f"`{target.name}`: its certificate is not valid: {error.verify_message}")
    return ChangedError(
        f"`{target.name}` shows another certificate than the one that is trusted: {fingerprint(found)}, "
        f"not {fingerprint(target.certificate)}",
        hint=f"somebody may be in between; if its owner says that it was renewed: `ctrmgr remote trust {target.name}`",
    )


def fetch_certificate(name: str, url: str) -> bytes:
    """The certificate that a server shows now (DER), to look at: nothing is said to it. Raises GoneError."""
    import socket
    import ssl

    try:
        plain = socket.create_connection(split_address(url), connect_seconds())
    except (OSError, UnicodeError) as error:
        reason = why(error) if isinstance(error, OSError) else str(error)
        raise GoneError(
            "`{}` cannot be reached at `{}:{}`: {}".format(name, *split_address(url), reason), sent=False
        ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with plain:
        try:
            with context.wrap_socket(plain) as secure:
                return secure.getpeercert(True) or b""
        except OSError as error:
            raise GoneError(f"`{name}`: no TLS: {why(error)}", sent=False) from error


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of the DER, as LXD and Incus print it."""
    import hashlib

    return hashlib.sha256(certificate).hexdigest()


class Answer:
    """Status, headers (names in lower case) and body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


class Connection:
    """One connection to a server, made when it is needed and kept while the server keeps it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.socket: Socket | None = None
        self.rest = b""

    def close(self) -> None:
        if self.socket:
            self.socket.close()
            self.socket = None
        self.rest = b""

    def open(self) -> Socket:
        """The socket; a new one when there is none, or the server has closed it meanwhile."""
        if self.socket and self._stale(self.socket):
            self.close()
        if self.socket is None:
            self.socket = dial(self.target)
        return self.socket

    @staticmethod
    def _stale(connected: Socket) -> bool:
        import select

        poll = select.poll()
        poll.register(connected, select.POLLIN)
        return bool(poll.poll(0))  # nothing was asked: what comes now is the end

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = ANSWER_SECONDS,
    ) -> Answer:
        """Raises GoneError, also for an answer that is no HTTP."""
        head, answer = self.begin(method, path, body, headers, timeout=timeout)
        return Answer(head[0], head[1], b"".join(answer))

    def begin(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = ANSWER_SECONDS,
    ) -> tuple[tuple[int, dict[str, str]], Iterator[bytes]]:
        """Status and headers, and the body in blocks: for what may be large."""
        self.ask(method, path, body, headers, timeout=timeout)
        return self.answer(method)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = ANSWER_SECONDS,
    ) -> None:
        """Send a request, and do not wait for its answer. Raises GoneError."""
        connected = self.open()
        connected.settimeout(timeout)
        fields = {"Host": self.host(), "User-Agent": "ctrmgr", **(headers or {})}
        if isinstance(body, bytes) and (body or method not in ("GET", "HEAD")):
            fields["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items())]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        try:
            if isinstance(body, bytes):
                connected.sendall(head + body)
            else:
                connected.sendall(head)
                for block in body:
                    connected.sendall(block)
        except (OSError, ValueError) as error:
            self.close()
            raise self._gone(error) from error

    def answer(self, method: str) -> tuple[tuple[int, dict[str, str]], Iterator[bytes]]:
        """Of the request that was sent: status and headers, and the body in blocks. Raises GoneError."""
        try:
            status, found = self._head()
        except (OSError, ValueError) as error:
            self.close()
            raise self._gone(error) from error
        if self.socket and not isinstance(self.socket, _socket.socket):
            self.socket.keep_session()
        return (status, found), self._body(method, status, found)

    def host(self) -> str:
        if self.target.path:
            return "localhost"
        host, port = self.target.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _gone(self, error: Exception) -> GoneError:
        reason = why(error) if isinstance(error, OSError) else str(error)
        return GoneError(f"`{self.target.name}` went away: {reason}", sent=True)

    def _fill(self) -> None:
        assert self.socket
        block = self.socket.recv(BLOCK)
        if not block:
            raise ValueError("it closed the connection")
        self.rest += block

    def _head(self) -> tuple[int, dict[str, str]]:
        while True:
            while b"\r\n\r\n" not in self.rest:
                if len(self.rest) > HEAD_MAX:
                    raise ValueError("it does not speak HTTP")
                self._fill()
            head, _, self.rest = self.rest.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
                raise ValueError("it does not speak HTTP")
            if status[:3] != "100":
                break
        found = {}
        for line in lines:
            key, _, value = line.partition(":")
            found[key.strip().lower()] = value.strip()
        return int(status[:3]), found

    def _body(self, method: str, status: int, headers: Mapping[str, str]) -> Iterator[bytes]:
        if method == "HEAD" or status in (101, 204, 304):
            return
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                yield from self._chunks()
            elif "content-length" in headers:
                yield from self._counted(int(headers["content-length"]))
            else:
                yield from self._until_the_end()
        except (OSError, ValueError) as error:
            self.close()
            raise self._gone(error) from error
        if headers.get("connection", "").lower() == "close":
            self.close()

    def _counted(self, left: int) -> Iterator[bytes]:
        while left:
            if not self.rest:
                self._fill()
            block, self.rest = self.rest[:left], self.rest[left:]
            left -= len(block)
            yield block

    def _line(self) -> bytes:
        while b"\r\n" not in self.rest:
            if len(self.rest) > HEAD_MAX:
                raise ValueError("it does not speak HTTP")
            self._fill()
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().partition(b";")[0], 16):
            yield from self._counted(size)
            self._line()
        while self._line():
            pass

    def _until_the_end(self) -> Iterator[bytes]:
        assert self.socket
        block, self.rest = self.rest, b""
        while block:
            yield block
            block = self.socket.recv(BLOCK)
        self.close()
