# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr config device …`: the devices of an instance by their keys, in LXD's words."""

from __future__ import annotations

import sys

from ctrmgr.backend.record import Record
from ctrmgr.cli.command import Argument, Command, Option, pairs
from ctrmgr.cli.device import HOLDERS_OPTION, say_holders, talk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.backend.device_keys import Changed
    from ctrmgr.cli.command import Args


def device_list(args: Args) -> None:
    from ctrmgr.backend import device_keys
    from ctrmgr.cli import table

    rows: list[dict[str, object]] = [
        {"name": each.name, "type": each.keys["type"], "profile": each.profile}
        for each in device_keys.known(Record(args.positional[0])).values()
    ]
    table.print_rows(("name", "type", "profile"), rows, args.one("format", "table"))


def device_show(args: Args) -> None:
    from ctrmgr.backend import device_keys
    from ctrmgr.cli import table

    own = Record(args.positional[0])
    found = {
        name: dict(sorted(each.keys.items()))
        for name, each in device_keys.known(own).items()
        if args.flag("expanded") or not each.profile
    }
    table.print_document(found, args.one("format", "table"))


def device_get(args: Args) -> None:
    from ctrmgr.backend import device_keys
    from ctrmgr.cli import table

    name, device, key = args.positional
    keys = device_keys.one(Record(name), device).keys
    if key not in keys:
        device_keys.check_key(device, keys["type"], key)
    table.print_value(keys.get(key, ""), args.one("format", "table"))


def given(words: list[str]) -> dict[str, str]:
    """`KEY=VALUE …`, or LXD's older `KEY VALUE`."""
    if len(words) == 2 and "=" not in words[0]:
        words = ["=".join(words)]
    return pairs(words, "KEY=VALUE")


def device_set(args: Args) -> None:
    _change(args, given(args.positional[2:]))


def device_unset(args: Args) -> None:
    _change(args, dict.fromkeys(args.positional[2:]))


def device_override(args: Args) -> None:
    _change(args, given(args.positional[2:]), override=True)


def _change(args: Args, values: Mapping[str, str | None], *, override: bool = False) -> None:
    from ctrmgr import state
    from ctrmgr.backend import configure, device_keys

    name, device = args.positional[:2]
    if args.flag("dry-run"):
        with configure.opened(name) as own:
            own.devices[device] = device_keys.changed(own, device, values, override=override)
            sys.stdout.buffer.write(state.dump_flat(configure.compiled(own)))
        return
    policy = args.one("holders", "report")
    done = device_keys.change(
        name, device, values, override=override, holders=policy, say=lambda text: talk(args, f"`{name}`: {text}")
    )
    _tell(args, name, policy, done)


def _tell(args: Args, name: str, policy: str, done: Changed) -> None:
    if done.waits:
        talk(args, f"`{name}` is running: this applies at its next start")
    if done.taken:
        say_holders(args, name, policy, done.taken)


def device_add(args: Args) -> None:
    from ctrmgr.backend import device_keys, devices

    name, device, kind, *words = args.positional
    keys = {"type": kind, **pairs(words, "KEY=VALUE")}
    if args.flag("dry-run"):
        rows = devices.limited(devices.check(device, keys)[1], Record(name).plan())
        print("\n".join("\t".join(row) for row in rows))
    elif device_keys.add(name, device, keys, say=lambda text: talk(args, f"note: {text}")):
        talk(args, f"`{name}` is running: this applies at its next start")


def device_remove(args: Args) -> None:
    from ctrmgr.backend import device_keys

    name, *names = args.positional
    own = Record(name)
    for device in names:
        device_keys.one(own, device)
    for device in names:
        if args.flag("dry-run"):
            print(f"remove {device} from {name}")
            continue
        policy = args.one("holders", "report")
        _tell(args, name, policy, device_keys.remove(name, device, holders=policy))


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
DEVICE = Argument("DEVICE", "the name that it has in the configuration", complete="configured")
KEYS = Argument("KEY=VALUE", "docs/reference/devices.md lists them", repeat=True, complete="device-setting")
ANEW = "Limits change at once. For other keys, a device that is attached is taken and given anew."
COMMANDS = (
    Command("config device list", "an instance's devices, and the profile of each", device_list, arguments=(INSTANCE,)),
    Command(
        "config device show",
        "the devices of an instance's own with their keys",
        device_show,
        arguments=(INSTANCE,),
        options=(Option("expanded", "those of its profiles, too", short="e"),),
    ),
    Command(
        "config device get",
        "the value of a device's key",
        device_get,
        arguments=(INSTANCE, DEVICE, Argument("KEY", "docs/reference/devices.md lists them", complete="device-key")),
    ),
    Command(
        "config device set",
        "set keys of a device",
        device_set,
        arguments=(INSTANCE, DEVICE, KEYS),
        options=(HOLDERS_OPTION,),
        help=ANEW,
    ),
    Command(
        "config device unset",
        "take keys of a device away",
        device_unset,
        arguments=(INSTANCE, DEVICE, Argument("KEY", "their names", repeat=True, complete="device-key")),
        options=(HOLDERS_OPTION,),
        help=ANEW,
    ),
    Command(
        "config device override",
        "make a profile's device the instance's own, with other keys",
        device_override,
        arguments=(
            INSTANCE,
            DEVICE,
            Argument("KEY=VALUE", "what is to be other", required=False, repeat=True, complete="device-setting"),
        ),
        help="Limits change at once, other keys with the next start.",
    ),
    Command(
        "config device add",
        "give an instance a device, as `attach-device` does",
        device_add,
        arguments=(
            INSTANCE,
            DEVICE,
            Argument("TYPE", "unix-char, gpu, nic, …", complete="type"),
            Argument(
                "KEY=VALUE",
                "docs/reference/devices.md lists them",
                required=False,
                repeat=True,
                complete="typed-setting",
            ),
        ),
    ),
    Command(
        "config device remove",
        "take devices away, as `detach-device` does",
        device_remove,
        arguments=(INSTANCE, Argument("DEVICE", "their names", repeat=True, complete="configured")),
        options=(HOLDERS_OPTION,),
    ),
)
