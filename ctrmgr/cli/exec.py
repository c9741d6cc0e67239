# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr exec` and `shell`: this process becomes the helper, so that exit codes, signals and the terminal are its own."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command, Option, owner, pairs
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_exec(args: Args) -> None:
    _enter(args, [*args.positional[1:], *(args.rest or [])], shell=False)


def run_shell(args: Args) -> None:
    _enter(args, [], shell=True)


def _enter(args: Args, command: list[str], *, shell: bool) -> None:
    from ctrmgr.backend import enter
    from ctrmgr.kernel import helper

    if args.flag("tty") and args.flag("no-tty"):
        raise SpecError("`--tty` and `--no-tty` exclude each other")
    user, group = owner(args)
    line = enter.words(
        args.positional[0],
        command,
        user=user,
        group=group,
        cwd=args.one("cwd"),
        env=pairs(args.all("env"), "KEY=VALUE"),
        tty=True if args.flag("tty") else False if args.flag("no-tty") else None,
        shell=shell,
    )
    if args.flag("dry-run"):
        print(" ".join(line))
        return
    helper.become("ctrmgr-exec", line[1:], enter.environment())


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
OPTIONS = (
    Option("user", "as this user (and group), by number or by name in the instance", short="u", metavar="USER[:GROUP]"),
    Option("group", "with this group, and no others", short="g", metavar="GROUP"),
    Option("cwd", "in this directory", short="C", metavar="DIRECTORY"),
    Option("env", "with this in the environment", metavar="KEY=VALUE", repeat=True),
    Option("tty", "with a terminal of the instance's own", short="t"),
    Option("no-tty", "without one, even if stdin and stdout are terminals", short="T"),
)
COMMANDS = (
    Command(
        "exec",
        "run a command in an instance",
        run_exec,
        arguments=(INSTANCE, Argument("COMMAND", "and its arguments", required=False)),
        options=OPTIONS,
        passthrough=True,
    ),
    Command("shell", "open a login shell in an instance", run_shell, arguments=(INSTANCE,), options=OPTIONS),
)
