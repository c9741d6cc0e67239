# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots of instances on a server."""

from __future__ import annotations

from ctrmgr.errors import ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import instances
from ctrmgr.remote.server import Server, UnknownError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _url(name: str, snapshot: str = "") -> str:
    return f"{instances.path(name)}/snapshots" + (f"/{quoted(snapshot)}" if snapshot else "")


def _all(server: Server, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(_url(name), query={"recursion": "1"})
    if not found:
        instances.get(server, name)  # an empty list is also what servers have for no instance
    return found


def listing(server: Server, name: str) -> list[dict[str, str]]:
    """name and time of each, the oldest first. Raises NotFoundError."""
    try:
        found = _all(server, name)
    except NotFoundError as error:
        raise instances.translated(server, name, error) from None
    rows = [
        {"name": str(each["name"]).rpartition("/")[2], "created": str(each["created_at"])[:19] + "Z"} for each in found
    ]
    return sorted(rows, key=lambda row: (row["created"], row["name"]))


def get(server: Server, name: str, snapshot: str) -> dict[str, Any]:
    """Raises NotFoundError."""
    try:
        found: dict[str, Any] = server.get(_url(name, snapshot))
    except NotFoundError:
        known = ", ".join(row["name"] for row in listing(server, name))
        raise NotFoundError(
            f"`{instances.label(server, name)}` has no snapshot `{snapshot}`",
            hint=f"there are: {known}" if known else "it has none",
        ) from None
    return found


def _refused(server: Server, name: str, snapshot: str, error: CtrmgrError) -> CtrmgrError:
    if isinstance(error, UnknownError) or "not found" in error.message.lower():
        get(server, name, snapshot)
    return instances.translated(server, name, error)


def create(server: Server, name: str, snapshot: str = "") -> str:
    """Make one and return its name. Raises NotFoundError, ConflictError, BackendError."""
    taken = {row["name"] for row in listing(server, name)}
    if not snapshot:
        snapshot = next(word for number in range(len(taken) + 1) if (word := f"snap{number}") not in taken)
    elif snapshot in taken:
        raise ConflictError(
            f"`{instances.label(server, name)}` has a snapshot `{snapshot}` already",
            hint="delete it, or choose another name",
        )
    doubt = f"whether the snapshot was made is not known: `ctrmgr snapshot list {server.name}:{name}`"
    try:
        server.change("POST", _url(name), {"name": snapshot, "stateful": False}, doubt=doubt)
    except CtrmgrError as error:
        raise instances.translated(server, name, error) from None
    return snapshot


def restore(server: Server, name: str, snapshot: str) -> None:
    """As on this machine, it must be stopped: servers would stop it and start it again. Raises ConflictError, NotFoundError."""
    found = instances.get(server, name)
    get(server, name, snapshot)
    if found["status"] in ("Running", "Frozen"):
        raise ConflictError(
            f"`{instances.label(server, name)}` is running", hint=f"ctrmgr stop {instances.label(server, name)}"
        )
    try:
        server.change(
            "PUT", instances.path(name), {"restore": snapshot}, doubt=instances.doubt(server, name, "restored")
        )
    except CtrmgrError as error:
        raise _refused(server, name, snapshot, error) from None


def delete(server: Server, name: str, snapshot: str) -> None:
    try:
        server.change("DELETE", _url(name, snapshot), doubt=instances.doubt(server, name, "rid of it"))
    except CtrmgrError as error:
        raise _refused(server, name, snapshot, error) from None
