# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's REST API, as LXD and Incus both have it: requests, operations, entity tags, and refusals as our errors."""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError
from ctrmgr.remote import registry
from ctrmgr.remote.body import dumps, loads
from ctrmgr.remote.wire import ANSWER_SECONDS, Connection, GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ctrmgr.remote.registry import Remote
    from ctrmgr.remote.wire import Answer, Target

SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")


def quoted(word: str) -> str:
    """For one segment of a path, or one value of a query."""
    return "".join(
        letter if letter in SAFE else "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogateescape"))
        for letter in word
    )


BUSY = ("matching non-reusable operation", "nstance is busy running")
"""How LXD says that somebody else changes an instance at this moment."""


BUSY_SECONDS = 40.0
"""Who is busy with an instance may attach a disk, or wait for something himself: LXD 5.0 does for half a minute after a failed start."""

GONE = "the operation is gone"
REASON_MAX = 500


def shown(text: object) -> str:
    """What a server says, for a terminal: it is not to steer or fill it."""
    words = str(text)[:REASON_MAX]
    return words if words.isprintable() else "".join(each if each.isprintable() else " " for each in words).strip()


class UnknownError(NotFoundError):
    """The server has no such object (404)."""


class StaleError(BackendError):
    """Somebody has changed the object since we read it (412), or is about to."""


