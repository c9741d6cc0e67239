# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr monitor`: what happens, as it happens."""

from __future__ import annotations

import sys

from ctrmgr.backend import events, record
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.backend.events import Event
    from ctrmgr.cli.command import Args


def run_monitor(args: Args) -> int:
    form = args.one("format", "table")
    if form not in ("table", "json"):
        raise SpecError(f"`--format`: events are no {form}", hint="`--format json` is one document a line")
    watcher = events.Watcher(args.positional, args.all("type") or events.TYPES)
    if not args.flag("quiet"):
        known = record.names()
        for name in (name for name in args.positional if name not in known):
            print(f"note: there is no instance `{name}` yet", file=sys.stderr)
    try:
        show(events.Event("monitor", "watching"), form)
        while True:
            found = watcher.wait(sys.stdout.fileno())
            if found is None:
                raise BrokenPipeError
            for event in found:
                show(event, form)
    except KeyboardInterrupt:
        return 130
    finally:
        watcher.close()


def show(event: Event, form: str) -> None:
    fields = event.fields()
    if form == "json":
        import json

        print(json.dumps(fields), flush=True)
        return
    details = " ".join(f"{key}={value}" for key, value in event.details.items())
    print(f"{fields['time']}  {event.type:9}  {event.event:10}  {event.instance:12}  {details}".rstrip(), flush=True)


COMMANDS = (
    Command(
        "monitor",
        "what happens to instances, as it happens",
        run_monitor,
        arguments=(Argument("INSTANCE", "only these", required=False, repeat=True, complete="instance"),),
        options=(Option("type", "only this type of events", metavar="TYPE", repeat=True, choices=events.TYPES),),
        help="One line for each event until ctrl-c; `--format json` writes one document a line. The first, `watching`, says that "
        "from now on nothing is missed.",
    ),
)
