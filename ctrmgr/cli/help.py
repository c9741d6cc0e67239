# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr help`: made from the commands' tables."""

from __future__ import annotations

from ctrmgr.cli import table
from ctrmgr.cli.command import Argument, Command, usage
from ctrmgr.cli.table import beside, wrapped
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_help(args: Args) -> None:
    from ctrmgr.cli import main

    name, room = " ".join(args.positional), table.width()
    found = [command for command in main.every_command() if command.name == name]
    if found:
        print(describe(found[0], room))
        return
    listed = [command for command in main.every_command() if not name or command.name.split(" ")[0] == name]
    if not listed:
        command, rest = main.find([*args.positional])
        raise SpecError(f"`{command.name}` has no command `{' '.join(rest)}`", hint=f"`ctrmgr help {command.name}`")
    print("usage: ctrmgr COMMAND …\n" if not name else f"usage: ctrmgr {name} …\n")
    width = max(len(command.name) for command in listed)
    for command in listed:
        print(beside(f"  {command.name}", width + 2, command.summary, room))
    print("\n`ctrmgr COMMAND --help` says more about each.")


def describe(command: Command, room: int = 0) -> str:
    """In a terminal of this width, or (0) in lines as long as they are."""
    lines = [f"usage: {usage(command)}"]
    for text in filter(None, (command.summary[0].upper() + command.summary[1:] + ".", command.help)):
        lines += ["", *(wrapped(text, room) if room else [text])]
    rows = [(argument.name, argument.help) for argument in command.arguments]
    rows += [(option_words(option.name, option.short, option.value), option.meaning) for option in command.options]
    width = max(len(left) for left, _ in rows)
    return "\n".join([*lines, "", *(beside(f"  {left}", width + 2, right, room) for left, right in rows)])


def option_words(name: str, short: str, value: str) -> str:
    return (f"-{short}, " if short else "    ") + f"--{name}{value}"


COMMANDS = (
    Command(
        "help",
        "list the commands, or explain one",
        run_help,
        arguments=(Argument("COMMAND", "what to explain", required=False, repeat=True, complete="command"),),
    ),
)
