# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks of CDI specifications. What those do that are known by name is done inside the instance instead of running them; of the
others an administrator allows those that are run. Hot."""

from __future__ import annotations

from ctrmgr.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctrmgr.edits import Hook

PROGRAMS = frozenset(("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-toolkit", "amd-ctk", "cdi-hook"))
PASSED_OVER = frozenset(("disable-device-node-modification", "enable-cuda-compat", "update-nvidia-params"))
"""What is so anyway: nobody in an instance can make or change nodes. `enable-cuda-compat` prefers newer libraries that some
images bring; without it the host's are used."""
STAGES = frozenset(("createContainer", "startContainer", "createRuntime", "prestart"))
LDCACHE = frozenset(("update-ldcache", "create-soname-symlinks"))
"""`ldconfig` does both."""
DIRS = 8
"""Folders that one row has room for."""
SECONDS = 60
"""For a hook that says nothing of its time."""
SECONDS_MAX = 600
WORDS_MAX, BYTES_MAX = 40, 3000
"""What the run plan has room for."""


def rows(hook: Hook) -> list[list[str]]:
    """What stands in the plan for a hook: what is to be done, or `host` or `run` with a program.

    Raises UnsupportedError for one that is neither known nor allowed, ValueError for wrong arguments, HostError for a list that is not
    trusted.
    """
    program = hook.path.rpartition("/")[2]
    words = list(hook.args[1:])
    if words[:1] == ["hook"]:  # `nvidia-ctk hook create-symlinks …`
        words = words[1:]
    if program.partition(".")[0] not in PROGRAMS or hook.hook_name not in STAGES or not words:
        return [_run(hook)]
    kind, options = words[0], _options(words[1:])
    if kind in PASSED_OVER:
        return []
    if kind == "create-symlinks":
        return [_link(value) for name, value in options if name == "link"]
    if kind in LDCACHE:
        folders = [_absolute(value) for name, value in options if name == "folder"]
        folders = folders or ["/usr/lib"]  # which is always in the cache, so that it is only made anew
        return [["ldcache", *folders[at : at + DIRS]] for at in range(0, len(folders), DIRS)]
    if kind == "chmod":
        modes = [value for name, value in options if name == "mode"]
        paths = [_absolute(path) for name, value in options if name == "path" for path in value.split(",")]
        if len(modes) != 1 or modes[0].strip("01234567") or int(modes[0], 8) > 0o777:
            raise ValueError(f"its specification has a `chmod` hook without a plain mode: {' '.join(words)}")
        return [["chmod", f"{int(modes[0], 8):04o}", path] for path in paths]
    return [_run(hook)]


def _run(hook: Hook) -> list[str]:
    """A program that an administrator has allowed."""
    from ctrmgr.cdi import allowed

    check(hook)
    seconds = SECONDS if hook.timeout is None else hook.timeout
    words = [*(hook.args or (hook.path,)), *hook.env]
    if len(words) > WORDS_MAX or sum(len(word.encode("utf-8", "surrogateescape")) + 1 for word in words) > BYTES_MAX:
        raise UnsupportedError(f"its specification has a hook `{hook.path}` with too many words")
    if not 0 < seconds <= SECONDS_MAX:
        raise UnsupportedError(
            f"its specification has a hook `{hook.path}` that may take {seconds} seconds: not over {SECONDS_MAX}"
        )
    place = ["host", hook.hook_name] if hook.hook_name in allowed.HOST else ["run"]
    return [*place, str(seconds), hook.path, str(len(words) - len(hook.env)), *words]


def check(hook: Hook) -> None:
    """Raises UnsupportedError, HostError or SpecError for one whose program the administrator's list does not allow."""
    from ctrmgr.cdi import allowed

    allowed.check(hook)


def hook_of(row: Sequence[str]) -> Hook | None:
    """The hook whose program a row of the plan has run; None for other rows."""
    from ctrmgr.edits import Hook

    if row[0] == "host-hook":
        stage, seconds, path, count, *words = row[2:]
    elif row[0] == "hook" and row[2] == "run":
        stage, (seconds, path, count, *words) = "startContainer", row[3:]
    else:
        return None
    return Hook(stage, path, words[: int(count)], words[int(count) :], int(seconds))


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    """`--name value` and `--name=value`. Raises ValueError for anything else: half understood is not understood."""
    found = []
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if not name.startswith("-") or not name.lstrip("-") or (not equals and not left):
            raise ValueError(f"its specification has a hook whose arguments are not understood: {' '.join(words)}")
        found.append((name.lstrip("-"), value if equals else left.pop(0)))
    return found


def _link(value: str) -> list[str]:
    target, colons, link = value.partition("::")
    if not colons or not target:
        raise ValueError(f"its specification has a link `{value}`, which is not TARGET::LINK")
    return ["symlink", target, _absolute(link)]


def _absolute(path: str) -> str:
    parts = path.split("/")
    if path[:1] != "/" or ".." in parts or path == "/" or not path.isprintable():
        raise ValueError(f"its specification has the path `{path}`, which is not one below the instance's root")
    return path
