# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr start`, `stop`, `restart`, `kill`, `freeze`, `unfreeze`: each takes several instances."""

from __future__ import annotations

import sys

from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import CtrmgrError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ctrmgr.cli.command import Args


def each(args: Args, verb: str, action: Callable[[str], None]) -> int:
    """Do it to every instance named; one that fails does not keep the others from it. Returns the worst exit code."""
    from ctrmgr.backend import record

    names = record.names() if args.flag("all") else args.positional
    if not names and not args.flag("all"):
        raise SpecError(f"`ctrmgr {verb}`: INSTANCE is missing", hint="name one, or say --all")
    if len(names) == 1:
        _one(args, verb, names[0], action)
        return 0
    code = 0
    for name in names:
        try:
            _one(args, verb, name, action)
        except CtrmgrError as error:
            print(f"error: {error.message}", file=sys.stderr)
            code = max(code, error.exit_code)
    return code


def _one(args: Args, verb: str, name: str, action: Callable[[str], None]) -> None:
    if args.flag("dry-run"):
        from ctrmgr.backend import record

        record.Record(name)
        print(f"{verb} {name}")
    else:
        action(name)


def timeout(args: Args) -> float | None:
    given = args.one("timeout")
    if not given:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise SpecError(f"`--timeout {given}` is not a number of seconds")
    return seconds


def run_start(args: Args) -> int:
    from ctrmgr.backend import local

    return each(args, "start", local.start)


def run_stop(args: Args) -> int:
    from ctrmgr.backend import local

    wait = timeout(args)
    return each(args, "stop", lambda name: local.stop(name, timeout=wait, force=args.flag("force")))


def run_restart(args: Args) -> int:
    from ctrmgr.backend import local

    wait = timeout(args)
    return each(args, "restart", lambda name: local.restart(name, timeout=wait, force=args.flag("force")))


def run_kill(args: Args) -> int:
    """Without --signal everything in it is killed; with it, init gets the signal."""
    from ctrmgr.backend import local

    given = args.one("signal")
    if not given:
        return each(args, "kill", lambda name: local.stop(name, force=True))
    number = signal_number(given)
    return each(args, "kill", lambda name: local.signal(name, number))


def signal_number(word: str) -> int:
    """A signal by number or name (`TERM`, `SIGTERM`, `RTMIN+3`). Raises SpecError."""
    import signal

    base, plus, offset = word.upper().removeprefix("SIG").partition("+")
    try:
        number = int(base) if base.isdecimal() else int(signal.Signals["SIG" + base])
        number += int(offset) if plus else 0
    except (KeyError, ValueError):
        number = 0
    if not 1 <= number <= 64:
        raise SpecError(f"`{word}` is not a signal", hint="a number, or a name such as TERM")
    return number


def run_freeze(args: Args) -> int:
    from ctrmgr.backend import local

    return each(args, "freeze", local.freeze)


def run_unfreeze(args: Args) -> int:
    from ctrmgr.backend import local

    return each(args, "unfreeze", lambda name: local.freeze(name, thaw=True))


INSTANCES = (Argument("INSTANCE", "its name", required=False, repeat=True, complete="instance"),)
ALL = Option("all", "all instances")
STOPPING = (
    ALL,
    Option("timeout", "seconds to wait before it is killed", short="t", metavar="SECONDS"),
    Option("force", "do not ask, kill", short="f"),
)
SIGNAL = Option("signal", "send init this signal instead", short="s", metavar="SIGNAL")
COMMANDS = (
    Command("start", "start stopped instances", run_start, arguments=INSTANCES, options=(ALL,)),
    Command("stop", "shut instances down", run_stop, arguments=INSTANCES, options=STOPPING),
    Command("restart", "stop and start", run_restart, arguments=INSTANCES, options=STOPPING),
    Command(
        "kill",
        "kill all processes of instances, or send their init a signal",
        run_kill,
        arguments=INSTANCES,
        options=(ALL, SIGNAL),
    ),
    Command(
        "freeze", "stop all processes of instances where they are", run_freeze, arguments=INSTANCES, options=(ALL,)
    ),
    Command("unfreeze", "let frozen instances go on", run_unfreeze, arguments=INSTANCES, options=(ALL,)),
)
