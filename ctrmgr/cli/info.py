# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr info`."""

from __future__ import annotations

from ctrmgr.backend import info
from ctrmgr.cli.command import Argument, Command
from ctrmgr.cli.table import print_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_info(args: Args) -> None:
    print_object(info.read(args.positional[0]).fields, args.one("format", "table"))


COMMANDS = (
    Command(
        "info",
        "what an instance is, has and uses",
        run_info,
        arguments=(Argument("INSTANCE", "its name", complete="instance"),),
    ),
)
