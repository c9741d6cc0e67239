# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr config edit` on `REMOTE:NAME`."""

from __future__ import annotations

import os
import tempfile

from ctrmgr import source
from ctrmgr.cli import distant, distant_config
from ctrmgr.cli.edit import edit
from ctrmgr.errors import ConflictError
from ctrmgr.remote import instances, owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from ctrmgr.cli.command import Args
    from ctrmgr.remote.server import Server
    from ctrmgr.remote.translate import Translated

    T = TypeVar("T")


class Edited:
    """What was typed: keys and devices that differ from the server's are translated, all others stay as they are there."""

    def __init__(self, server: Server, before: Mapping[str, Any], file: str, text: str) -> None:
        """Raises SpecError for what is no configuration, UnsupportedError for what the server cannot do."""
        document = source.parse(file, text)
        if isinstance(document.data, dict) and document.data.pop("profiles", before["profiles"]) != before["profiles"]:
            raise document.error(("profiles",), "cannot be changed here", "launch another instance with them")
        wanted = distant_config.plain(document)
        config, devices = _differing(wanted.config, before["config"]), _differing(wanted.devices, before["devices"])
        raw = {key: value for key, value in wanted.config.items() if key == "raw.lxc"}  # keys of ours add lines to it
        self.made: Translated = distant_config.translated(server, {**raw, **config}, devices)
        self.made.refuse(server.name)
        own = {key: value for key, value in before["config"].items() if key.startswith(distant_config.NOTES)}
        self.config = {**own, **{key: value for key, value in wanted.config.items() if key not in config}}
        self.devices = {name: keys for name, keys in wanted.devices.items() if name not in devices}

    def put(self, server: Server, name: str, data: dict[str, Any]) -> None:
        for device, key, owner in self.made.names:
            self.made.devices[device][key] = str(owners.number(server, name, key, owner))
        data["config"] = {**self.config, **self.made.config}
        data["devices"] = {**self.devices, **self.made.devices}


def _differing(wanted: Mapping[str, T], before: Mapping[str, T]) -> dict[str, T]:
    return {key: value for key, value in wanted.items() if before.get(key) != value}


def config_edit(args: Args) -> None:
    """Others may go on meanwhile; what they changed is not overwritten."""
    word = args.positional[0]
    server, name = distant.one(word)
    before = instances.get(server, name)
    shown = distant_config.shown(before)
    result = edit(shown, f"{server.name}-{name}", lambda file, text: Edited(server, before, file, text))
    if result is None:
        distant.talk(args, "nothing was changed")
        return
    text, edited = result

    def change(now: Mapping[str, Any], data: dict[str, Any]) -> None:
        if distant_config.shown(now) != shown:
            raise ConflictError(f"`{word}` was changed by somebody else", hint=f"your text is kept in `{_kept(text)}`")
        edited.put(server, name, data)

    if args.flag("dry-run"):
        data: dict[str, Any] = {"profiles": before["profiles"]}
        edited.put(server, name, data)
        print(distant_config.shown(data), end="")
        return
    instances.update(server, name, change)


def _kept(text: str) -> str:
    fd, path = tempfile.mkstemp(prefix="ctrmgr-", suffix=".yaml")
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return path


RUN: dict[str, Callable[[Args], int | None]] = {"config edit": config_edit}
