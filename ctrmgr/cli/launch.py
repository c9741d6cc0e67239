# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr launch` and `create`."""

from __future__ import annotations

import sys

from ctrmgr.cli.command import Argument, Command, Option, pairs
from ctrmgr.errors import NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.backend import create
    from ctrmgr.cli.command import Args


def wish(args: Args) -> create.Wish:
    from ctrmgr.backend import create

    for name in ("target", "policy", "explain"):
        if args.flag(name):
            raise SpecError(f"`--{name}` is for clusters", hint=f"`{args.positional[0]} REMOTE:NAME`")
    devices: dict[str, dict[str, str]] = {}
    for word in args.all("device"):
        name, comma, keys = word.partition(",")
        if not comma:
            raise SpecError(f"`-d {word}` is not NAME,KEY=VALUE,…", hint="-d fuse,type=unix-char,source=/dev/fuse")
        devices.setdefault(name, {}).update(pairs(keys.split(","), "KEY=VALUE"))
    profiles = [] if args.flag("no-profiles") else args.all("profile") or ["default"]
    config = pairs(args.all("config"), "KEY=VALUE")
    if config or devices:
        config, devices = checked(config, devices)
    return create.Wish(
        args.positional[0],
        args.positional[1] if len(args.positional) > 1 else "",
        profiles=profiles,
        config=config,
        devices=devices,
        ephemeral=args.flag("ephemeral"),
        ignore_unsupported=args.flag("ignore-unsupported"),
    )


def checked(
    config: dict[str, str], devices: dict[str, dict[str, str]]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Validated as a profile would be; keys keep the text that was typed. Cold."""
    from ctrmgr.spec import device, keys

    for key, value in config.items():
        keys.check(key, value)
    return config, {name: device.written(name, values) for name, values in devices.items()}


def made(args: Args, asked: create.Wish, make: Callable[[create.Wish], str]) -> str:
    """Made of an image of the store; of one on a server or an image server, when it is called so and the store has none."""
    try:
        return make(asked)
    except NotFoundError:
        from ctrmgr.cli import image

        if not image.names_remote(asked.image):
            raise
        from ctrmgr.cli import distant_image

        asked.image = distant_image.bring(args, asked.image)
        return make(asked)


def run_launch(args: Args) -> None:
    from ctrmgr.backend import local

    asked = wish(args)
    if args.flag("dry-run"):
        show_plan(args, asked)
        return
    announce(args, made(args, asked, local.launch), asked)


def run_create(args: Args) -> None:
    from ctrmgr.backend import create

    asked = wish(args)
    if args.flag("dry-run"):
        show_plan(args, asked)
        return
    announce(args, made(args, asked, create.create), asked)


def announce(args: Args, name: str, asked: create.Wish) -> None:
    print(name)
    if args.flag("quiet"):
        return
    from ctrmgr.backend import record

    for reason in record.left_out(name):
        print(f"note: {reason}", file=sys.stderr)
    if asked.ignore_unsupported:
        from ctrmgr.backend import create
        from ctrmgr.images import store
        from ctrmgr.plan import compile

        for key, reason in compile.ignored(create.compiled(asked, store.find(asked.image))):
            print(f"note: `{key}` was left out: {reason}", file=sys.stderr)


def show_plan(args: Args, asked: create.Wish) -> None:
    """The plan as it would be written now, and what of it will be another when it is."""
    from ctrmgr import state
    from ctrmgr.backend import create

    try:
        plan = create.foreseen(asked)
    except NotFoundError as error:
        from ctrmgr.cli import image

        if not image.names_remote(asked.image):
            raise
        raise NotFoundError(
            f"image `{asked.image}` is not here yet: what the plan will be follows from it",
            hint=f"`ctrmgr image copy {asked.image} local:` fetches it, as a launch does",
        ) from error
    sys.stdout.write(state.dump_flat(plan).decode())
    if args.flag("quiet"):
        return
    anew = ["host ids"] + ["addresses", "MAC addresses", "names of links"] * any(row[0] == "link" for row in plan)
    print(
        f"note: nothing is taken: {', '.join(anew)} are chosen when it is made, and may be others then", file=sys.stderr
    )
    if not asked.name:
        print(f"note: `{plan[1][1]}` is made up; another name will be", file=sys.stderr)
    for device, kind in dict.fromkeys((row[1], row[2]) for row in plan if row[0] == "request"):
        print(f"note: `{device}`: which {kind} it is will be decided then, among those that are free", file=sys.stderr)


ARGUMENTS = (
    Argument("IMAGE", "an alias, fingerprint or `builtin:busybox`", complete="image"),
    Argument("NAME", "its name, or REMOTE:NAME; without one it gets one", required=False, distant=True),
)
OPTIONS = (
    Option("profile", "apply this profile, not `default`; several in order", short="p", metavar="PROFILE", repeat=True),
    Option("no-profiles", "apply none"),
    Option("config", "set a key", short="c", metavar="KEY=VALUE", repeat=True),
    Option("device", "add a device: NAME,type=…,KEY=VALUE,…", short="d", metavar="DEVICE", repeat=True),
    Option("ephemeral", "delete it when it stops", short="e"),
    Option("ignore-unsupported", "leave out what this host or backend cannot do, and say so"),
    Option(
        "target",
        "of a cluster: this member, one of a group, or the one that has what is asked for",
        metavar="MEMBER|@GROUP|auto",
    ),
    Option(
        "policy", "fill members one after the other, or all alike", metavar="POLICY", choices=("packing", "spreading")
    ),
    Option("explain", "each member with its score, or why it cannot be; with --dry-run on stdout"),
)
COMMANDS = (
    Command("launch", "make an instance and start it", run_launch, arguments=ARGUMENTS, options=OPTIONS),
    Command("create", "make an instance, leave it stopped", run_create, arguments=ARGUMENTS, options=OPTIONS),
)
