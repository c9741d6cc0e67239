# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr copy` and `move`."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import ConflictError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_copy(args: Args) -> None:
    """On this machine: an instance of the same image, keys and devices, with a copy of what was written."""
    from ctrmgr.backend import copying, record

    old, new = args.positional
    if args.flag("dry-run"):
        record.Record(old)
        print(f"copy {old} {new}")
        return
    print(copying.copy(old, new, profiles=profiles(args)))


def profiles(args: Args) -> list[str] | None:
    """Those that were named; None: the source's."""
    return [] if args.flag("no-profiles") else args.all("profile") or None


def run_move(args: Args) -> None:
    """On this machine it is a new name."""
    from ctrmgr.backend import local, record

    old, new = args.positional
    if profiles(args) is not None:
        raise ConflictError("a move on one machine keeps the profiles", hint="`ctrmgr copy` can change them")
    if args.flag("dry-run"):
        record.Record(old)
        print(f"move {old} {new}")
        return
    local.rename(old, new)
    print(new)


ARGUMENTS = (
    Argument("SOURCE", "a stopped instance: NAME, REMOTE:NAME", complete="instance"),
    Argument("TARGET", "where to: NAME, REMOTE:NAME, `REMOTE:` or `local:`", distant=True),
)
OPTIONS = (
    Option(
        "profile", "with this profile, not the source's; several in order", short="p", metavar="PROFILE", repeat=True
    ),
    Option("no-profiles", "with none"),
    Option("instance-only", "without its snapshots"),
    Option("ignore-unsupported", "leave out what the target cannot do, and say so"),
)
HELP = (
    "A server copies within itself. Two servers of one kind hand it over directly, or, when they do not reach each other, by a backup "
    "through this machine, both with the snapshots. Everything else goes as an image: "
    "this machine to a server and back, LXD to Incus and back; keys and devices are translated, or refused before anything is made."
)
COMMANDS = (
    Command("copy", "make another instance like a stopped one, here or elsewhere", run_copy, arguments=ARGUMENTS,
            options=OPTIONS, help=HELP),
    Command("move", "bring a stopped instance elsewhere", run_move, arguments=ARGUMENTS, options=OPTIONS,
            help=HELP + " The source is deleted when the target is there and has been looked at, and not before."),
)  # fmt: skip
