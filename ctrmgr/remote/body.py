# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON, read and written by what the library's own module is made of: importing that one takes longer than most requests."""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLANKS = " \t\n\r"


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


class _Rules:
    """What the scanner asks for."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, staticmethod(_constant)
    memo: dict[str, str] = {}


_scan = make_scanner(_Rules())  # type: ignore[arg-type]


def loads(data: bytes | str) -> Any:
    """Raises ValueError."""
    text = (data if isinstance(data, str) else data.decode()).strip(BLANKS)
    try:
        value, end = _scan(text, 0)
    except StopIteration as error:
        raise ValueError(f"no JSON at {error.value}") from None
    if end != len(text):
        raise ValueError(f"more than one value: {end}")
    return value


def dumps(value: Any) -> str:
    """Of maps with names, lists, texts, whole numbers, truth and None. Raises TypeError for anything else."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring_ascii(key)}:{dumps(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumps, value)) + "]"
    raise TypeError(f"{type(value).__name__} is not for a server")
