# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance from one server to another directly: one of the two opens an operation, the other comes for it or brings it.

Nothing passes through us. Either the target has all of it, or it has nothing and the source is as it was.
"""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import instances, registry, wire
from ctrmgr.remote.server import GONE, OperationError, Server, StaleError
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MEET_SECONDS = 15
"""Servers wait ten seconds for each other; whoever is not there by then cannot be reached."""
RUNNING = 103
PULL, PUSH = "pull", "push"
TRIES = 4
"""Addresses of one server: each that is wrong costs time."""

LOOPBACK = ("https://127.", "https://[::1]", "https://localhost")
KEPT = "volatile.base_image"
"""The only one of the server's own notes that is true elsewhere, too."""


class NoWayError(BackendError):
    """The two do not get together. Nothing is left on either."""


def addresses(server: Server, other: Server) -> list[str]:
    """Where `other` may reach it: as we do, and as it says itself. A loopback address is one of this machine only."""
    said = [*([] if server.target.path else [server.target.url.rstrip("/")])]
    said += [f"https://{each}" for each in server.info["environment"].get("addresses") or ()]
    far = [each for each in said if not each.startswith(LOOPBACK)]
    near = [each for each in said if each.startswith(LOOPBACK) and _is_here(server) and _is_here(other)]
    return list(dict.fromkeys([*far, *(each for each in near if _answers(server, each))]))[:TRIES]


def _is_here(server: Server) -> bool:
    return bool(server.target.path) or server.target.url.startswith(LOOPBACK)


def _answers(server: Server, address: str) -> bool:
    """Whether it is this server that listens there."""
    try:
        found = wire.fetch_certificate(server.name, address)
    except GoneError:
        return False
    return found == registry.der(str(server.info["environment"]["certificate"]).encode())


def same(one: Server, other: Server) -> bool:
    """Whether two remotes are one server, or members of one cluster: these have one certificate."""
    if one.name == other.name:
        return True
    found = [server.info["environment"].get("certificate_fingerprint") for server in (one, other)]
    return bool(found[0]) and found[0] == found[1]


def carry(source: Server, name: str, target: Server, new: str, *, alone: bool, profiles: list[str]) -> None:
    """With its snapshots unless `alone`. Raises NoWayError, ConflictError, BackendError; then nothing is on the target, or it is said."""
    found = instances.get(source, name)
    reason = "neither listens where the other may reach it"
    for mode, opener, comer in ((PULL, source, target), (PUSH, target, source)):
        if there := addresses(opener, comer):
            try:
                _Attempt(source, name, target, new, mode, alone).go(found, profiles, there)
                return
            except NoWayError as error:
                reason = error.message
    raise NoWayError(reason)


class _Attempt:
    def __init__(self, source: Server, name: str, target: Server, new: str, mode: str, alone: bool) -> None:
        self.source, self.name, self.target, self.new, self.mode, self.alone = source, name, target, new, mode, alone
        self.giving = self.taking = ""
        """The operations on the source and on the target."""

    def go(self, found: Mapping[str, Any], profiles: list[str], there: list[str]) -> None:
        """Raises NoWayError when nobody came to any of these addresses."""
        try:
            reason = self._meet(found, profiles, there)
            if not reason:
                return
        except BaseException as error:
            left = self._undo()
            if isinstance(error, GoneError):
                error.hint = left or f"nothing was made on `{self.target.name}`"
            elif isinstance(error, CtrmgrError) and left:
                error.hint = left
            raise
        if left := self._undo():
            raise BackendError(reason, hint=left)
        raise NoWayError(reason)

    def _meet(self, found: Mapping[str, Any], profiles: list[str], there: list[str]) -> str:
        """Returns why they did not."""
        opener = self.source if self.mode == PULL else self.target
        opened = self._give({}) if self.mode == PULL else self._take(found, profiles, {})
        reason = ""
        for address in there:
            way = _way_to(opener, address, opened)
            try:
                if self.mode == PULL:
                    self._take(found, profiles, way)
                else:
                    self._give({"target": way})
                self._wait()
                return ""
            except OperationError as error:
                reason = error.reason
            if not _is_running(opener, str(opened["id"])):
                break
        return reason

    def _give(self, more: Mapping[str, object]) -> dict[str, Any]:
        data = {"migration": True, "live": False, "instance_only": self.alone, "container_only": self.alone, **more}
        found = self._begun(self.source, instances.path(self.name), data)
        self.giving = str(found["id"])
        return found

    def _take(self, found: Mapping[str, Any], profiles: list[str], way: Mapping[str, object]) -> dict[str, Any]:
        config: dict[str, str] = found["config"]
        data = {
            "name": self.new,
            "architecture": found["architecture"],
            "config": {key: value for key, value in config.items() if key == KEPT or not key.startswith("volatile.")},
            "devices": found["devices"],
            "ephemeral": found["ephemeral"],
            "profiles": profiles,
            "type": found["type"],
            "source": {
                "type": "migration",
                "mode": self.mode,
                "base-image": config.get(KEPT, ""),
                "instance_only": self.alone,
                "container_only": self.alone,
                **way,
            },
        }
        try:
            answer = self._begun(self.target, "/instances", data)
        except GoneError:
            self.taking = "?"
            raise
        self.taking = str(answer["id"])
        return answer

    def _begun(self, server: Server, path: str, data: object) -> dict[str, Any]:
        """An operation. Raises OperationError for what another way may do."""
        try:
            return dict(server.decoded(server.send("POST", path, data)))
        except CtrmgrError as error:
            name = self.name if server is self.source else self.new
            told = instances.translated(server, name, error)
            if isinstance(told, ConflictError | GoneError | StaleError | OperationError):
                raise told from None
            raise OperationError(told.message, error.message.partition(": ")[2] or error.message) from None

    def _wait(self) -> None:
        """Both ends: the target has it when both say so."""
        query = {"timeout": str(MEET_SECONDS)}
        path = f"/operations/{self.taking}/wait"
        found = self.target.decoded(self.target.send("GET", path, query=query, timeout=MEET_SECONDS + 30.0))
        if found["status_code"] == RUNNING and not _is_running(self.source, self.giving):
            raise OperationError("", f"`{self.source.name}` and `{self.target.name}` do not reach each other")
        self.target.wait(self.taking)
        try:
            self.source.wait(self.giving)
        except OperationError as error:
            if error.reason != GONE:  # servers forget operations five seconds after their end
                raise

    def _undo(self) -> str:
        """End both operations, and take away what was made; returns what is left."""
        if self.giving:
            self.source.cancel(self.giving)
        if not self.taking:
            return ""
        if self.taking != "?":
            self.target.cancel(self.taking)
        left = instances.removed(self.target, self.new)
        return f"{instances.doubt(self.target, self.new, 'made')} ({left})" if left else ""


def _way_to(server: Server, address: str, operation: Mapping[str, Any]) -> dict[str, object]:
    """What the other needs to come to an operation on `server`."""
    return {
        "operation": f"{address}/1.0/operations/{operation['id']}",
        "certificate": server.info["environment"]["certificate"],
        "secrets": operation["metadata"],
    }


def _is_running(server: Server, operation: str) -> bool:
    try:
        return bool(server.get(f"/operations/{operation}")["status_code"] == RUNNING)
    except NotFoundError:
        return False
