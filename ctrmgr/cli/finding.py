# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr device find` and `ctrmgr device plugins`."""

from __future__ import annotations

import json
import sys
import time

from ctrmgr.backend import allocations, functions, happenings, held
from ctrmgr.cli import table
from ctrmgr.cli.command import Argument, Command, Option, pairs
from ctrmgr.errors import NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.backend.functions import Candidate
    from ctrmgr.backend.happenings import Happening
    from ctrmgr.cli.command import Args


def asked(args: Args) -> list[dict[str, str]]:
    """One request for each function that is named; one for all that there is without a name. Raises SpecError."""
    names = [word for word in args.positional if "=" not in word]
    keys = pairs([word for word in args.positional if "=" in word], "KEY=VALUE")
    return [functions.asked(name, keys) for name in names or [""]]


def find(args: Args) -> int:
    requests = asked(args)
    seen = functions.look()
    found = functions.candidates(seen, held.everything())
    for error in seen.wrong:
        print(f"warning: {error.message}", file=sys.stderr)
    rows = []
    explain = args.flag("explain")
    for values in requests:
        chosen = True
        for candidate in found:
            reason = functions.why_not(candidate, values)
            if not reason or explain:
                rows.append(row(candidate, values, reason, chosen and not reason))
            chosen = chosen and bool(reason)
    form = args.one("format", "table")
    columns = ("function", "type", "id", "model", "properties", "held", *(("verdict",) if explain else ()))
    if not rows:
        there = sorted({name for candidate in found for name in candidate.functions})
        wanted = ", ".join(f"`{values['function']}`" for values in requests if values.get("function"))
        said = f"no device fits {wanted}" if wanted else "no device fits"
        instead = f"there is {', '.join(there)}" if there else "nothing on this machine has a function"
        raise NotFoundError(said, hint=f"{instead}; `--explain` says why each does not fit")
    table.print_rows(columns, rows, form)
    return 0


def row(candidate: Candidate, values: Mapping[str, str], reason: str, first: bool) -> dict[str, object]:
    """A candidate in one line."""
    name = values.get("function", "")
    given = {name: candidate.functions.get(name, {})} if name else candidate.functions
    return {
        "function": name or ", ".join(candidate.functions),
        "type": candidate.type,
        "id": candidate.id,
        "model": candidate.model,
        "properties": " ".join(f"{key}={each}" for properties in given.values() for key, each in properties.items()),
        "held": candidate.held,
        "verdict": f"no: {reason}" if reason else "this one" if first else "fits too",
    }


def plugins(args: Args) -> None:
    if args.flag("release"):
        for left in allocations.left_over():
            allocations.release(left)
            print(f"released {left.type} {left.found_id} of {left.instance}", file=sys.stderr)
    listed = []
    taken = held.everything()
    for each in functions.plugins():
        holders = [allocation for allocation in taken if allocation.type == each.source.type]
        stuck = [allocation for allocation in holders if allocation.failed]
        listed.append(
            {
                "type": each.source.type,
                "from": each.source.origin,
                "state": f"broken: {each.problem.message}" if each.problem else "usable",
                "devices": [found.id for found in each.found],
                "functions": sorted({name for found in each.found for name in found.functions}),
                "held by": [f"{allocation.instance}/{allocation.device}" for allocation in holders],
                "kept": "until deleted" if each.persistent else "until stopped",
                "not released": [f"{allocation.instance}: {allocation.failed}" for allocation in stuck],
                "description": each.description,
            }
        )
    form = args.one("format", "table")
    columns = ["type", "from", "state", "devices", "functions", "held by"]
    if any(each["not released"] for each in listed):
        columns.append("not released")
    table.print_rows(columns, listed, form)


def events(args: Args) -> int:
    act = not args.flag("dry-run")
    form = args.one("format", "table")
    try:
        pause = float(args.one("interval", "5"))
    except ValueError:
        pause = 0
    if not 0.1 <= pause <= 86400:
        raise SpecError(f"`--interval`: `{args.one('interval')}` is not a number of seconds from 0.1 to 86400")
    told: set[str] = set()
    while True:
        new, wrong = happenings.poll(act=act)
        for error in wrong:
            if error.message not in told:
                print(f"warning: {error.message}", file=sys.stderr)
        told = {error.message for error in wrong}
        if args.flag("follow"):
            for each in new:
                print(json.dumps(each.fields()) if form == "json" else line(each), flush=True)
            time.sleep(pause)
            continue
        table.print_rows(EVENTS, [each.fields() for each in new], form)
        return 0


EVENTS = ("instance", "device", "found", "kind", "detail", "policy", "outcome")


def line(each: Happening) -> str:
    """An event for whoever looks on."""
    words = f"{each.instance}/{each.device}: {each.type} {each.found} {each.kind}"
    return f"{words}{': ' if each.detail else ''}{each.detail} ({each.policy}: {each.outcome or 'not carried out'})"


COMMANDS = (
    Command(
        "device find",
        "devices that can do something, the one that an instance would be given first",
        find,
        arguments=(
            Argument(
                "FUNCTION|KEY=VALUE",
                "such as gpu.compute min-memory=16GiB; without any, all that can do something",
                required=False,
                repeat=True,
            ),
        ),
        options=(Option("explain", "also those that do not fit, and why"),),
        help="The order is that in which devices are given: the one that fewest instances have, and of those the first id.",
    ),
    Command(
        "device events",
        "what has happened to the devices that instances were given, and their policies carried out",
        events,
        options=(
            Option("follow", "go on looking; each event is a line (with --format json an object)"),
            Option("interval", "seconds between two looks", metavar="SECONDS"),
        ),
        help="Each event is told once. `--dry-run` carries nothing out, and tells it again the next time.",
    ),
    Command(
        "device plugins",
        "plugins for device types, and what is wrong with those that cannot be used",
        plugins,
        options=(Option("release", "try again to release what a plugin did not release"),),
    ),
)
