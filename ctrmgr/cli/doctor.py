# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr doctor`."""

from __future__ import annotations

from ctrmgr.backend import doctor
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.cli.table import print_rows, print_wide, width
from ctrmgr.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.cli.command import Args

COLUMNS = ("status", "subject", "check", "text", "hint")


def run_doctor(args: Args) -> int:
    look = doctor.mend if args.flag("fix") and not args.flag("dry-run") else doctor.examine
    findings = look(args.positional)
    form = args.one("format", "table")
    rows: list[dict[str, object]] = [{name: getattr(found, name) for name in COLUMNS} for found in findings]
    if form == "table":
        for row in rows:
            hint = f" ({row['hint']})" if row["hint"] and row["status"] in ("wrong", "note") else ""
            print_wide(f"{row['status']:<7} {row['subject']}: {row['check']}: {row['text']}{hint}", width())
    else:
        print_rows(COLUMNS, rows, form)
    return 0 if doctor.is_well(findings) else HostError.exit_code


COMMANDS = (
    Command(
        "doctor",
        "find what is wrong with this host and with what runs on it; exit code 5 if anything is",
        run_doctor,
        arguments=(Argument("INSTANCE", "only these", required=False, repeat=True, complete="instance"),),
        options=(Option("fix", "mend what can be mended"),),
    ),
)
