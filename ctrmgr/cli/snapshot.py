# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr snapshot …`: how an instance was at a moment, and back."""

from __future__ import annotations

from ctrmgr.cli.command import Argument, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args

COLUMNS = ("name", "created")


def snapshot_create(args: Args) -> None:
    from ctrmgr.backend import record, snapshots

    name, *given = args.positional
    if args.flag("dry-run"):
        record.Record(name)
        print(f"snapshot {name}")
        return
    print(snapshots.create(name, *given))


def snapshot_list(args: Args) -> None:
    from ctrmgr.backend import snapshots
    from ctrmgr.cli.table import print_rows

    print_rows(COLUMNS, snapshots.listing(args.positional[0]), args.one("format", "table"))


def snapshot_restore(args: Args) -> None:
    from ctrmgr.backend import record, snapshots

    name, snapshot = args.positional
    if args.flag("dry-run"):
        record.Record(name)
        print(f"restore {name} {snapshot}")
        return
    snapshots.restore(name, snapshot)


def snapshot_delete(args: Args) -> None:
    from ctrmgr.backend import snapshots

    name, *given = args.positional
    for snapshot in given:
        if args.flag("dry-run"):
            print(f"delete snapshot {snapshot} of {name}")
        else:
            snapshots.delete(name, snapshot)


INSTANCE = Argument("INSTANCE", "its name", complete="instance")
COMMANDS = (
    Command(
        "snapshot create",
        "keep how an instance is now",
        snapshot_create,
        arguments=(INSTANCE, Argument("NAME", "a name for it; without one it is snap0, snap1, …", required=False)),
        help="What the instance has written is copied, with its own keys and devices; on btrfs and XFS the copy shares its blocks. "
        "On this machine a running instance is frozen meanwhile.",
    ),
    Command("snapshot list", "the snapshots of an instance", snapshot_list, arguments=(INSTANCE,)),
    Command(
        "snapshot restore",
        "put a stopped instance back to a snapshot",
        snapshot_restore,
        arguments=(INSTANCE, Argument("NAME", "the snapshot's", complete="snapshot")),
        help="Its files, its own keys and its own devices become what they were.",
    ),
    Command(
        "snapshot delete",
        "delete snapshots",
        snapshot_delete,
        arguments=(INSTANCE, Argument("NAME", "the snapshots'", repeat=True, complete="snapshot")),
    ),
)
