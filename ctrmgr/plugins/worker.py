# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that a plugin's code runs in: one call, one answer. Whatever happens to it happens to nobody else."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import types

from ctrmgr.devices import plugin as interface
from ctrmgr.devices.plugin import Host, Plugin
from ctrmgr.errors import CtrmgrError
from ctrmgr.plugins import registry, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class WrongError(Exception):
    """The plugin is not what it must be."""


def main() -> None:
    """Read the request (a line of JSON), answer in lines of JSON: what the plugin is like, then what it says."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a plugin prints is no answer
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        plugin = _load(request)
        _say(answers, {"seconds": _number(plugin.seconds), "persistent": plugin.persistent is True})
        answer = {"answer": _call(plugin, request["call"], request["arguments"])}
    except BaseException as error:  # whatever a plugin raises, and if it is SystemExit
        answer = _failure(error)
    _say(answers, answer)
    os._exit(0)  # threads that it has left are not waited for


def _end_with_the_caller() -> None:
    """A command that is killed must not leave a plugin at work, which the next command is to undo."""
    sys.stdin.read()
    os._exit(1)


def _say(answers: object, answer: Mapping[str, object]) -> None:
    data = json.dumps(answer)
    print(data, file=answers, flush=True)  # type: ignore[call-overload]


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0 < value <= 3600:
        raise WrongError("its `seconds` is not a number up to 3600")
    return float(value)


def _load(request: Mapping[str, str]) -> Plugin:
    kind, path, entry = request["type"], request["path"], request["entry"]
    if path:
        module = types.ModuleType(f"ctrmgr_plugin_{kind.replace('-', '_')}")
        module.__file__ = path
        sys.modules[module.__name__] = module
        exec(compile(registry.read_trusted(path), path, "exec"), module.__dict__)
        made = getattr(module, "Plugin", None)
        if made is None or made is interface.Plugin:
            raise WrongError("it has no class `Plugin` of its own")
    else:
        name, _, attribute = entry.partition(":")
        made = __import__(name, fromlist=(attribute or "Plugin",))
        for part in (attribute or "Plugin").split("."):
            made = getattr(made, part)
    plugin = made() if isinstance(made, type) else made
    if not isinstance(plugin, Plugin):
        raise WrongError("it does not derive from `ctrmgr.devices.plugin.Plugin`")
    if plugin.API != interface.API:
        raise WrongError(f"it was written for version {plugin.API} of the interface; this ctrmgr has {interface.API}")
    if plugin.type != kind:
        raise WrongError(f"it is called `{kind}`, and its `type` is `{plugin.type}`")
    return plugin


def _call(plugin: Plugin, call: str, given: Mapping[str, object]) -> object:
    if call == "describe":
        return _describe(plugin)
    if call == "check":
        return _check(plugin, wire.texts(given["values"], "`values`"))
    if call == "identify":
        host = Host(wire.text(given["root"], "`root`"))
        return wire.plain([_is(interface.Found, each) for each in plugin.identify(host)])
    if call == "allocate":
        holders = [wire.holder(each) for each in wire.rows(given["holders"], "`holders`")]
        values, found = wire.texts(given["values"], "`values`"), wire.all_found(given["found"])
        return wire.plain(_is(interface.Allocation, plugin.allocate(values, found, holders)))
    if call == "partitions":
        there = plugin.partitions(wire.all_found(given["found"]))
        return None if there is None else wire.plain([_is(interface.Partition, each) for each in there])
    if call == "divide":
        (only,) = wire.all_found([given["found"]])
        taken = wire.partitions(given["taken"]) or []
        takes, profile = wire.amounts(given["takes"], "`takes`"), wire.text(given["profile"], "`profile`")
        return wire.plain(_is(interface.Allocation, plugin.divide(only, takes, profile, taken)))
    if call == "events":
        heard = plugin.events(wire.all_found(given["found"]))
        return wire.plain([_is(interface.DeviceEvent, each) for each in heard])
    allocation = wire.allocation(given["allocation"])
    if call == "prepare":
        return wire.plain(_is(interface.ContainerEdits, plugin.prepare(allocation)))
    if call == "release":
        plugin.release(allocation)
        return None
    raise WrongError(f"there is no call `{call}`")


def _is(kind: type, value: object) -> object:
    if not isinstance(value, kind):
        raise WrongError(f"it answered with {type(value).__name__} instead of {kind.__name__}")
    return value


def _describe(plugin: Plugin) -> dict[str, object]:
    fields = {}
    for name, field in plugin.FIELDS.items():
        if not isinstance(field, interface.Field):
            raise WrongError(f"`FIELDS[{name}]` is no Field")
        fields[wire.text(name, "a name in `FIELDS`", empty=False)] = {
            "description": wire.text(field.description, f"`FIELDS[{name}].description`"),
            "default": wire.text(field.default, f"`FIELDS[{name}].default`"),
            "refused": wire.text(field.refused, f"`FIELDS[{name}].refused`"),
            "required": field.required is True,
        }
    return {"description": wire.text(plugin.description, "`description`"), "fields": fields}


def _check(plugin: Plugin, values: Mapping[str, str]) -> dict[str, object]:
    """Canonical values; and what is wrong, by key."""
    good, wrong = {}, {}
    for name, value in values.items():
        try:
            good[name] = wire.text(plugin.FIELDS[name].parse(value), f"what `{name}` becomes")
        except ValueError as error:
            wrong[name] = str(error)
    return {"good": good, "wrong": wrong}


def _failure(error: BaseException) -> dict[str, object]:
    if isinstance(error, CtrmgrError):
        return {"error": error.message, "kind": type(error).__name__, "hint": error.hint}
    if isinstance(error, WrongError):
        return {"error": str(error), "kind": "", "hint": None, "wrong": True}
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = str(error).strip().partition("\n")[0]
    return {"error": f"{type(error).__name__}: {said}" if said else type(error).__name__, "kind": "", "hint": where}
