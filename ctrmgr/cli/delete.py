# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr delete` and `rename`."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.cli.power import each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_delete(args: Args) -> int:
    from ctrmgr.backend import local

    return each(args, "delete", lambda name: local.delete(name, force=args.flag("force")))


def run_rename(args: Args) -> None:
    old, new = args.positional
    if args.flag("dry-run"):
        print(f"rename {old} {new}")
        return
    from ctrmgr.backend import local

    local.rename(old, new)


NAME = Argument("INSTANCE", "its name", complete="instance")
NAMES = Argument("INSTANCE", "its name", repeat=True, complete="instance")
COMMANDS = (
    Command(
        "delete",
        "remove instances and all that they have",
        run_delete,
        arguments=(NAMES,),
        options=(Option("force", "also while it runs", short="f"),),
    ),
    Command("rename", "rename a stopped instance", run_rename, arguments=(NAME, Argument("NEW", "the new name"))),
)
