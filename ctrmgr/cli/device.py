# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr attach-device`, `detach-device`, `suspend-device` and `resume-device`."""

from __future__ import annotations

import sys

from ctrmgr.cli.command import Argument, Command, Option, pairs
from ctrmgr.kernel.control import HOLDERS

ONLY_NODES = ("unix-char", "unix-block", "unix-hotplug", "usb", "accel", "infiniband")
"""Types that mount nothing inside."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.backend.detach import Detached
    from ctrmgr.cli.command import Args


def asked(args: Args) -> tuple[str, dict[str, str]]:
    """The device's name and keys: `NAME KEY=VALUE…`, or only the host's node, a device as `device list` has it, or a CDI device."""
    from ctrmgr.backend import devices

    if len(args.positional) == 1:
        from ctrmgr.cli import choosing

        return choosing.choose(args.positional[0])
    device, *words = args.positional[1:]
    if not words and device and "/" not in device:
        from ctrmgr.cli import choosing

        return choosing.by_name(args.positional[0], device)
    keys = pairs(words, "KEY=VALUE")
    if device.startswith("/") or ("/" in device.partition("=")[0] and "type" not in keys):
        device, short = devices.short_form(device)
        keys = {**short, **keys}
    return device, keys


def run_attach(args: Args) -> None:
    from ctrmgr.backend import attach, devices, record

    name = args.positional[0]
    device, keys = asked(args)
    if args.flag("dry-run"):
        rows = devices.limited(devices.check(device, keys)[1], record.Record(name).plan())
        print("\n".join("\t".join(row) for row in rows))
        return
    if args.flag("wait"):
        from ctrmgr.backend import waiting

        seconds = waiting.seconds(args.one("wait"))
        waiting.attach(name, device, keys, seconds, volatile=args.flag("volatile"))
        return
    live = attach.attach(
        name, device, keys, volatile=args.flag("volatile"), say=lambda text: talk(args, f"note: {text}")
    )
    if not live:
        talk(args, f"`{name}` is stopped: `{device}` comes with its next start")
    if keys.get("type") == "unix-block":
        warn_of_use(args, name, keys)
    if live and keys.get("type") not in ONLY_NODES:
        from ctrmgr.backend import hidden

        for place, over in hidden.places(name, device):
            talk(
                args, f"warning: `{place}` cannot be seen inside: `{name}` has mounted something of its own on `{over}`"
            )


def warn_of_use(args: Args, name: str, keys: dict[str, str]) -> None:
    from ctrmgr.devices import unix_block

    uses = unix_block.in_use(keys)
    if uses:
        talk(
            args,
            f"warning: the host itself uses this disk ({', '.join(uses)}): whatever `{name}` writes to it destroys what is there; "
            "`readonly=true` lets it only read",
        )


def named(args: Args) -> tuple[str, str]:
    """The instance, and the device by the name that the short form has given it, too."""
    name, device = args.positional
    if device.startswith("/dev/"):
        device = device.removeprefix("/dev/").replace("/", "-")
    elif "/" in device:
        device = device.partition("/")[2].replace("=", "-")
    return name, device


def run_detach(args: Args) -> None:
    from ctrmgr.backend import detach

    name, device = named(args)
    if args.flag("dry-run"):
        print(f"detach {device} from {name}")
        return
    policy = args.one("holders", "report")
    result = detach.detach(name, device, holders=policy, volatile=args.flag("volatile"))
    if not result.live:
        talk(args, f"`{device}` is taken out of the configuration; it was not attached")
    say_holders(args, name, policy, result)


def run_suspend(args: Args) -> None:
    from ctrmgr.backend import suspend

    name, device = named(args)
    if args.flag("dry-run"):
        print(f"suspend {device} of {name}")
        return
    policy = args.one("holders", "report")
    say_holders(args, name, policy, suspend.suspend(name, device, holders=policy))


def run_resume(args: Args) -> None:
    from ctrmgr.backend import suspend

    name, device = named(args)
    if args.flag("dry-run"):
        print(f"resume {device} of {name}")
        return
    suspend.resume(name, device)


def say_holders(args: Args, name: str, policy: str, result: Detached) -> None:
    """Who had the device open when it was taken, and what became of that."""
    if result.ended:
        talk(args, f"its driver has revoked {result.ended} open descriptors for good")
    for holder in result.holders:
        killed = "killed" if policy == "kill" else "still has it"
        maps = f", {holder.maps} mappings" if holder.maps else ""
        talk(
            args, f"{killed}: {holder.comm} (pid {holder.inner_pid}, on the host {holder.pid}): {holder.fds} open{maps}"
        )
    if result.total > len(result.holders):
        talk(args, f"… and {result.total - len(result.holders)} more")
    for said in result.unflushed:
        talk(args, said)
    if result.total and policy != "kill":
        if result.revoked:
            talk(args, "what they have open is refused from now on; mappings that they have already stay")
        else:
            talk(args, "descriptors and mappings that are open already keep working; new opens are refused")
        if policy == "freeze":
            talk(args, f"`{name}` is frozen; `ctrmgr unfreeze {name}` lets it go on")


def talk(args: Args, text: str) -> None:
    if not args.flag("quiet"):
        print(text, file=sys.stderr)


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
ATTACHED = Argument("NAME", "as it was attached", complete="attached")
VOLATILE = Option("volatile", "only for this run; the configuration stays as it is")
HOLDERS_OPTION = Option("holders", "what to do with processes that have it open", metavar="POLICY", choices=HOLDERS)
COMMANDS = (
    Command(
        "attach-device",
        "give an instance a device of the host, while it runs or for its next start",
        run_attach,
        arguments=(
            INSTANCE,
            Argument(
                "NAME|NODE",
                "a name for it, or only the host's node (`/dev/fuse`), a device of `device list` or a CDI device (`vendor.com/class=name`); without it, on a terminal, you choose",
                required=False,
                complete="file",
            ),
            Argument(
                "KEY=VALUE",
                "type=unix-char|unix-block|gpu|… source= path= uid= gid= mode= …",
                required=False,
                repeat=True,
                complete="new-device",
            ),
        ),
        options=(
            VOLATILE,
            Option("wait", "until it opens inside; undone when it does not (30 s)", metavar="SECONDS", bare="30"),
        ),
    ),
    Command(
        "detach-device",
        "take a device away, and say who still has it open",
        run_detach,
        arguments=(INSTANCE, ATTACHED),
        options=(
            VOLATILE,
            HOLDERS_OPTION,
        ),
    ),
    Command(
        "suspend-device",
        "take a device away for now, and say who still has it open",
        run_suspend,
        arguments=(INSTANCE, ATTACHED),
        options=(HOLDERS_OPTION,),
        help="Opening it is refused until `resume-device` or the next start. Files and variables that came with it stay.",
    ),
    Command(
        "resume-device",
        "give a suspended device back",
        run_resume,
        arguments=(INSTANCE, ATTACHED),
    ),
)
