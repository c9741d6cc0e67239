# SPDX-License-Identifier: GPL-3.0-or-later
"""From a command line to a verb and to an exit code. Hot: only the module of the verb is imported."""

from __future__ import annotations

import os
import sys

from ctrmgr.cli.command import Command, names_remote, parse
from ctrmgr.errors import CtrmgrError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

VERBS = {
    "attach-device": "device",
    "cdi": "cdi",
    "cluster": "cluster",
    "completion": "completion",
    "config": "config",
    "console": "logs",
    "copy": "copy",
    "create": "launch",
    "delete": "delete",
    "detach-device": "device",
    "device": "devices",
    "doctor": "doctor",
    "exec": "exec",
    "file": "file",
    "freeze": "power",
    "help": "help",
    "image": "image",
    "info": "info",
    "kill": "power",
    "launch": "launch",
    "list": "list",
    "logs": "logs",
    "monitor": "monitor",
    "move": "copy",
    "network": "network",
    "partition": "partition",
    "plot": "plot",
    "profile": "profile",
    "publish": "image",
    "remote": "remote",
    "rename": "delete",
    "restart": "power",
    "resume-device": "device",
    "shell": "exec",
    "snapshot": "snapshot",
    "start": "power",
    "stop": "power",
    "storage": "network",
    "suspend-device": "device",
    "top": "top",
    "unfreeze": "power",
}
"""First word → module of this package."""


def commands(module: str) -> tuple[Command, ...]:
    found: tuple[Command, ...] = __import__(f"ctrmgr.cli.{module}", fromlist=("COMMANDS",)).COMMANDS
    return found


def every_command() -> Iterator[Command]:
    """All verbs by name; cold."""
    found = [command for module in sorted(set(VERBS.values())) for command in commands(module)]
    yield from sorted(found, key=lambda command: command.name)


def find(words: list[str]) -> tuple[Command, list[str]]:
    """The command that the words begin with, and the words after its name. Raises SpecError."""
    module = VERBS.get(words[0])
    if module is None:
        raise SpecError(f"unknown command `{words[0]}`", hint=near(words[0]))
    best: Command | None = None
    for command in commands(module):
        parts = command.name.split(" ")
        if words[: len(parts)] == parts and (best is None or len(parts) > len(best.name.split(" "))):
            best = command
    if best is None:
        raise _unknown([command.name for command in commands(module)], words)
    return best, words[len(best.name.split(" ")) :]


def _unknown(names: list[str], words: list[str]) -> SpecError:
    """Of words that begin as commands do."""
    import difflib

    count = 1
    while any(name.startswith(" ".join(words[: count + 1]) + " ") for name in names) and words[count:]:
        count += 1
    first = " ".join(words[:count])
    names = [name for name in names if name.startswith(f"{first} ")]
    everything = f"there are: {', '.join(names)}"
    if not words[count:]:
        return SpecError(f"`{first}` is no command by itself", hint=everything)
    close = difflib.get_close_matches(words[count], [name.split(" ")[count] for name in names], 1)
    hint = f"did you mean `{first} {close[0]}`?" if close else everything
    return SpecError(f"unknown command `{first} {words[count]}`", hint=hint)


def near(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, VERBS, 1)
    return f"did you mean `{close[0]}`?" if close else "`ctrmgr help` lists them"


def leading(words: list[str]) -> tuple[list[str], list[str]]:
    """The options that stand before the command, which mean the same there as behind it, and the rest."""
    count = 0
    while count < len(words) and words[count][:1] == "-" and words[count].strip("-"):
        count += 2 if words[count] in ("-f", "--format") else 1
    return words[:count], words[count:]


def run(words: list[str]) -> int:
    """Carry a command line out. Raises CtrmgrError."""
    if words[0] in ("--version", "-V"):
        from ctrmgr import __version__

        print(f"ctrmgr {__version__}")
        return 0
    before, words = leading(words)
    if before[:1] in (["--help"], ["-h"]):
        before, words = [], ["help", *words]
    if not words:
        before, words = [], before
    if words[0] in VERBS and len(words) == 2 and words[1] in ("--help", "-h"):
        words = ["help", words[0]]
    command, rest = find(words)
    args = parse(command, before + rest)
    if args.flag("help"):
        command, args = find(["help"])[0], parse(find(["help"])[0], command.name.split(" "))
    if args.flag("debug"):
        from ctrmgr import kernel

        kernel.debug = True
    if names_remote(command, args):
        from ctrmgr.cli import distant

        return distant.run(command, args) or 0
    return command.run(args) or 0


def asks_json(words: list[str]) -> bool:
    """Whether `--format json` is among the words, of a line that may be wrong elsewhere; a COMMAND's own do not count."""
    own = words[: words.index("--")] if "--" in words else words
    return any(
        word in ("--format=json", "-fjson") or (word == "json" and own[index - 1 : index] in (["--format"], ["-f"]))
        for index, word in enumerate(own)
    )


def report(error: CtrmgrError, words: list[str]) -> None:
    """A line for each mistake, and the cure."""
    if asks_json(words):
        import json

        print(json.dumps({"error": error.message, "kind": type(error).__name__, "hint": error.hint}), file=sys.stderr)
        return
    print("error:", error.message.replace("\n", "\nerror: "), file=sys.stderr)
    if error.hint:
        print("\nhint:", error.hint.replace("\n", "\nhint: "), file=sys.stderr)


def refusal(error: OSError) -> CtrmgrError | None:
    """What the world refuses (permission, space, descriptors) is no bug, wherever it happens; anything else is: None."""
    from ctrmgr import state
    from ctrmgr.errors import HostError

    cure = state.CURES.get(error.errno or 0)
    if cure is None:
        return None
    return HostError(f"`{error.filename or 'ctrmgr'}`: {error.strerror}", hint=cure)


def speak_utf8() -> None:
    """Whatever the locale: what is printed can be read in again, and names of files that are no UTF-8 are printed as they are."""
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if (stream.encoding, stream.errors) != ("utf-8", errors) and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)


def hear_interrupts() -> None:
    """Ctrl-c, which the program on the PATH holds back while Python starts: that would answer it with a traceback."""
    import _signal  # type: ignore[import-not-found]  # the library's own makes enums of it

    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))


def main() -> int:
    """The `ctrmgr` program. Returns the exit code."""
    words = sys.argv[1:] or ["help"]
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: nobody listens
            setattr(sys, name, open(os.devnull, mode))
    speak_utf8()
    try:
        hear_interrupts()
        code = run(words)
        try:
            sys.stdout.flush()
        except OSError as error:
            error.filename = "standard output"
            raise
    except CtrmgrError as error:
        sys.stdout.flush()
        report(error, words)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader went away: nobody is left to hear more, not even python at its own end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        refused = refusal(error)
        if refused is None:
            raise
        report(refused, words)
        return refused.exit_code
    return code


def program() -> NoReturn:
    """`main`, and out. Python's own end takes every object apart first, which costs 2 ms of every hot verb and is for those
    who have threads or something to do at exit."""
    code = main()
    if "threading" in sys.modules or "weakref" in sys.modules:
        sys.exit(code)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
