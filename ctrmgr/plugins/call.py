# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking a plugin: a process for each call, a time for its answer, and one error with the plugin's name for all that can go wrong."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from ctrmgr.devices.driver import Field
from ctrmgr.devices.plugin import Allocation, DeviceEvent, Found, Holder, Partition, Plugin
from ctrmgr.edits import ContainerEdits
from ctrmgr.errors import ConflictError, CtrmgrError, HostError, NotFoundError, SpecError, UnsupportedError
from ctrmgr.plugins import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from ctrmgr.plugins.registry import Source

    T = TypeVar("T")

ANSWER_MAX = 4 << 20
SAID_MAX = 64 << 10
BOOT = "import sys; sys.path[:] = sys.argv[1:]; from ctrmgr.plugins.worker import main; main()"
ON_PURPOSE = (ConflictError, NotFoundError, SpecError, HostError, UnsupportedError)
"""What a plugin may raise to say no; anything else is its bug."""


class PluginError(HostError):
    """A plugin is broken: it raised, answered nonsense or nothing at all. An error that it raised on purpose is none."""


def seconds(own: float) -> float:
    """How long a call may take. Raises SpecError."""
    wanted = os.environ.get("CTRMGR_PLUGIN_SECONDS", "")
    if not wanted:
        return own
    try:
        chosen = float(wanted)
    except ValueError:
        chosen = 0
    if not 0 < chosen <= 3600:
        raise SpecError(f"CTRMGR_PLUGIN_SECONDS is `{wanted}`", hint="seconds, up to 3600")
    return chosen


def describe(source: Source) -> tuple[str, bool, dict[str, Field]]:
    """Its line for people, whether it is persistent, and its fields; how they are parsed only it knows."""
    about, answer = _ask(source, "describe", {})
    given = wire.table(answer, "the description")
    fields = {}
    for name, each in wire.table(given["fields"], "`FIELDS`").items():
        field = wire.table(each, name)
        fields[name] = Field(
            str,
            wire.text(field["description"], name),
            default=wire.text(field["default"], name),
            required=field["required"] is True,
            refused=wire.text(field["refused"], name),
        )
    return wire.text(given["description"], "`description`"), about["persistent"] is True, fields


