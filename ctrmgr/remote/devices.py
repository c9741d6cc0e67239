# SPDX-License-Identifier: GPL-3.0-or-later
"""Attach and detach on a server: live, with nobody else's device lost, and believed only when the node is there."""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote import instances, owners, translate
from ctrmgr.remote.server import OperationError, Server, StaleError, quoted, retried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


EVERYBODYS = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"))
"""What every program counts on. (Servers also show the host's /dev/fuse and /dev/net/tun, which a device may hide.)"""


def attach(server: Server, name: str, device: str, keys: Mapping[str, str]) -> bool:
    """Give an instance a device of the server's machine. True: it is there now; False: it comes with the next start.

    Raises NotFoundError, SpecError, ConflictError, UnsupportedError, BackendError; then nothing has changed.
    """
    check(device, keys)
    made = translate.translate({}, {device: keys}, kind="", extensions=_extensions(server, keys))
    made.refuse(server.name)
    values = made.devices[device]
    for _, key, word in made.names:
        values[key] = str(owners.number(server, name, key, word))
    inside = values.get("path") or values.get("source", "") if values["type"] in translate.NODES else ""
    running = False
    before: dict[str, str] = {}

    def once(found: dict[str, Any], etag: str) -> None:
        nonlocal running, before
        running = found["status"] in ("Running", "Frozen")
        _check_free(server, name, device, inside, found)
        before = node(server, name, inside) if running and inside else {}
        if before and inside in EVERYBODYS:
            raise ConflictError(
                f"device `{device}`: there is a `{inside}` in `{server.name}:{name}` already", hint="choose a `path`"
            )
        # PATCH adds to the devices that are there: one that somebody else attaches now stays.
        server.change("PATCH", instances.path(name), {"devices": {device: values}}, etag=etag)

    try:
        retried(server, once, instances.path(name))
    except (BackendError, NotFoundError) as error:
        if isinstance(error, StaleError):
            raise
        if isinstance(error, NotFoundError):
            raise instances.translated(server, name, error) from None
        error.hint = error.hint or None
        raise instances.translated(server, name, error) from None
    if running and inside:
        _verify(server, name, device, inside, values, before)
    return running


def _extensions(server: Server, keys: Mapping[str, str]) -> frozenset[str]:
    """Asked for only when the type needs one: an attach of a node does without that request."""
    return frozenset() if keys.get("type") in translate.NATIVE else server.extensions


def check(device: str, keys: Mapping[str, str]) -> None:
    """Raises SpecError for what cannot be a device; the server judges the rest."""
    if not device or len(device.encode()) > 63 or any(letter in "/\t\n\0" or letter.isspace() for letter in device):
        raise SpecError(f"`{device}` cannot be the name of a device", hint="no spaces or slashes, at most 63 bytes")
    if not keys.get("type"):
        raise SpecError(f"device `{device}` has no `type`", hint="type=unix-char or type=unix-block, …")
    if keys["type"] in translate.NODES and not (keys.get("source") or keys.get("path")):
        raise SpecError(f"device `{device}`: it says neither `source` nor `path`")


def _check_free(server: Server, name: str, device: str, inside: str, found: Mapping[str, Any]) -> None:
    devices: dict[str, dict[str, str]] = found["expanded_devices"]
    if device in devices:
        raise ConflictError(
            f"`{server.name}:{name}` has a device `{device}` already", hint="detach it first, or choose another name"
        )
    for other, keys in devices.items():
        if inside and keys["type"] in translate.NODES and (keys.get("path") or keys.get("source")) == inside:
            raise ConflictError(f"device `{device}`: `{inside}` is where device `{other}` is", hint="choose a `path`")


def node(server: Server, name: str, path: str) -> dict[str, str]:
    """What is at a path in an instance, as headers of the server's; nothing when nothing is there."""
    try:
        answer = server.send("HEAD", f"/instances/{quoted(name)}/files", query={"path": path})
    except NotFoundError:
        return {}
    return {
        key.partition("-")[2].partition("-")[2]: value for key, value in answer.headers.items() if key.startswith("x-")
    }


def _verify(
    server: Server, name: str, device: str, inside: str, values: Mapping[str, str], before: Mapping[str, str]
) -> None:
    """Servers have said that a device is attached when nothing was inside. Then it is taken out again: BackendError."""
    reason = ""
    found = node(server, name, inside)
    wanted = int(values.get("mode") or "0660", 8)
    if not found:
        reason = f"`{inside}` is not there"
        if values.get("required") == "false":
            reason += ", because the server's machine has no such device"
    elif found == before or found.get("type") == "directory" or int(found.get("mode", "0"), 8) & 0o777 != wanted:
        reason = f"`{inside}` is another file"
    if not reason:
        if device in instances.get(server, name)["devices"]:
            return
        reason = "somebody else has overwritten its configuration"
    try:
        remove(server, name, device)
    except CtrmgrError as error:
        raise BackendError(
            f"`{server.name}` says that `{device}` is attached, but in `{name}` {reason}",
            hint=f"it could not be taken out again: {error.message}",
        ) from None
    raise BackendError(
        f"`{server.name}` says that `{device}` is attached, but in `{name}` {reason}", hint="it was taken out again"
    )


def remove(server: Server, name: str, device: str) -> None:
    """Take one out of the configuration; it may be gone already."""

    def change(data: dict[str, Any]) -> None:
        data["devices"].pop(device, None)

    instances.update(server, name, change)


class Detached:
    """`live`: it was taken from a running instance."""

    __slots__ = ("live",)

    def __init__(self, live: bool) -> None:
        self.live = live


def detach(server: Server, name: str, device: str) -> Detached:
    """Take a device away. Raises NotFoundError when there is no such device, BackendError when it is still inside."""
    found = instances.get(server, name)
    if device not in found["devices"]:
        if device in found["expanded_devices"]:
            raise ConflictError(
                f"`{server.name}:{name}` has `{device}` from a profile",
                hint=f"attach-device … {device} type=none hides it",
            )
        raise NotFoundError(
            f"`{server.name}:{name}` has no device `{device}`", hint=f"`ctrmgr info {server.name}:{name}` lists them"
        )
    keys = found["devices"][device]
    live = found["status"] in ("Running", "Frozen")
    inside = keys.get("path") or keys.get("source", "") if keys["type"] in translate.NODES else ""
    before = node(server, name, inside) if live and inside else {}
    try:
        remove(server, name, device)
    except OperationError as error:
        raise instances.translated(server, name, error) from None
    if before and node(server, name, inside) == before:
        raise BackendError(
            f"`{server.name}` says that `{device}` is detached, but `{inside}` is still in `{name}`",
            hint="it is out of the configuration: a restart takes it away",
        )
    return Detached(live)
