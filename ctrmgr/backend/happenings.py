# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to devices that instances were given, and what their policies say about it. Cold.

RUN/.device-events    flat: what was heard the last time, so that it is told once
"""

from __future__ import annotations

import os

from ctrmgr import state
from ctrmgr.backend import detach, held, local, record
from ctrmgr.devices.plugin import DeviceEvent
from ctrmgr.devices.request import POLICIES
from ctrmgr.errors import CtrmgrError
from ctrmgr.plugins import call, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.backend.held import Held

PLACE = ".device-events"


class Happening:
    """One thing that happened to a device of an instance; `policy` is what its keys say, `outcome` how that went."""

    __slots__ = ("detail", "device", "found", "instance", "kind", "outcome", "policy", "row", "type")

    def __init__(self, one: Held, event: DeviceEvent) -> None:
        self.instance, self.device, self.type, self.found = one.instance, one.device, one.type, one.found_id
        self.kind, self.detail, self.outcome = event.kind, event.detail, ""
        self.policy = one.values.get(f"on-{event.kind}") or "ignore"
        self.row = ("event", one.token, event.kind, event.mark)

    def details(self) -> dict[str, object]:
        """What of it is told to who only watches."""
        known = {"device": self.device, "found": self.found, "detail": self.detail, "policy": self.policy}
        return {key: value for key, value in known.items() if value}

    def fields(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in (
            "instance", "device", "type", "found", "kind", "detail", "policy", "outcome",
        )}  # fmt: skip


def heard() -> tuple[list[Happening], list[CtrmgrError]]:
    """All that has happened and is not over, and which plugins could not be asked. Nothing is carried out."""
    taken = [each for each in held.everything() if each.instance != held.NAMED]
    found: list[Happening] = []
    wrong: list[CtrmgrError] = []
    for kind in sorted({each.type for each in taken}):
        those = [each for each in taken if each.type == kind]
        try:
            told = _of_plugin(kind, those) if any(each.is_plugins for each in those) else _of_ours(those)
        except CtrmgrError as error:
            wrong.append(error)
            continue
        found += [Happening(one, event) for event in told for one in those if one.found_id == event.found]
    return found, wrong


def poll(*, act: bool = True) -> tuple[list[Happening], list[CtrmgrError]]:
    """What is new since the last time, with its policies carried out, and which plugins could not be asked.

    Without `act` nothing is carried out, and it is new the next time, too.
    """
    found, wrong = heard()
    told = known()
    new = [each for each in found if each.row not in told]
    if act:
        _note([list(each.row) for each in found])
        for each in new:
            each.outcome = _carried_out(each)
    return new, wrong


def _of_plugin(kind: str, those: Sequence[Held]) -> list[DeviceEvent]:
    """What the plugin says; and what it does not find any more is lost, whether it says so or not."""
    source = registry.find(kind)
    found = {each.found_id: each.found for each in those}
    told = call.events(source, list(found.values()))
    there = {each.id for each in call.identify(source)}
    said = {event.found for event in told if event.kind == "lost"}
    return told + [DeviceEvent(id, "lost", "it is not found any more") for id in found if id not in there | said]


def _of_ours(those: Sequence[Held]) -> list[DeviceEvent]:
    lost = {each.found_id: path for each in those for path in each.found.nodes if not os.path.exists(path)}
    return [DeviceEvent(id, "lost", f"`{path}` is gone") for id, path in lost.items()]


def known() -> set[tuple[str, ...]]:
    """The rows of what was told already."""
    try:
        return {tuple(row) for row in state.read_flat(f"{state.run_dir()}/{PLACE}")}
    except (FileNotFoundError, CtrmgrError):  # a damaged one: things are told once more
        return set()


def _note(rows: Sequence[list[str]]) -> None:
    path = f"{state.run_dir()}/{PLACE}"
    if rows:
        state.make_dir(state.run_dir())
        state.write_flat(path, rows)
    else:
        state.unlink(path)


def _carried_out(each: Happening) -> str:
    """How it went, for people."""
    if each.policy not in POLICIES or each.policy == "ignore":
        return "left as it is"
    if not record.is_running(each.instance):
        return "it is not running"
    try:
        if each.policy == "detach":
            detach.detach(each.instance, each.device, volatile=True)
            return "detached; the next start chooses again"
        if each.policy == "restart":
            local.restart(each.instance)
            return "restarted"
        local.stop(each.instance)
    except CtrmgrError as error:
        return f"failed: {error.message}"
    return "stopped"
