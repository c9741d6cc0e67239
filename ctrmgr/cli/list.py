# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr list`."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command
from ctrmgr.cli.table import print_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args


def run_list(args: Args) -> None:
    from ctrmgr.backend import listing, repair

    repair.sweep()
    wanted = args.positional
    rows = [
        {"name": row.name, "status": row.status, "ipv4": row.ipv4, "image": row.image}
        for row in listing.listing()
        if not wanted or any(word in row.name for word in wanted)
    ]
    print_rows(("name", "status", "ipv4", "image"), rows, args.one("format", "table"))


COMMANDS = (
    Command(
        "list",
        "list instances",
        run_list,
        arguments=(
            Argument(
                "PART",
                "only names with this in them; REMOTE: is all of a remote's",
                required=False,
                repeat=True,
                distant=True,
            ),
        ),
    ),
)
