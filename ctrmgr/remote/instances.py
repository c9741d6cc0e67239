# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances on a server: what the local verbs do, with the same words for what goes wrong."""

from __future__ import annotations

from ctrmgr.errors import BackendError, ConflictError, CtrmgrError, NotFoundError, SpecError
from ctrmgr.remote.server import BUSY_SECONDS, OperationError, Server, StaleError, UnknownError, quoted, retried
from ctrmgr.remote.wire import GoneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

STOP_SECONDS = 30.0
CONFLICTS = (
    "already running",
    "already stopped",
    "already frozen",
    "already exists",
    "already in use",
    "already has",
    "unique constraint",
    "is running",
    "currently running",
    "is not running",
    "isn't running",
    "not frozen",
    "is stopped",
    "while the instance is",
    "renaming of running",
)
"""What servers say (with status 400 or in an operation) when an instance is in the wrong state."""
TAKEN = ("already exists", "already in use", "unique constraint")
RUNS_ALREADY = "is running already"
IN_OUR_WORDS = {
    "already running": (RUNS_ALREADY, None),
    "already stopped": ("is not running", None),
    "Renaming of running": ("is running", "stop it first"),
}
INVALID = ("Invalid instance name", "Invalid config", "Invalid devices", "Invalid instance snapshot name",
           "Invalid snapshot name", "Invalid value",
           "Unknown configuration key", "is reserved for snapshots")  # fmt: skip
"""What they say of words that cannot be right."""


def label(server: Server, name: str) -> str:
    return f"{server.name}:{name}"


def translated(server: Server, name: str, error: CtrmgrError) -> CtrmgrError:
    """A server's refusal about an instance, in the words and with the exit code that it has locally."""
    if isinstance(error, GoneError | StaleError):
        return error
    reason = error.message.partition(": ")[2] or error.message
    if isinstance(error, UnknownError):
        server.check_project()
        return NotFoundError(f"no instance `{label(server, name)}`", hint=f"`ctrmgr list {server.name}:` lists them")
    if isinstance(error, BackendError) and any(word in reason for word in INVALID):
        return SpecError(f"`{label(server, name)}`: {reason}")
    if isinstance(error, BackendError) and any(word in reason.lower() for word in CONFLICTS):
        for theirs, (ours, hint) in IN_OUR_WORDS.items():
            if theirs in reason:
                return ConflictError(f"`{label(server, name)}` {ours}", hint=hint)
        return ConflictError(f"`{label(server, name)}`: {reason}", hint=error.hint)
    if isinstance(error, BackendError | ConflictError):
        error.message = f"`{label(server, name)}`: {reason}"
    return error


def named(server: Server, name: str, error: CtrmgrError) -> CtrmgrError:
    """The same of what is to have this name."""
    told = translated(server, name, error)
    if isinstance(told, ConflictError) and any(word in told.message.lower() for word in TAKEN):
        return exists(server, name)
    return told


def exists(server: Server, name: str) -> ConflictError:
    return ConflictError(
        f"an instance `{label(server, name)}` exists already", hint="choose another name, or delete it first"
    )


def path(name: str) -> str:
    return f"/instances/{quoted(name)}"


def get(server: Server, name: str) -> dict[str, Any]:
    """All of one. Raises NotFoundError."""
    try:
        found: dict[str, Any] = server.get(path(name))
    except NotFoundError as error:
        raise translated(server, name, error) from None
    return found


def doubt(server: Server, name: str, what: str) -> str:
    """What to say when a server goes away that was told to do this."""
    one = label(server, name)
    look = {
        "made": f"one that is there may be half made: `ctrmgr delete {one}`",
        "changed": f"`ctrmgr config show {one}` tells",
    }
    return f"whether `{one}` was {what} is not known: " + look.get(what, f"look with `ctrmgr list {server.name}:`")


# States


def set_state(server: Server, name: str, action: str, *, force: bool = False, timeout: int = -1) -> None:
    """One change of state. Raises NotFoundError, ConflictError, BackendError."""
    data = {"action": action, "force": force, "timeout": timeout, "stateful": False}
    try:
        patient(lambda: server.change("PUT", path(name) + "/state", data, doubt=doubt(server, name, DONE[action])))
    except CtrmgrError as error:
        raise translated(server, name, error) from None


