# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr config …`: an instance's own keys. Validated here, compiled into its plan, applied now where a key is live."""

from __future__ import annotations

import sys

from ctrmgr import state
from ctrmgr.backend.record import Record
from ctrmgr.cli import command, config_device, table
from ctrmgr.cli.command import Argument, Command
from ctrmgr.cli.profile import OCI
from ctrmgr.errors import ConflictError, NotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args
    from ctrmgr.spec.profile import ProfileSpec


def _talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


def _apply(args: Args, own: Record) -> None:
    """Compile the plan anew and put it in place; say what waits for a start."""
    from ctrmgr.backend import configure

    if args.flag("dry-run"):
        sys.stdout.buffer.write(state.dump_flat(configure.compiled(own)))
    elif configure.apply(own, lambda text: _talk(args, f"`{own.name}`: {text}")):
        _talk(args, f"`{own.name}` is running: this applies at its next start")


def config_show(args: Args) -> None:
    own = Record(args.positional[0])
    if args.flag("oci"):
        from ctrmgr.cli.profile import show_oci
        from ctrmgr.plan.compile import find
        from ctrmgr.spec import profile

        show_oci(args, *profile.merge([profile.load(find(known)) for known in own.profiles], own.config, own.devices))
    else:
        table.print_document(_data(own), args.one("format", "table"))


def _data(own: Record) -> dict[str, object]:
    return {"profiles": own.profiles, "config": own.config, "devices": own.devices}


def _yaml(own: Record) -> str:
    import yaml

    return yaml.safe_dump(_data(own), sort_keys=False, allow_unicode=True)


def config_get(args: Args) -> None:
    """The value that counts, as it was written: the instance's own, or its profiles'."""
    from ctrmgr.plan.compile import find
    from ctrmgr.spec import keys, profile

    own, name = Record(args.positional[0]), args.positional[1]
    keys.lookup(name)
    written = profile.written(profile.load_all(find(known) for known in own.profiles), own.config)
    table.print_value(written.get(keys.OLD_NAMES.get(name, name), ""), args.one("format", "table"))


def config_set(args: Args) -> None:
    """`KEY=VALUE …`, or LXD's older `KEY VALUE`."""
    from ctrmgr.backend import configure
    from ctrmgr.spec import keys

    name, *pairs = args.positional
    if len(pairs) == 2 and "=" not in pairs[0]:
        pairs = ["=".join(pairs)]
    values = command.pairs(pairs, "KEY=VALUE")
    for key, value in values.items():
        keys.check(key, value)
    with configure.opened(name) as own:
        own.config.update(values)
        _apply(args, own)


def config_unset(args: Args) -> None:
    from ctrmgr.backend import configure
    from ctrmgr.spec import keys

    with configure.opened(args.positional[0]) as own:
        for key in args.positional[1:]:
            keys.lookup(key)
            if own.config.pop(key, None) is None:
                raise NotFoundError(f"`{key}` is not set on `{own.name}` itself", hint="KEY= hides what a profile says")
        _apply(args, own)


def config_edit(args: Args) -> None:
    """The editor runs without the lock: others may go on; what they changed meanwhile is not overwritten."""
    from ctrmgr.backend import configure
    from ctrmgr.cli.edit import edit

    own = Record(args.positional[0])
    result = edit(_yaml(own), own.name, lambda file, text: _check(own, file, text))
    if result is None:
        _talk(args, "nothing was changed")
        return
    with configure.opened(own.name) as now:
        if now.rows != own.rows:
            kept = f"{own.path}/edit.yaml"
            state.write_file(kept, result[0].encode())
            raise ConflictError(f"`{own.name}` was changed by another command", hint=f"your text is kept in `{kept}`")
        own.config, own.devices = dict(result[1].config), dict(result[1].devices)
        _apply(args, own)


def _check(own: Record, file: str, text: str) -> ProfileSpec:
    from ctrmgr import source
    from ctrmgr.spec import profile

    document = source.parse(file, text)
    if isinstance(document.data, dict) and document.data.pop("profiles", own.profiles) != own.profiles:
        raise document.error(("profiles",), "cannot be changed here", "launch another instance with them")
    return profile.validate(document)


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
KEY = Argument("KEY", "docs/reference/config.md lists them", complete="key")
COMMANDS = (
    Command(
        "config show",
        "an instance's own keys and devices",
        config_show,
        arguments=(INSTANCE,),
        options=OCI,
        help="With --oci, its profiles' limits are among them.",
    ),
    Command("config get", "the value of a key that counts", config_get, arguments=(INSTANCE, KEY)),
    Command(
        "config set",
        "set keys",
        config_set,
        arguments=(
            INSTANCE,
            Argument("KEY=VALUE", "an empty value hides what a profile says", repeat=True, complete="setting"),
        ),
    ),
    Command(
        "config unset",
        "take keys away, so that the profiles' count again",
        config_unset,
        arguments=(INSTANCE, Argument("KEY", "docs/reference/config.md lists them", repeat=True, complete="key")),
    ),
    Command(
        "config edit",
        "change keys and devices in $EDITOR, or to what standard input has",
        config_edit,
        arguments=(INSTANCE,),
    ),
    *config_device.COMMANDS,
)