def check(source: Source, values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The values in canonical form, and for each key that is wrong the reason."""
    answer = wire.table(_ask(source, "check", {"values": dict(values)})[1], "the answer")
    return wire.texts(answer["good"], "`good`"), wire.texts(answer["wrong"], "`wrong`")


def identify(source: Source, root: str = "/", *, most: float = 3600.0) -> list[Found]:
    """What it finds, within `most` seconds even if it may take longer by itself."""
    return _read(source, "identify", {"root": root}, wire.all_found, most)[1]


def allocate(
    source: Source, values: Mapping[str, str], found: Sequence[Found], holders: Sequence[Holder]
) -> tuple[Allocation, bool]:
    """What it chooses, one of `found`, and whether it is persistent. Raises PluginError, and what the plugin raises on purpose."""
    arguments = {
        "values": dict(values),
        "found": wire.plain(list(found)),
        "holders": wire.plain(list(holders)),
    }
    about, chosen = _read(source, "allocate", arguments, wire.allocation)
    for each in found:
        if each.id == chosen.found.id:
            return chosen.replace(found=each), about["persistent"] is True
    raise _broken(source, "allocate", f"it chose `{chosen.found.id}`, which is none of those that it could have")


def partitions(source: Source, found: Sequence[Found]) -> list[Partition] | None:
    """What these devices are divided into now; None when the plugin cannot know."""
    return _read(source, "partitions", {"found": wire.plain(list(found))}, wire.partitions)[1]


def divide(
    source: Source, found: Found, takes: Mapping[str, int], profile: str, taken: Sequence[Partition]
) -> tuple[Allocation, bool]:
    """A partition of a device, and whether it is persistent. Raises PluginError, and what the plugin raises on purpose."""
    arguments = {
        "found": wire.plain(found),
        "takes": dict(takes),
        "profile": profile,
        "taken": wire.plain(list(taken)),
    }
    about, chosen = _read(source, "divide", arguments, wire.allocation)
    short = [pool for pool, amount in takes.items() if chosen.takes.get(pool, 0) < amount]
    if chosen.found.id != found.id or short:
        wrong = f"less of `{short[0]}` than is asked for" if short else f"a part of `{chosen.found.id}`"
        raise _broken(source, "divide", f"it chose {wrong}")
    return chosen.replace(found=found), about["persistent"] is True


def prepare(source: Source, allocation: Allocation) -> ContainerEdits:
    return _read(source, "prepare", {"allocation": wire.plain(allocation)}, wire.edits)[1]


def release(source: Source, allocation: Allocation) -> None:
    _ask(source, "release", {"allocation": wire.plain(allocation)})


def events(source: Source, found: Sequence[Found]) -> list[DeviceEvent]:
    return _read(source, "events", {"found": wire.plain(list(found))}, wire.events)[1]


def _read(
    source: Source, call: str, arguments: Mapping[str, object], read: Callable[[object], T], most: float = 3600.0
) -> tuple[dict[str, object], T]:
    about, answer = _ask(source, call, arguments, most)
    try:
        return about, read(answer)
    except ValueError as error:
        raise _broken(source, call, str(error)) from None


def _broken(source: Source, call: str, reason: str, hint: str | None = None) -> PluginError:
    return PluginError(
        f"plugin `{source.type}` failed in `{call}`: {reason}", hint=hint or f"it comes from {source.origin}"
    )


def _ask(
    source: Source, call: str, arguments: Mapping[str, object], most: float = 3600.0
) -> tuple[dict[str, object], object]:
    """What the plugin says of itself, and its answer."""
    if source.problem:
        raise source.problem
    request = {"type": source.type, "path": source.path, "entry": source.entry, "call": call, "arguments": arguments}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", BOOT, *(os.path.abspath(path) for path in sys.path if path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    try:
        return _converse(source, call, json.dumps(request).encode() + b"\n", process, most)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
        except ProcessLookupError:
            pass
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def _converse(
    source: Source, call: str, request: bytes, process: subprocess.Popen[bytes], most: float
) -> tuple[dict[str, object], object]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    poll = select.poll()
    streams = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    answers, said = streams.values()
    for fd in streams:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    os.set_blocking(process.stdin.fileno(), False)
    poll.register(process.stdin.fileno(), select.POLLOUT)
    allowed = seconds(min(Plugin.seconds, most))
    deadline = time.monotonic() + allowed
    about: dict[str, object] | None = None
    while process.stdout.fileno() in streams:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            reason = f"it has not answered within {allowed:g} seconds"
            raise _broken(source, call, reason, "CTRMGR_PLUGIN_SECONDS gives it longer")
        for fd, _ in ready:
            if fd == process.stdin.fileno():
                try:
                    request = request[os.write(fd, request) :]
                except BrokenPipeError:
                    request = b""
                if not request:
                    poll.unregister(fd)
                continue
            data = os.read(fd, 65536)
            streams[fd] += data
            if not data:
                poll.unregister(fd)
                del streams[fd]
        del said[:-SAID_MAX]
        if len(answers) > ANSWER_MAX:
            raise _broken(source, call, "its answer is too long")
        if about is None and b"\n" in answers:
            first = _line(source, call, bytes(answers.partition(b"\n")[0]))
            if "seconds" not in first:
                break  # it could not be loaded
            about = first
            allowed = seconds(min(max(allowed, float(str(first["seconds"]))), most))
            deadline = time.monotonic() + allowed
        if answers.count(b"\n") > (about is not None):
            break
    lines = bytes(answers).split(b"\n")[:-1]
    if not lines or (about is not None and len(lines) < 2):
        code = _ended(process)
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise _broken(source, call, f"it ended with {ended} and no answer", last or None)
    answer = _line(source, call, lines[-1])
    if "error" in answer:
        raise _failure(source, call, answer)
    return about or {}, answer.get("answer")


def _line(source: Source, call: str, line: bytes) -> dict[str, object]:
    try:
        return wire.table(json.loads(line), "the answer")
    except ValueError as error:
        raise _broken(source, call, f"its answer is none: {error}") from None


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. One that has closed its outputs and goes on is ended."""
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _failure(source: Source, call: str, answer: Mapping[str, object]) -> CtrmgrError:
    """The error that an answer says. What the plugin raised on purpose keeps its kind."""
    said, hint = str(answer["error"]), answer.get("hint")
    message = f"plugin `{source.type}`: {said}"
    if answer.get("wrong"):
        return PluginError(message, hint=f"it comes from {source.origin}")
    for kind in ON_PURPOSE:
        if answer.get("kind") == kind.__name__:
            return kind(message, hint=str(hint) if hint else None)
    return _broken(source, call, said, str(hint) if hint else None)