DONE = {"start": "started", "stop": "stopped", "restart": "restarted", "freeze": "frozen", "unfreeze": "thawed"}


def patient(action: Callable[[], object]) -> None:
    """Again while the server says that it is busy with the instance: LXD 5.0 does for half a minute after a failed start."""
    import time

    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            action()
            return
        except StaleError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


ENDING_SECONDS = 10.0
"""A server that calls an instance running whose init has ended does so for less than one."""
NO_PID = "Invalid PID"
"""What Incus says when it looks for the init of such an instance."""


def start(server: Server, name: str) -> None:
    import time

    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        try:
            set_state(server, name, "start")
            return
        except ConflictError as error:
            if RUNS_ALREADY not in error.message or not _is_ending(server, name) or time.monotonic() > deadline:
                raise
        except BackendError as error:
            if not isinstance(error, GoneError):
                error.hint = last_words(server, name) or error.hint
            raise
        time.sleep(0.1)


def _is_ending(server: Server, name: str) -> bool:
    """Whether its init is gone, whatever the server calls it."""
    try:
        return not server.get(f"{path(name)}/state").get("pid")
    except BackendError as error:
        if NO_PID not in error.message:
            raise
        return True


def rests(server: Server, name: str, found: Mapping[str, Any]) -> bool:
    """Whether it is stopped; one whose end has begun is waited for."""
    import time

    deadline = time.monotonic() + ENDING_SECONDS
    while found["status"] not in ("Stopped", "Error"):
        if time.monotonic() > deadline or not _is_ending(server, name):
            return False
        time.sleep(0.1)
        found = get(server, name)
    return True


def state(server: Server, name: str) -> dict[str, Any]:
    """What it uses now. Raises NotFoundError, BackendError."""
    import time

    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        try:
            found: dict[str, Any] = server.get(f"{path(name)}/state")
            return found
        except BackendError as error:
            if NO_PID not in error.message or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def last_words(server: Server, name: str) -> str | None:
    """Why a start failed, out of the log that a server keeps of it."""
    for log in ("lxc.log",):
        try:
            answer = server.send("GET", f"{path(name)}/logs/{log}")
        except CtrmgrError:
            return None
        lines = [
            line.split(" - ", 1)[-1] for line in answer.body.decode(errors="replace").splitlines() if " ERROR " in line
        ]
        if lines:
            return "its log: " + lines[0].split(" - ", 1)[-1][:300]
    return None


