# SPDX-License-Identifier: GPL-3.0-or-later
"""What a key of `config:` is."""

from __future__ import annotations

from ctrmgr.spec import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Key:
    """One key, or (`name` ends in `.*`) all keys with a prefix, of which `suffix` says whether what follows can be.

    `refused` is the reason why a launch with it is refused. `live` keys change a running instance at once. `off` are values
    with which a refused key asks for nothing.
    """

    __slots__ = ("default", "description", "inert", "live", "name", "off", "parse", "refused", "suffix", "type")

    def __init__(
        self,
        name: str,
        type: str,
        description: str,
        *,
        parse: Callable[[str], str] | None = None,
        suffix: Callable[[str], bool] | None = None,
        default: str = "",
        refused: str = "",
        inert: bool = False,
        live: bool = False,
        off: tuple[str, ...] = (),
    ) -> None:
        self.name, self.type, self.description, self.default = name, type, description, default
        self.parse = parse or PARSERS.get(type, values.text)
        self.suffix = suffix or bool
        self.refused, self.inert, self.live, self.off = refused, inert, live, off


PARSERS: dict[str, Callable[[str], str]] = {
    "boolean": values.boolean,
    "integer": values.integer,
    "size": values.size,
    "string": values.text,
    "priority 0–10": values.priority,
}
