# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server and we come to trust each other: its certificate is compared and pinned, ours is added by a token or a password."""

from __future__ import annotations

import base64
import json
import os
import ssl

from ctrmgr import state
from ctrmgr.errors import BackendError, ConflictError, NotFoundError, SpecError
from ctrmgr.remote import identity, registry, wire
from ctrmgr.remote.registry import IMAGES, Remote
from ctrmgr.remote.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Confirm = Callable[[str], bool]
    """Shown a fingerprint, says whether it is the right one."""


INCUS_ONLY = "dev_incus_events"
"""An API extension by which an Incus is known that does not talk to us yet."""


class Token:
    """What a server hands out for one new client: where it is, what its certificate is, and a secret."""

    __slots__ = ("addresses", "fingerprint", "text")

    def __init__(self, text: str) -> None:
        """Raises SpecError for what is no token."""
        self.text = text.strip()
        try:
            found = json.loads(base64.b64decode(self.text, validate=True))
            self.fingerprint = str(found["fingerprint"])
            self.addresses = [str(word) for word in found["addresses"] or []]
            assert found["secret"]
        except (ValueError, KeyError, TypeError, AssertionError):
            raise SpecError(
                "this is not a token",
                hint="on the server: `lxc config trust add --name US`, `incus config trust add US`",
            ) from None


def normal_url(word: str) -> str:
    """`/path`, `unix:///path`, `https://host:8443`, `host`, `host:port` → `unix://…` or `https://host:port`. Raises SpecError."""
    if word.startswith(("/", "unix:")):
        path = "/" + word.removeprefix("unix:").lstrip("/")
        if os.path.isdir(path):
            path += "/unix.socket"
        return f"unix://{path}"
    if "://" in word and not word.startswith("https://"):
        raise SpecError(f"`{word}` is neither https nor a unix socket")
    try:
        host, port = wire.split_address(word)
    except ValueError:
        raise SpecError(f"`{word}` has a wrong port") from None
    if not host or not 0 < port < 65536 or any(letter.isspace() or letter in "@?#" for letter in host):
        raise SpecError(f"`{word}` is not a URL", hint="https://HOST:8443, or the path of a unix socket")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def wanted(word: str) -> str:
    """The fingerprint that `--certificate` names, or that of the certificate in the file. Raises SpecError, NotFoundError."""
    plain = word.replace(":", "").lower()
    if len(plain) == 64 and not plain.strip("0123456789abcdef"):
        return plain
    try:
        with open(word, encoding="ascii") as file:
            return wire.fingerprint(ssl.PEM_cert_to_DER_cert(file.read()))
    except FileNotFoundError:
        raise NotFoundError(f"no file `{word}`", hint="a certificate (PEM), or its SHA-256 fingerprint") from None
    except OSError as error:
        raise state.unreadable(word, error) from error
    except ValueError:
        raise SpecError(f"`{word}` is not a certificate (PEM)") from None


def checked_certificate(name: str, url: str, expected: str, confirm: Confirm) -> bytes:
    """What the server shows, if it is the one that is expected, or that somebody has compared. Raises BackendError."""
    found = wire.fetch_certificate(name, url)
    shown = wire.fingerprint(found)
    if expected and shown != expected:
        raise BackendError(
            f"`{name}` shows the certificate {shown}, not {expected}",
            hint="somebody may be in between; nothing was sent",
        )
    if not expected and not confirm(shown):
        raise BackendError(
            f"`{name}` shows the certificate {shown}, which nobody has compared",
            hint=f"on the server `lxc info` or `incus info` says it; then `--certificate {shown}`",
        )
    return found


def add(
    name: str,
    url: str,
    *,
    token: str = "",
    password: str = "",
    certificate: str = "",
    project: str = "",
    images: bool = False,
    confirm: Confirm,
) -> Remote:
    """Connect, check, come to trust, and register. When any of it fails, nothing is registered.

    Raises ConflictError when there is such a remote, BackendError when the server is another one or refuses us.
    """
    registry.check_name(name)
    if name in registry.load().by_name:
        raise ConflictError(f"there is a remote `{name}`", hint=f"`ctrmgr remote remove {name}`")
    given = Token(token) if token else None
    if images:
        return _register(Remote(name, url.rstrip("/"), IMAGES), b"")
    if not url and not (given and given.addresses):
        raise SpecError("URL is missing", hint="https://HOST:8443, or the path of a unix socket")
    expected = wanted(certificate) if certificate else given.fingerprint if given else ""
    urls = [normal_url(url)] if url else [normal_url(f"https://{word}") for word in given.addresses] if given else []
    failed: wire.GoneError | None = None
    for each in urls:
        try:
            return _add_at(Remote(name, each, "", project), expected, given, password, confirm)
        except wire.GoneError as error:
            failed = failed or error
            if error.sent:
                raise
    assert failed
    raise failed


