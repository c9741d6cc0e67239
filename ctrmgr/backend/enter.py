# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of `ctrmgr-exec`, which does the entering. Hot."""

from __future__ import annotations

import os

from ctrmgr.backend import record
from ctrmgr.errors import SpecError
from ctrmgr.kernel import helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def words(
    name: str,
    command: Sequence[str],
    *,
    user: str = "",
    group: str = "",
    cwd: str = "",
    env: Mapping[str, str],
    tty: bool | None = None,
    shell: bool = False,
) -> list[str]:
    """The helper's path and arguments. Raises NotFoundError, ConflictError, SpecError, HelperError."""
    if not command and not shell:
        raise SpecError(f"no command to run in `{name}`", hint=f"ctrmgr exec {name} -- COMMAND")
    line = [helper.find("ctrmgr-exec"), "--control", f"{record.running(name)}/control"]
    for option, value in (("--user", user), ("--group", group), ("--cwd", cwd)):
        if value:
            line += [option, value]
    for key, value in env.items():
        if not key or "=" in key or "\0" in key + value:
            raise SpecError(f"`{key}` cannot be the name of an environment variable")
        line += ["--env", f"{key}={value}"]
    if tty is not None:
        line.append("--tty" if tty else "--no-tty")
    if shell:
        line.append("--shell")
    return [*line, "--", *command]


def environment() -> dict[str, str]:
    """What the helper itself may see of the caller's environment: its terminal's kind."""
    return {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