def stop(server: Server, name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Ask init to end; kill what is left after `timeout` seconds, or at once."""
    if force:
        set_state(server, name, "stop", force=True)
        return
    seconds = timeout if timeout is not None else shutdown_seconds(get(server, name))
    if seconds < 1:
        set_state(server, name, "stop", force=True)
        return
    try:
        set_state(server, name, "stop", timeout=round(seconds))
    except (BackendError, ConflictError) as error:
        if isinstance(error, GoneError) or get(server, name)["status"] == "Stopped":
            raise
        set_state(server, name, "stop", force=True)


def shutdown_seconds(found: Mapping[str, Any]) -> float:
    given = found["expanded_config"].get("boot.host_shutdown_timeout", "")
    return float(given) if given.isdecimal() else STOP_SECONDS


def restart(server: Server, name: str, *, timeout: float | None = None, force: bool = False) -> None:
    """Stop, if it runs, and start."""
    found = get(server, name)
    if found["status"] == "Stopped":
        start(server, name)
        return
    seconds = timeout if timeout is not None else shutdown_seconds(found)
    if not force and seconds >= 1:
        try:
            set_state(server, name, "restart", timeout=round(seconds))
            return
        except (BackendError, ConflictError) as error:
            if isinstance(error, GoneError):
                raise
            if get(server, name)["status"] == "Stopped":
                start(server, name)
                return
    set_state(server, name, "restart", force=True)


def freeze(server: Server, name: str, *, thaw: bool = False) -> None:
    """What is so already stays so."""
    try:
        set_state(server, name, "unfreeze" if thaw else "freeze")
    except ConflictError:
        if get(server, name)["status"] != ("Running" if thaw else "Frozen"):
            raise


def delete(server: Server, name: str, *, force: bool = False, again: int = 2) -> None:
    """`again`: how often it is stopped anew when it turns out to run."""
    found = get(server, name)
    if not force and not rests(server, name, found):
        raise ConflictError(f"`{label(server, name)}` is running", hint="stop it first, or say --force")
    if force and found["status"] not in ("Stopped", "Error"):
        set_state(server, name, "stop", force=True)
        if found["ephemeral"]:
            return
    try:
        patient(lambda: server.change("DELETE", path(name), doubt=doubt(server, name, "deleted")))
    except CtrmgrError as error:
        refused = translated(server, name, error)
        # One that did not start, or is just ending, is called stopped, and then running.
        if not (again and isinstance(refused, ConflictError) and (force or rests(server, name, get(server, name)))):
            raise refused from None
        delete(server, name, force=force, again=again - 1)


def rename(server: Server, name: str, new: str) -> None:
    if name == new:
        get(server, name)
        raise exists(server, new)  # servers call the name invalid
    try:
        server.change("POST", path(name), {"name": new}, doubt=doubt(server, name, "renamed"))
    except UnknownError as error:
        raise translated(server, name, error) from None
    except CtrmgrError as error:
        raise named(server, new if _about_name(error) else name, error) from None


def _about_name(error: CtrmgrError) -> bool:
    return "instance name" in error.message or any(word in error.message.lower() for word in TAKEN)


# Making


def create(
    server: Server,
    name: str,
    source: Mapping[str, Any],
    *,
    profiles: Sequence[str],
    config: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
    ephemeral: bool = False,
    target: str = "",
) -> None:
    """`target` is a member of a cluster. Raises ConflictError when there is one of the name; nothing is left of one that could not be made."""
    data = {
        "name": name,
        "source": source,
        "profiles": list(profiles),
        "config": dict(config),
        "devices": devices,
        "ephemeral": ephemeral,
        "type": "container",
    }
    try:
        query = {"target": target} if target else None
        server.change("POST", "/instances", data, query=query, doubt=doubt(server, name, "made"))
    except KeyboardInterrupt:
        removed(server, name)
        raise
    except CtrmgrError as error:
        if isinstance(error, NotFoundError):
            raise BackendError(f"`{server.name}`: {error.message.partition(': ')[2]}", hint=error.hint) from None
        if isinstance(error, StaleError):  # it is busy with the one of this name
            raise exists(server, name) from None
        raise named(server, name, error) from None


def finish(server: Server, name: str, action: Callable[[], None]) -> None:
    """Do what is left after `create`; when it fails, the instance goes again, or it is said that it is still there."""
    try:
        action()
    except BaseException as error:
        left = removed(server, name)
        if left and isinstance(error, CtrmgrError):
            error.hint = f"`{label(server, name)}` was made and could not be removed again: {left}"
        raise


def removed(server: Server, name: str) -> str:
    """Take away what we have made; returns why that failed."""
    try:
        with Server(server.name, server.target, server.project) as other:
            delete(other, name, force=True)
    except NotFoundError:
        return ""
    except CtrmgrError as error:
        return error.message
    return ""


# Configuration


def update(server: Server, name: str, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Read, change, write, if nobody has changed it meanwhile; else again. `change` gets all that was read, and what is written."""

    def once(found: dict[str, Any], etag: str) -> None:
        kept = ("architecture", "config", "devices", "ephemeral", "profiles", "description", "stateful")
        data = {key: found[key] for key in kept if key in found}
        data |= {"config": dict(found["config"]), "devices": dict(found["devices"])}
        change(found, data)
        server.change("PUT", path(name), data, etag=etag, doubt=doubt(server, name, "changed"))

    try:
        retried(server, once, path(name))
    except OperationError as error:
        raise translated(server, name, error) from None
    except (NotFoundError, BackendError) as error:
        raise translated(server, name, error) from None
