# SPDX-License-Identifier: GPL-3.0-or-later
"""The administrator's list of hooks that specifications may have run: `hooks.allow` in `/etc/ctrmgr`. Cold.

A line is a stage, variables, a program and its arguments, of which the last two may be patterns of a shell's:

    createRuntime MODE=* /usr/libexec/acme-setup --card * --quiet
    startContainer /usr/bin/acme-probe ...

What the hook has and the line does not name is refused: a variable, an argument more or less. `...` at the end is any arguments.
"""

from __future__ import annotations

import os
import shlex
import stat
from fnmatch import fnmatchcase

from ctrmgr import state
from ctrmgr.errors import HostError, SpecError, UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.edits import Hook

FILE = "hooks.allow"
HOST = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")
"""Stages whose programs are the host's. All but `createContainer` have the rights of who runs ctrmgr; that has those of the instance's root."""
STAGES = (*HOST, "startContainer")
ANY = "..."
SIZE_MAX = 1 << 20


def place() -> str:
    """Root's own; a user's configuration allows nothing."""
    return f"{state.config_dir() if os.geteuid() == 0 else '/etc/ctrmgr'}/{FILE}"


def check(hook: Hook) -> None:
    """Raises UnsupportedError for a hook that the list does not name, HostError for a list or a program that is not trusted,
    SpecError for a list that is not one."""
    called = " ".join((hook.path, *hook.args[1:]))
    what = f"its specification wants `{called}` to be run ({hook.hook_name})"
    if hook.args and hook.args[0] not in (hook.path, os.path.basename(hook.path)):
        raise UnsupportedError(f"{what} under another name, `{hook.args[0]}`, which decides what some programs do")
    if not any(_fits(line, hook) for line in lines()):
        raise UnsupportedError(
            f"{what}: it is not a hook whose work is known, and nobody has allowed it",
            hint=f"who trusts it writes into {place()}: {line_for(hook)}",
        )
    if hook.hook_name in HOST:
        _trusted(hook.path, program=True)


def line_for(hook: Hook) -> str:
    """The line that allows just this."""
    return shlex.join((hook.hook_name, *map(_literal, (*hook.env, hook.path, *hook.args[1:]))))


def _literal(word: str) -> str:
    """A pattern that is only this word."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in word)


def lines() -> list[list[str]]:
    """Without a file there is none. Raises HostError, SpecError."""
    path = place()
    if not os.path.lexists(path):
        return []
    found = []
    for number, text in enumerate(_trusted(path).decode("utf-8", "surrogateescape").splitlines(), 1):
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            raise SpecError(f"{path}:{number}: {error}") from None
        if not words:
            continue
        program = next((word for word in words[1:] if "=" not in word.partition("/")[0]), "")
        if words[0] not in STAGES or program[:1] != "/":
            raise SpecError(
                f"{path}:{number}: it is not a stage, a program's whole path and its arguments",
                hint=f"the stages are {', '.join(STAGES)}",
            )
        found.append(words)
    return found


def _fits(line: Sequence[str], hook: Hook) -> bool:
    stage, *words = line
    at = next(index for index, word in enumerate(words) if "=" not in word.partition("/")[0])
    variables, program, patterns = words[:at], words[at], words[at + 1 :]
    given = list(hook.args[1:])
    if patterns[-1:] == [ANY]:
        patterns = patterns[:-1]
        given = given[: len(patterns)]
    return (
        (stage, program) == (hook.hook_name, hook.path)
        and len(given) == len(patterns)
        and all(fnmatchcase(word, pattern) for word, pattern in zip(given, patterns, strict=True))
        and all(any(fnmatchcase(word, pattern) for pattern in variables) for word in hook.env)
    )


def _trusted(path: str, *, program: bool = False) -> bytes:
    """A file's text (a program's is not read) that nobody but root could have written, nor anything above it. Raises HostError."""
    folder = os.path.dirname(os.path.realpath(path) if program else path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if program else os.O_NOFOLLOW))
    except OSError as error:
        raise HostError(f"`{path}` cannot be used: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise HostError(f"`{path}` is not a file")
        while True:
            above = os.stat(folder)
            _roots(folder, above, open_to_others=not above.st_mode & stat.S_ISVTX)
            if folder == "/":
                break
            folder = os.path.dirname(folder)
        _roots(path, found, open_to_others=True)
        return b"" if program else os.read(fd, SIZE_MAX)
    finally:
        os.close(fd)


def _roots(path: str, found: os.stat_result, *, open_to_others: bool) -> None:
    if found.st_uid != 0:
        raise HostError(f"`{path}` belongs to user {found.st_uid} and is not trusted", hint=f"chown root {path}")
    if open_to_others and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise HostError(f"`{path}` can be written by others and is not trusted", hint=f"chmod go-w {path}")
