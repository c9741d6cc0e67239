# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr config device …` on `REMOTE:NAME`."""

from __future__ import annotations

from ctrmgr.cli import distant, distant_config
from ctrmgr.cli.command import Args, pairs
from ctrmgr.cli.config_device import given
from ctrmgr.errors import ConflictError, NotFoundError
from ctrmgr.remote import instances, owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def _of(found: Mapping[str, Any], word: str, device: str) -> tuple[dict[str, str], bool]:
    """The device's keys as they count, and whether it is the instance's own. Raises NotFoundError."""
    keys = found["expanded_devices"].get(device)
    if keys is None:
        raise NotFoundError(f"`{word}` has no device `{device}`", hint=f"`ctrmgr config device list {word}`")
    return dict(keys), device in found["devices"]


def device_list(args: Args) -> None:
    from ctrmgr.cli import table

    server, name = distant.one(args.positional[0])
    found = instances.get(server, name)
    rows: list[dict[str, object]] = [
        {"name": device, "type": keys["type"], "profile": "" if device in found["devices"] else "(a profile's)"}
        for device, keys in sorted(found["expanded_devices"].items())
    ]
    table.print_rows(("name", "type", "profile"), rows, args.one("format", "table"))


def device_show(args: Args) -> None:
    from ctrmgr.cli import table

    server, name = distant.one(args.positional[0])
    found = instances.get(server, name)["expanded_devices" if args.flag("expanded") else "devices"]
    shown = {device: dict(sorted(keys.items())) for device, keys in sorted(found.items())}
    table.print_document(shown, args.one("format", "table"))


def device_get(args: Args) -> None:
    from ctrmgr.cli import table

    word, device, key = args.positional
    server, name = distant.one(word)
    table.print_value(_of(instances.get(server, name), word, device)[0].get(key, ""), args.one("format", "table"))


def _change(args: Args, values: Mapping[str, str | None], *, override: bool = False) -> None:
    word, device = args.positional[:2]
    server, name = distant.one(word)

    def change(found: Mapping[str, Any], data: dict[str, Any]) -> None:
        keys, is_own = _of(found, word, device)
        if is_own == override:
            raise ConflictError(
                f"device `{device}` of `{word}` is {'its own already' if is_own else 'of a profile'}",
                hint=f"`ctrmgr config device {'set' if is_own else 'override'} {word} {device} KEY=VALUE`",
            )
        for key, value in values.items():
            if value is None and keys.pop(key, None) is None:
                raise NotFoundError(f"`{key}` is not set on device `{device}`")
        wanted = {**keys, **{key: value for key, value in values.items() if value is not None}}
        made = distant_config.translated(server, {}, {device: wanted})
        made.refuse(server.name)
        for part, key, owner in made.names:
            made.devices[part][key] = str(owners.number(server, name, key, owner))
        data["devices"] |= made.devices
        data["config"] |= {key: value for key, value in made.config.items() if key not in found["expanded_config"]}

    if args.flag("dry-run"):
        found = instances.get(server, name)
        change(found, {"config": dict(found["config"]), "devices": dict(found["devices"])})
        return
    instances.update(server, name, change)


def device_set(args: Args) -> None:
    _change(args, given(args.positional[2:]))


def device_unset(args: Args) -> None:
    _change(args, dict.fromkeys(args.positional[2:]))


def device_override(args: Args) -> None:
    _change(args, given(args.positional[2:]), override=True)


def device_add(args: Args) -> None:
    word, device, kind, *words = args.positional
    pairs(words, "KEY=VALUE")
    distant_config.run_attach(Args([word, device, f"type={kind}", *words], args.options, None))


def device_remove(args: Args) -> None:
    word, *names = args.positional
    for device in names:
        distant_config.run_detach(Args([word, device], args.options, None))


RUN: dict[str, Callable[[Args], int | None]] = {
    "config device add": device_add,
    "config device get": device_get,
    "config device list": device_list,
    "config device override": device_override,
    "config device remove": device_remove,
    "config device set": device_set,
    "config device show": device_show,
    "config device unset": device_unset,
}
