# SPDX-License-Identifier: GPL-3.0-or-later
"""`limits.memory.oom_priority` → the `oom-score-adj` row: how likely an instance's processes are killed when memory runs out."""

from __future__ import annotations

from ctrmgr.errors import UnsupportedError
from ctrmgr.plan import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctrmgr.host.machine import Host

KEY, ROW = "limits.memory.oom_priority", "oom-score-adj"


def rows(config: Mapping[str, str], host: Host) -> list[list[str]]:
    """None without the key: then it has what whoever starts it has. A `left-out` row for one that is left out by
    `limits.enforcement: best-effort`.

    Raises UnsupportedError for what the kernel would refuse.
    """
    value = config.get(KEY, "")
    if not value:
        return []
    own = host.own_oom_score_adj
    if int(value) >= own or host.may_raise_limits:
        return [[ROW, value]]
    error = UnsupportedError(
        f"`{KEY}` cannot be set to {value} here: that is below the {own} that you have yourself, and going lower takes CAP_SYS_RESOURCE",
        hint=limits.BEST_EFFORT,
    )
    if config.get("limits.enforcement") != "best-effort":
        raise error
    return [limits.left_out(KEY, error.message)]
