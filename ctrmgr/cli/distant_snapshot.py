# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr snapshot …` on `REMOTE:NAME`."""

from __future__ import annotations

from ctrmgr.cli import distant
from ctrmgr.cli.snapshot import COLUMNS
from ctrmgr.remote import instances, snapshots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.cli.command import Args


def snapshot_create(args: Args) -> None:
    server, name = distant.one(args.positional[0])
    if args.flag("dry-run"):
        instances.get(server, name)
        print(f"snapshot {args.positional[0]}")
        return
    print(snapshots.create(server, name, *args.positional[1:]))


def snapshot_list(args: Args) -> None:
    from ctrmgr.cli.table import print_rows

    server, name = distant.one(args.positional[0])
    print_rows(COLUMNS, snapshots.listing(server, name), args.one("format", "table"))


def snapshot_restore(args: Args) -> None:
    server, name = distant.one(args.positional[0])
    if args.flag("dry-run"):
        snapshots.get(server, name, args.positional[1])
        print(f"restore {args.positional[0]} {args.positional[1]}")
        return
    snapshots.restore(server, name, args.positional[1])


def snapshot_delete(args: Args) -> None:
    word, *given = args.positional
    server, name = distant.one(word)
    for snapshot in given:
        if args.flag("dry-run"):
            snapshots.get(server, name, snapshot)
            print(f"delete snapshot {snapshot} of {word}")
        else:
            snapshots.delete(server, name, snapshot)


RUN: dict[str, Callable[[Args], int | None]] = {
    "snapshot create": snapshot_create,
    "snapshot delete": snapshot_delete,
    "snapshot list": snapshot_list,
    "snapshot restore": snapshot_restore,
}
