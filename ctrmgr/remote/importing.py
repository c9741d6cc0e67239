# SPDX-License-Identifier: GPL-3.0-or-later
"""Remotes out of the configuration of LXD's and Incus' own clients: servers, pinned certificates, and the key that they know."""

from __future__ import annotations

import os
import ssl

from ctrmgr import source, state
from ctrmgr.errors import NotFoundError, SpecError
from ctrmgr.remote import registry, trust, wire
from ctrmgr.remote.registry import IMAGES, Remote
from ctrmgr.remote.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def folders() -> list[str]:
    """Where the clients have their configuration."""
    home = os.path.expanduser("~")
    given = [os.environ.get("LXD_CONF", ""), os.environ.get("INCUS_CONF", "")]
    usual = [f"{home}/.config/lxc", f"{home}/snap/lxd/common/config", f"{home}/.config/incus"]
    return [path for path in (*given, *usual) if path and os.path.exists(f"{path}/config.yml")]


class Imported:
    """What became of one remote: `outcome` is `added`, or why it was passed over."""

    __slots__ = ("name", "outcome", "url")

    def __init__(self, name: str, url: str, outcome: str) -> None:
        self.name, self.url, self.outcome = name, url, outcome


def load(folder: str) -> list[Imported]:
    """All remotes of one client. Those that we have already, and the client's built-in ones, stay as they are."""
    path = f"{folder}/config.yml"
    if not os.path.exists(path):
        raise NotFoundError(f"no file `{path}`", hint="a folder such as ~/.config/lxc")
    document = source.load(path)
    listed = document.data.get("remotes") if isinstance(document.data, dict) else None
    if not isinstance(listed, dict):
        raise document.error((), "has no remotes")
    found = []
    for name, values in listed.items():
        url = str(values.get("addr", "")) if isinstance(values, dict) else ""
        try:
            outcome = _load_one(folder, name, url, values if isinstance(values, dict) else {})
        except (SpecError, NotFoundError, wire.GoneError) as error:
            outcome = error.message
        found.append(Imported(name, url, outcome))
    return found


def _load_one(folder: str, name: str, url: str, values: dict[str, Any]) -> str:
    if name in registry.load().by_name:
        return "there is one of this name"
    if values.get("protocol") == IMAGES:
        _register(Remote(name, url.rstrip("/"), IMAGES))
        return "added"
    if url == "unix://" or name == registry.LOCAL:
        return "it is the client's own machine"
    registry.check_name(name)
    remote = Remote(name, trust.normal_url(url), "", str(values.get("project", "")))
    if remote.url.startswith("unix://"):
        with Server(name, remote.target()) as server:
            remote.kind = trust.kind_of(server.info)
        _register(remote)
        return "added"
    pinned = _certificate(f"{folder}/servercerts/{name}.crt")
    pair = _pair(folder, name)
    target = wire.Target(name, remote.url, certificate=pinned, identity=pair)
    try:
        with Server(name, target) as server:
            if server.info.get("auth") != "trusted":
                return "it does not trust that client any more"
            remote.kind = trust.kind_of(server.info)
    except wire.ChangedError as error:
        return error.message
    ours = registry.own_identity_paths(name)
    state.make_dir(os.path.dirname(ours[0]), 0o700)
    for theirs, path, mode in ((pair[1], ours[1], 0o600), (pair[0], ours[0], 0o644)):
        with open(theirs, "rb") as file:
            state.write_file(path, file.read(), mode)
    registry.pin(name, pinned)
    _register(remote)
    return "added"


def _register(remote: Remote) -> None:
    with registry.Opened() as remotes:
        remotes.by_name.setdefault(remote.name, remote)


def _certificate(path: str) -> bytes:
    try:
        with open(path, encoding="ascii") as file:
            return ssl.PEM_cert_to_DER_cert(file.read())
    except OSError:
        raise NotFoundError("the client has not pinned its certificate: add it anew") from None
    except ValueError:
        raise SpecError(f"`{path}` is not a certificate") from None


def _pair(folder: str, name: str) -> tuple[str, str]:
    for base in (f"{folder}/clientcerts/{name}", f"{folder}/client"):
        if os.path.exists(f"{base}.key") and os.path.exists(f"{base}.crt"):
            return f"{base}.crt", f"{base}.key"
    raise NotFoundError("the client has no key of its own")
