# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr config …`: an instance's own keys. Validated here, compiled into its plan, applied now where a key is live."""

from __future__ import annotations

import os
import sys

from ctrmgr import state
from ctrmgr.cli.command import Argument, Command
from ctrmgr.errors import ConflictError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args
    from ctrmgr.spec.profile import ProfileSpec


class Own:
    """An instance's `config` file: what the user asked for, beside the profiles."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"{state.state_dir()}/instances/{name}"
        if not name or "/" in name or name[0] == ".":
            raise SpecError(f"`{name}` cannot be the name of an instance")
        try:
            self.rows = state.read_flat(self.path + "/config")
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"no instance `{name}`", hint="`ctrmgr list` shows what there is") from None
        self.config: dict[str, str] = {}
        self.devices: dict[str, dict[str, str]] = {}
        self.profiles: list[str] = []
        self.image = ""
        for number, row in enumerate(self.rows, 1):
            try:
                self._row(row)
            except IndexError:
                raise state.corrupt(self.path + "/config", number, "has too few fields") from None

    def _row(self, row: list[str]) -> None:
        if row[0] == "config":
            self.config[row[1]] = row[2]
        elif row[0] == "device":
            self.devices.setdefault(row[1], {})[row[2]] = row[3]
        elif row[0] == "profile":
            self.profiles.append(row[1])
        elif row[0] == "image":
            self.image = row[1]

    def flat(self) -> list[list[str]]:
        """The file's rows with the keys and devices as they are now; rows of other kinds stay."""
        rows = [row for row in self.rows if row[0] not in ("config", "device")]
        rows += [["config", key, value] for key, value in self.config.items()]
        rows += [["device", name, key, value] for name, given in self.devices.items() for key, value in given.items()]
        return rows


def _talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


def _apply(args: Args, own: Own) -> None:
    """Compile the plan anew and put both files in place; say what waits for a start."""
    from ctrmgr.images import store
    from ctrmgr.plan import compile

    old = state.read_flat(own.path + "/plan")
    plan = compile.recompile(own.name, store.load(own.image), own.profiles, own.config, own.devices, old)
    if args.flag("dry-run"):
        sys.stdout.buffer.write(state.dump_flat(plan))
        return
    # The journal: a `.new` file that is found without its writer is finished or dropped by the next command.
    state.write_flat(own.path + "/config.new", own.flat())
    state.write_flat(own.path + "/plan.new", plan)
    os.rename(own.path + "/plan.new", own.path + "/plan")
    os.rename(own.path + "/config.new", own.path + "/config")
    if plan != old and state.is_locked(f"{state.run_dir()}/{own.name}/state"):
        _talk(args, f"`{own.name}` is running: this applies at its next start")


def _locked(name: str) -> state.Lock:
    Own(name)
    return state.Lock(f"{state.state_dir()}/instances/{name}")


def config_show(args: Args) -> None:
    print(_yaml(Own(args.positional[0])), end="")


def _yaml(own: Own) -> str:
    import yaml

    data = {"profiles": own.profiles, "config": own.config, "devices": own.devices}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def config_get(args: Args) -> None:
    """The value that counts: the instance's own, or its profiles'."""
    from ctrmgr.plan.compile import find
    from ctrmgr.spec import keys, profile

    own, name = Own(args.positional[0]), args.positional[1]
    keys.lookup(name)
    merged, _ = profile.merge([profile.load(find(known)) for known in own.profiles], own.config, {})
    print(merged.get(keys.OLD_NAMES.get(name, name), ""))


def config_set(args: Args) -> None:
    """`KEY=VALUE …`, or LXD's older `KEY VALUE`."""
    from ctrmgr.spec import keys

    name, *pairs = args.positional
    if len(pairs) == 2 and "=" not in pairs[0]:
        pairs = ["=".join(pairs)]
    with _locked(name):
        own = Own(name)
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise SpecError(f"`{pair}` is not KEY=VALUE")
            own.config[key] = keys.check(key, value)
        _apply(args, own)


def config_unset(args: Args) -> None:
    from ctrmgr.spec import keys

    with _locked(args.positional[0]):
        own = Own(args.positional[0])
        for key in args.positional[1:]:
            keys.lookup(key)
            if own.config.pop(key, None) is None:
                raise NotFoundError(f"`{key}` is not set on `{own.name}` itself", hint="KEY= hides what a profile says")
        _apply(args, own)


def config_edit(args: Args) -> None:
    """The editor runs without the lock: others may go on; what they changed meanwhile is not overwritten."""
    from ctrmgr.cli.edit import edit

    own = Own(args.positional[0])
    result = edit(_yaml(own), own.name, lambda file, text: _check(own, file, text))
    if result is None:
        _talk(args, "nothing was changed")
        return
    with _locked(own.name):
        if Own(own.name).rows != own.rows:
            kept = f"{own.path}/edit.yaml"
            state.write_file(kept, result[0].encode())
            raise ConflictError(f"`{own.name}` was changed by another command", hint=f"your text is kept in `{kept}`")
        own.config, own.devices = dict(result[1].config), dict(result[1].devices)
        _apply(args, own)


def _check(own: Own, file: str, text: str) -> ProfileSpec:
    from ctrmgr.spec import profile, source

    document = source.parse(file, text)
    if isinstance(document.data, dict) and document.data.pop("profiles", own.profiles) != own.profiles:
        raise document.error(("profiles",), "cannot be changed here", "launch another instance with them")
    return profile.validate(document)


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
KEY = Argument("KEY", "docs/reference/config.md lists them")
COMMANDS = (
    Command("config show", "an instance's own keys and devices", config_show, arguments=(INSTANCE,)),
    Command("config get", "the value of a key that counts", config_get, arguments=(INSTANCE, KEY)),
    Command(
        "config set",
        "set keys",
        config_set,
        arguments=(INSTANCE, Argument("KEY=VALUE", "an empty value hides what a profile says", repeat=True)),
    ),
    Command(
        "config unset",
        "take keys away, so that the profiles' count again",
        config_unset,
        arguments=(INSTANCE, Argument("KEY", "docs/reference/config.md lists them", repeat=True)),
    ),
    Command("config edit", "change keys and devices in $EDITOR", config_edit, arguments=(INSTANCE,)),
)
