# SPDX-License-Identifier: GPL-3.0-or-later
"""`limits.kernel.*` → `rlimit` rows: what each process of an instance may have, over what the host's init has."""

from __future__ import annotations

from ctrmgr.errors import UnsupportedError
from ctrmgr.plan import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.host.machine import Host

PREFIX = "limits.kernel."


def rows(config: Mapping[str, str], host: Host, *, pins: bool = False) -> list[list[str]]:
    """`rlimit` rows, and a `left-out` row for each key left out by `limits.enforcement: best-effort`. `pins`: it has devices
    that work on memory which stays where it is, and so no limit on that, unless the configuration has one or we have.

    Raises UnsupportedError for a limit that the kernel would refuse.
    """
    limited = dict(host.init_limits)
    if pins and not _refused("memlock", "unlimited", host):
        limited["memlock"] = ("unlimited", "unlimited")
    found: list[list[str]] = []
    for key, value in sorted(config.items()):
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        soft, _, hard = value.partition(":")
        why = _refused(name, hard, host)
        if not why:
            limited[name] = (soft, hard)
            continue
        error = UnsupportedError(
            f"`{key}` cannot be set to {hard} here: {why}",
            hint="`limits.enforcement: best-effort` goes on without it",
        )
        if config.get("limits.enforcement") != "best-effort":
            raise error
        found.append(limits.left_out(key, error.message))
    return found + [["rlimit", name, soft, hard] for name, (soft, hard) in sorted(limited.items())]


def _refused(name: str, hard: str, host: Host) -> str:
    """Why the kernel would not give a process this hard limit; "" when it would."""
    if name == "nofile" and host.nr_open and _above(hard, str(host.nr_open)):
        return f"the kernel gives no process more than {host.nr_open} (sysctl fs.nr_open)"
    own = host.own_limits.get(name)
    if own and not host.may_raise_limits and _above(hard, own[1]):
        return f"that is above the {own[1]} that you have yourself, and raising it takes CAP_SYS_RESOURCE"
    return ""


def _above(value: str, limit: str) -> bool:
    return limit != "unlimited" and (value == "unlimited" or int(value) > int(limit))