def _add_at(remote: Remote, expected: str, token: Token | None, password: str, confirm: Confirm) -> Remote:
    pinned = b""
    if remote.url.startswith("https://"):
        pinned = checked_certificate(remote.name, remote.url, expected, confirm)
        target = wire.Target(remote.name, remote.url, certificate=pinned, identity=identity.ensure())
    else:
        target = wire.Target(remote.name, remote.url)
    with Server(remote.name, target) as server:
        if server.info.get("auth") != "trusted":
            _introduce(server, token, password)
        remote.kind = kind_of(server.info)
        if remote.project:
            check_project(server, remote.project)
    return _register(remote, pinned)


def _introduce(server: Server, token: Token | None, password: str) -> None:
    """Give the server our certificate."""
    if not token and not password:
        raise BackendError(
            f"`{server.name}` does not trust us",
            hint=f"say --token or --password, or add {registry.identity_paths()[0]} on the server",
        )
    # LXD 5.0 takes a token where it takes the password; Incus and later LXD have a field of its own and pass over the other.
    secret = {"trust_token": token.text, "password": token.text} if token else {"password": password}
    try:
        server.change("POST", "/certificates", {"type": "client", **secret})
    except (BackendError, ConflictError) as error:
        if isinstance(error, wire.GoneError):
            raise
        which = "token" if token else "password"
        hint = "each token is for one client, once, and not for ever: ask for another" if token else None
        if not token and INCUS_ONLY in server.extensions:
            hint = "Incus has no passwords: ask for a token"
        raise BackendError(
            f"`{server.name}` refuses our {which}: {error.message.partition(': ')[2]}", hint=hint
        ) from None
    server.forget()
    if server.info.get("auth") != "trusted":
        raise BackendError(f"`{server.name}` does not trust us, although it took our certificate")


def kind_of(info: dict[str, Any]) -> str:
    """Raises BackendError for a server that is neither."""
    kind = str((info.get("environment") or {}).get("server", "")).lower()
    if kind not in registry.SERVERS:
        raise BackendError(f"a server of the kind `{kind}` is neither LXD nor Incus")
    return kind


def check_project(server: Server, project: str) -> None:
    from ctrmgr.remote.server import quoted

    try:
        server.get(f"/projects/{quoted(project)}")
    except NotFoundError:
        known = [str(url).rpartition("/")[2] for url in server.get("/projects")]
        raise BackendError(f"`{server.name}` has no project `{project}`", hint=f"it has: {', '.join(known)}") from None


def _register(remote: Remote, certificate: bytes) -> Remote:
    with registry.Opened() as remotes:
        if remote.name in remotes.by_name:
            raise ConflictError(f"there is a remote `{remote.name}`")
        if certificate:
            registry.pin(remote.name, certificate)
        remotes.by_name[remote.name] = remote
    return remote


def trust(name: str, *, certificate: str = "", token: str = "", confirm: Confirm) -> str:
    """Pin the certificate that a remote shows now, if it is the right one; returns its fingerprint."""
    remote = registry.load().get(name)
    if not remote.url.startswith("https://") or remote.kind == IMAGES:
        raise SpecError(f"`{remote.name}` has no certificate that we pin", hint=f"it is at {remote.url}")
    given = Token(token) if token else None
    expected = wanted(certificate) if certificate else given.fingerprint if given else ""
    found = checked_certificate(remote.name, remote.url, expected, confirm)
    target = wire.Target(remote.name, remote.url, certificate=found, identity=registry.identity_of(remote.name))
    with Server(remote.name, target) as server:
        if server.info.get("auth") != "trusted":
            _introduce(server, given, "")
    registry.pin(remote.name, found)
    return wire.fingerprint(found)


def remove(names: list[str]) -> None:
    """Forget remotes; nothing is changed on their servers."""
    with registry.Opened() as remotes:
        for name in names:
            if name not in remotes.by_name:
                remotes.get(name or "-")
        for name in names:
            del remotes.by_name[name]
            if remotes.default == name:
                remotes.default = ""
    for name in names:
        registry.forget(name)


def rename(old: str, new: str) -> None:
    registry.check_name(new)
    with registry.Opened() as remotes:
        remote = remotes.get(old)
        if new in remotes.by_name:
            raise ConflictError(f"there is a remote `{new}`")
        if remote.url.startswith("https://") and remote.kind != IMAGES:
            registry.pin(new, registry.pinned(old))
            for path, now in zip(registry.own_identity_paths(old), registry.own_identity_paths(new), strict=True):
                if os.path.exists(path):
                    os.rename(path, now)
        remote.name = new
        remotes.by_name = {each.name: each for each in remotes.by_name.values()}
        if remotes.default == old:
            remotes.default = new
    registry.forget(old)