class OperationError(BackendError):
    """An operation of the server's ended in failure: `reason` is its own words."""

    def __init__(self, message: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Server:
    """One remote, talked to over one connection."""

    def __init__(self, name: str, target: Target, project: str = "") -> None:
        self.name, self.target, self.project = name, target, project
        self.connection = Connection(target)
        self._info: dict[str, Any] | None = None
        self.date = ""
        """The server's clock at its last answer."""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def url(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """`path` is below `/1.0` and quoted already."""
        words = {**({"project": self.project} if self.project else {}), **(query or {})}
        return f"/1.0{path}" + (
            "?" + "&".join(f"{key}={quoted(value)}" for key, value in words.items()) if words else ""
        )

    def send(
        self,
        method: str,
        path: str,
        data: object = None,
        *,
        query: Mapping[str, str] | None = None,
        etag: str = "",
        timeout: float | None = ANSWER_SECONDS,
    ) -> Answer:
        """Raises what `refusal` makes of an answer that is a refusal, and GoneError."""
        body = b"" if data is None else dumps(data).encode()
        headers = {"Content-Type": "application/json"} if body else {}
        if etag:
            headers["If-Match"] = etag
        answer = self.connection.request(method, self.url(path, query), body, headers, timeout=timeout)
        self.date = answer.headers.get("date", "")
        if answer.status >= 300:
            raise self.refusal(answer)
        return answer

    def refusal(self, answer: Answer) -> CtrmgrError:
        """The error for a status of 300 or more."""
        reason = self.reason(answer)
        if self.project and "project not found" in reason.lower():
            return self.no_project()
        if answer.status == 404:
            return UnknownError(f"`{self.name}`: {reason}")
        if answer.status == 409:
            return ConflictError(f"`{self.name}`: {reason}")
        if answer.status == 412 or any(word in reason for word in BUSY):
            return StaleError(f"`{self.name}`: {reason}")
        if answer.status == 403:
            return BackendError(
                f"`{self.name}` refuses: {reason}", hint=f"does it trust us? `ctrmgr remote show {self.name}`"
            )
        return BackendError(f"`{self.name}` refuses: {reason}")

    def no_project(self) -> BackendError:
        return BackendError(
            f"`{self.name}` has no project `{self.project}`", hint="`ctrmgr remote remove` and `add` choose another"
        )

    def check_project(self) -> None:
        """Raises BackendError when it is gone: servers find nothing in it then, and say no more."""
        if self.project:
            try:
                self.get(f"/projects/{quoted(self.project)}")
            except UnknownError:
                raise self.no_project() from None

    @staticmethod
    def reason(answer: Answer) -> str:
        try:
            found = loads(answer.body)["error"]
        except (ValueError, KeyError, TypeError):
            found = ""
        return shown(found) or f"HTTP status {answer.status}"

    def get(self, path: str, *, query: Mapping[str, str] | None = None) -> Any:
        """The `metadata` of a GET."""
        return self.decoded(self.send("GET", path, query=query))

    def decoded(self, answer: Answer) -> Any:
        try:
            body = loads(answer.body)
            if body["type"] != "error":
                return body["metadata"]
        except (ValueError, KeyError, TypeError):
            raise BackendError(f"`{self.name}` does not answer as LXD and Incus do", hint="is its URL right?") from None
        # Incus answers so, with HTTP status 200, who waits for an operation that has failed.
        reason = shown(body["error"])
        if any(word in reason for word in BUSY):
            raise StaleError(f"`{self.name}`: {reason}")
        raise OperationError(f"`{self.name}` refuses: {reason}", reason)

    def get_tagged(self, path: str) -> tuple[Any, str]:
        """The same with its entity tag."""
        answer = self.send("GET", path)
        return self.decoded(answer), answer.headers.get("etag", "")

    def change(
        self,
        method: str,
        path: str,
        data: object = None,
        *,
        query: Mapping[str, str] | None = None,
        etag: str = "",
        doubt: str = "",
    ) -> Any:
        """Send what changes something, and wait until it is done. Returns the operation, or the metadata.

        `doubt` is what to say when the server goes away in the middle.
        """
        try:
            answer = self.send(method, path, data, query=query, etag=etag)
            found = self.decoded(answer)
            if answer.status != 202:
                return found
            return self.wait(found["id"])
        except GoneError as error:
            if error.sent and doubt and not error.hint:
                error.hint = doubt
            raise

    def wait(self, operation: str) -> Any:
        """Until an operation ends. Raises OperationError; an interrupt cancels it."""
        try:
            found = self.decoded(self.send("GET", f"/operations/{operation}/wait", timeout=None))
        except KeyboardInterrupt:
            self.cancel(operation)
            raise
        except NotFoundError:
            raise OperationError(f"`{self.name}`: {GONE}", GONE) from None
        if found["status_code"] == 401:
            raise OperationError(f"`{self.name}`: the operation was cancelled", "cancelled")
        if found["status_code"] >= 300:
            reason = shown(found.get("err") or found["status"])
            if any(word in reason for word in BUSY):
                raise StaleError(f"`{self.name}`: {reason}")
            raise OperationError(f"`{self.name}` refuses: {reason}", reason)
        return found

    def cancel(self, operation: str) -> None:
        """Ask for its end, over a connection of its own, and wait for it: what cannot be ended goes on to its own."""
        with Server(self.name, self.target, self.project) as other:
            try:
                other.send("DELETE", f"/operations/{operation}", timeout=5)
            except GoneError:
                return
            except CtrmgrError:
                pass
            try:
                other.send("GET", f"/operations/{operation}/wait", query={"timeout": "60"}, timeout=65)
            except CtrmgrError:
                pass

    @property
    def info(self) -> dict[str, Any]:
        """What the server says of itself."""
        if self._info is None:
            self._info = dict(self.get(""))
        return self._info

    def forget(self) -> None:
        """What the server says of itself has changed."""
        self._info = None

    @property
    def extensions(self) -> frozenset[str]:
        return frozenset(self.info.get("api_extensions") or ())


def open_server(name: str) -> Server:
    """A registered remote. Raises NotFoundError; SpecError for one that has only images."""
    return of(registry.load().get(name))


def of(remote: Remote) -> Server:
    if remote.kind == registry.IMAGES:
        raise BackendError(f"`{remote.name}` has images only", hint="instances are on LXD and Incus servers")
    return Server(remote.name, remote.target(), remote.project)


def retried(server: Server, change: Callable[[Any, str], None], path: str, *, seconds: float = BUSY_SECONDS) -> None:
    """`change(object, entity tag)`, again with what is there now whenever somebody else was faster or is at it. Raises ConflictError."""
    import time

    deadline, pause = time.monotonic() + seconds, 0.005
    while True:
        found, etag = server.get_tagged(path)
        try:
            change(found, etag)
            return
        except StaleError:
            if time.monotonic() > deadline:
                raise ConflictError(f"`{server.name}`: others change it faster than we can", hint="try again") from None
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)
