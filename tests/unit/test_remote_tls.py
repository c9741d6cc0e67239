# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS to one certificate, against the library's own server: also what says that this Python's C part is as `tls` wants it."""

from __future__ import annotations

import _socket
import hashlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrmgr.remote import tls, wire

SIZE = 3 << 20


def certificate(folder: Path, name: str, key: str) -> bytes:
    """A certificate by name, of a key that is made when it is not there (DER)."""
    make = ["-key", key] if (folder / key).exists() else ["-newkey", "rsa:2048", "-nodes", "-keyout", key]
    words = ["openssl", "req", "-x509", *make, "-subj", f"/CN={name}", "-days", "2", "-out", name]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert((folder / name).read_text())


class Echo:
    """Says how many bytes it has had, and their digest, until the client says goodbye."""

    def __init__(self, folder: Path, name: str, key: str) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / name, folder / key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.heard: list[bytes] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            with plain:
                try:
                    with self.context.wrap_socket(plain, server_side=True) as secure:
                        size = int.from_bytes(secure.recv(4), "big")
                        data = b""
                        while len(data) < size:
                            data += secure.recv(1 << 16)
                        self.heard.append(data)
                        secure.sendall(hashlib.sha256(data).digest())
                except OSError:
                    self.heard.append(b"refused")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate(tmp_path, "right", "one.key")
    certificate(tmp_path, "twin", "one.key")
    certificate(tmp_path, "other", "other.key")
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Echo]:
    found = Echo(folder, "right", "one.key")
    yield found
    found.listener.close()


def der(folder: Path, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((folder / name).read_text())


def connected(address: tuple[str, int]) -> _socket.socket:
    plain = wire.Plain(_socket.AF_INET, _socket.SOCK_STREAM)
    plain.settimeout(10)
    plain.connect(address)
    return plain


def test_to_the_one_and_again(folder: Path, server: Echo) -> None:
    context = tls.Context(der(folder, "right"), None)
    for again in (False, True):
        secure = tls.Secure(context, connected(server.address), "localhost")
        data = bytes(range(256)) * (SIZE // 256)
        secure.sendall(len(data).to_bytes(4, "big") + data)
        assert secure.recv(32) == hashlib.sha256(data).digest()
        assert again or not secure.resumed  # whether a server lets one resume is its own matter
        assert secure.getpeercert() == der(folder, "right")
        secure.keep_session()
        assert secure.recv(1) == b""
        secure.close()
        assert server.heard == [data] * (1 + again)


@pytest.mark.parametrize("name", ["twin", "other"])
def test_another_certificate(folder: Path, server: Echo, name: str) -> None:
    """Also one of the same key. Nothing is said to it."""
    context = tls.Context(der(folder, name), None)
    plain = connected(server.address)
    with pytest.raises(tls.UnverifiedError):
        tls.Secure(context, plain, "localhost")
    plain.close()
    assert tls.Secure(tls.Context(der(folder, "right"), None), connected(server.address), "localhost")
    assert not [heard for heard in server.heard if heard not in (b"refused", b"")]


def test_who_does_not_wait(folder: Path, server: Echo) -> None:
    secure = tls.Secure(tls.Context(der(folder, "right"), None), connected(server.address), "localhost")
    secure.setblocking(False)
    with pytest.raises(tls.AGAIN):
        secure.recv(1)
    secure.settimeout(0.05)
    with pytest.raises(TimeoutError):
        secure.recv(1)
