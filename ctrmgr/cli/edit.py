# SPDX-License-Identifier: GPL-3.0-or-later
"""Text in the user's editor, until it is valid or given up, or from a pipe or file. What was typed is never lost."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar

from ctrmgr.errors import CtrmgrError, SpecError

T = TypeVar("T")


def edit(text: str, name: str, check: Callable[[str, str], T]) -> tuple[str, T] | None:
    """The edited text and what `check(file, text)` made of it; None when nothing was changed.

    Text on standard input takes the place of the editor. Text that `check` refuses (SpecError) is opened again if there is
    somebody to ask. Otherwise it stays in its file, which the error names.
    """
    given = piped()
    if given:
        return None if given == text else (given, check("standard input", given))
    fd, path = tempfile.mkstemp(prefix=f"ctrmgr-{name}-", suffix=".yaml")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    while True:
        _run(path)
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            changed = file.read()
        if changed == text:
            os.unlink(path)
            return None
        try:
            result = check(path, changed)
        except SpecError as error:
            if _again(error):
                continue
            raise SpecError(error.message, hint=f"nothing was changed; your text is kept in `{path}`") from None
        os.unlink(path)
        return changed, result


def piped(*, whatever: bool = False) -> str:
    """What standard input has, if that is a file, a pipe or a socket; or `whatever` it is. Raises SpecError."""
    kind = stat.S_IFMT(os.fstat(0).st_mode) if sys.stdin else 0
    try:
        return sys.stdin.read() if whatever or kind in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK) else ""
    except UnicodeDecodeError:
        raise SpecError("`standard input` is not UTF-8") from None


def _run(path: str) -> None:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(command), path], check=False).returncode
    except (OSError, ValueError) as error:
        raise CtrmgrError(
            f"the editor `{command}` cannot be run: {error}", hint=f"set EDITOR; the text is in `{path}`"
        ) from error
    if code != 0:
        raise CtrmgrError(
            f"the editor `{command}` failed ({code})", hint=f"nothing was changed; the text is in `{path}`"
        )


def _again(error: SpecError) -> bool:
    if not sys.stdin.isatty():
        return False
    print("error:", error.message.replace("\n", "\nerror: "), file=sys.stderr)
    print("Enter opens the editor again; q gives up: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == ""
