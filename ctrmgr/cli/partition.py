# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr partition list`, `create` and `delete`."""

from __future__ import annotations

import sys

from ctrmgr.cli import table
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args

PARTITIONS = ("name", "used by", "type", "device", "part", "takes", "nodes", "state")
POOLS = ("type", "device", "model", "pools", "free", "partitions", "profiles")


def run_list(args: Args) -> None:
    from ctrmgr.backend import partition_list

    listed, pools, wrong = partition_list.overview()
    for error in wrong:
        print(f"warning: {error.message}", file=sys.stderr)
    form = args.one("format", "table")
    columns, rows = (POOLS, pools) if args.flag("pools") else (PARTITIONS, listed)
    if form in ("table", "csv"):
        rows = [{key: _words(key, value) for key, value in row.items()} for row in rows]
    if form == "table":
        rows = [
            {**row, "partitions": f"{row['partitions']} of {row['most']}"} if "most" in row else row for row in rows
        ]
    elif columns is POOLS:
        columns = (*columns[:-1], "most", columns[-1])
    table.print_rows(columns, rows, form, spare=("model", "profiles", "nodes"))


def _words(key: str, value: object) -> object:
    """Amounts as they are asked for: `cores=2,memory=8GiB`."""
    from ctrmgr.backend import pools

    if not isinstance(value, dict):
        return value
    return (
        [f"{name}: {pools.listed(takes)}" for name, takes in value.items()]
        if key == "profiles"
        else pools.listed(value)
    )


def run_create(args: Args) -> None:
    from ctrmgr.backend import named_partitions, pools
    from ctrmgr.devices import partition

    name, device, sizes = args.positional
    for parse, value in ((partition.name, name), (partition.sizes, sizes)):
        try:
            parse(value)
        except ValueError as error:
            raise SpecError(f"`{value}` {error}", hint=partition.UNITS if value == sizes else None) from None
    wanted = partition.sizes(sizes)
    if args.flag("dry-run"):
        print(f"create partition {name} of {device}: {wanted}")
        return
    held = named_partitions.create(name, device, wanted, args.one("type"))
    if not args.flag("quiet"):
        print(f"`{name}` has {pools.listed(held.takes)} of {held.found_id}", file=sys.stderr)


def run_delete(args: Args) -> None:
    from ctrmgr.backend import named_partitions

    (name,) = args.positional
    if args.flag("dry-run"):
        print(f"delete partition {name}")
        return
    named_partitions.delete(name)


def run_mode(args: Args) -> None:
    from ctrmgr.backend import partition_modes

    device, *wanted = args.positional
    if not wanted:
        print(partition_modes.mode(device))
        return
    dry_run = args.flag("dry-run")
    said = partition_modes.switch(device, wanted[0], dry_run=dry_run)
    if said is None:
        said = partition_modes.already(device)
    elif dry_run:
        print(f"switch {device} {wanted[0]}")
    if said and not args.flag("quiet"):
        print(said, file=sys.stderr)


COMMANDS = (
    Command(
        "partition list",
        "the partitions of this machine's devices, and who has them; or what there is to divide",
        run_list,
        options=(Option("pools", "the devices that can be divided: what they have, and what of it is left"),),
        help="What other users and other programs have made is listed, too, where the hardware tells of it.",
    ),
    Command(
        "partition create",
        "make a partition of a device that lasts until it is deleted",
        run_create,
        arguments=(
            Argument("NAME", "what devices of instances say (`partition: NAME`)"),
            Argument("DEVICE", "its id, as in `ctrmgr partition list --pools`", complete="divisible"),
            Argument("POOL=AMOUNT,…", "what it is to have at least, such as cores=2,memory=8GiB; or profile=1g.10gb"),
        ),
        options=(Option("type", "the device's type, where two have the same id", metavar="TYPE"),),
    ),
    Command(
        "partition delete",
        "end a partition that no instance has",
        run_delete,
        arguments=(Argument("NAME", "its name", complete="partition"),),
    ),
    Command(
        "partition mode",
        "show or switch the mode that decides how a GPU can be divided (NVIDIA's MIG mode, AMD's memory mode)",
        run_mode,
        arguments=(
            Argument("DEVICE", "its id, as in `ctrmgr device list gpu`", complete="device"),
            Argument(
                "MODE",
                "what to switch it to: on or off (NVIDIA), NPS1, NPS4 or what else it has (AMD); without it, what it is",
                required=False,
            ),
        ),
        help="Never done by itself. Refused as long as an instance has the GPU or a part of it. MIG mode is switched now, which resets the GPU where "
        "the model needs that, and refused, too, when any program of the host has it open; then nothing has changed, and nothing waits for the "
        "next reset either. A restart of the machine may end it. AMD's memory mode (NPS) is only asked for: the driver takes the request for all GPUs that "
        "XGMI links, hands it on when it is unloaded, and has the mode when it is loaded again; the command says so. Asking for the mode that it "
        "has takes no request back: the driver skips that.",
    ),
)
