# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of data on stdout, as `--format` wants them. Cold: for what nobody waits for in a loop."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GAP = 2
"""Blanks between two columns."""
LEAST, WORD = 8, 24
"""A column is made no narrower than this on a narrow terminal, nor than its longest word if that is not more than `WORD`."""


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], form: str = "table", *, spare: Sequence[str] = ()
) -> None:
    """Print every row's `columns`; `json` and `yaml` get the whole rows, lists as lists. Programs get keys without blanks.

    `spare` are columns that a terminal too narrow for all of them goes without, the first one first.
    """
    if form in ("json", "yaml"):
        print_document([_keyed(row) for row in rows], form)
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(_key, columns))
        writer.writerows([_text(row.get(column, "")) for column in columns] for row in rows)
    else:
        cells = [[column.upper(), *(_text(row.get(column, "")) for row in rows)] for column in columns]
        room = width()
        if room and _room(cells) > room:
            cells = [column for column in cells if any(column[1:])] or cells
            for name in spare:
                if _room(cells) > room:
                    cells = [column for column in cells if column[0] != name.upper()]
        _print_lines(cells, room)


def _print_lines(cells: list[list[str]], room: int) -> None:
    """Columns beside each other, in a terminal of this width (0: in any)."""
    widths = [max(map(len, column)) for column in cells]
    for least in (WORD, LEAST):
        if room and _room(cells) > room:
            bounds = [max(len(column[0]), min(least, max(map(_longest, column)))) for column in cells]
            narrowed = _narrowed(widths, bounds, room - GAP * (len(cells) - 1))
            if narrowed:
                widths = narrowed
                break
    for line in zip(*cells, strict=True):
        parts = [list(wrapped(cell, wide)) for cell, wide in zip(line, widths, strict=True)]
        for number in range(max(map(len, parts), default=0)):
            words = [part[number] if number < len(part) else "" for part in parts]
            print((" " * GAP).join(word.ljust(wide) for word, wide in zip(words, widths, strict=True)).rstrip())


def width() -> int:
    """Of the terminal on stdout; 0 when it is none, or does not say."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (OSError, ValueError):
        return 0


def _room(cells: list[list[str]]) -> int:
    return sum(max(map(len, column)) for column in cells) + GAP * (len(cells) - 1)


def _narrowed(widths: Sequence[int], bounds: Sequence[int], room: int) -> list[int]:
    """Widths with the widest ones made narrower until all have room; none when the bounds do not let them."""
    found = list(widths)
    while sum(found) > room:
        able = [number for number, wide in enumerate(found) if wide > bounds[number]]
        if not able:
            return []
        found[max(able, key=found.__getitem__)] -= 1
    return found


def _pieces(word: str) -> Iterator[str]:
    """Where a word that is longer than a line may be cut: after a comma, slash or colon."""
    begin = 0
    for end, letter in enumerate(word, 1):
        if letter in ",/:" and word[end : end + 1] not in ("", letter):
            yield word[begin:end]
            begin = end
    yield word[begin:]


def _longest(text: str) -> int:
    return max((len(piece) for word in text.split(" ") for piece in _pieces(word)), default=0)


def wrapped(text: str, wide: int, *, cut: bool = True) -> Iterator[str]:
    """The text in lines of at most `wide` letters, broken at blanks; a word that is longer than a line is cut, or left whole."""
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > wide:
            yield line
            line = word
        else:
            line += f" {word}" if line else word
        if cut and len(line) > wide:
            *whole, line = _cut(line, wide)
            yield from whole
    yield line


def _cut(word: str, wide: int) -> Iterator[str]:
    line = ""
    for piece in _pieces(word):
        if line and len(line) + len(piece) > wide:
            yield line
            line = ""
        line += piece
        while len(line) > wide:
            yield line[:wide]
            line = line[wide:]
    yield line


def print_object(fields: Mapping[str, object], form: str = "table") -> None:
    """Print one object: `key: value` lines, things of which there are several below their key; or what `form` says."""
    if form == "table":
        room = width()
        for key, value in fields.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                print(f"{key}:")
                for item in value:
                    print_wide(f"  {_text(item)}", room)
            else:
                print_wide(f"{key}: {_text(value)}", room)
    elif form in ("json", "yaml"):
        print_document(_keyed(fields), form)
    else:
        print_rows(list(fields), [fields], form)


def print_wide(line: str, room: int) -> None:
    """A line that goes on below itself, further in, in a terminal that is too narrow for it (0: in none). Words stay whole."""
    begin = len(line) - len(line.lstrip())
    if not room or len(line) <= room or room < 3 * LEAST:
        print(line)
        return
    # what goes on has four letters less
    first, *more = wrapped(line[begin:], room - begin - 4, cut=False)
    print(" " * begin + first)
    for each in more:
        print(" " * (begin + 4) + each)


def beside(left: str, wide: int, right: str, room: int) -> str:
    """What stands on the right of a word, in lines of its own in a terminal that is too narrow (0: in none)."""
    rest = room - wide - GAP
    lines = list(wrapped(right, rest, cut=False)) if rest >= 2 * LEAST else [right]
    return "\n".join(
        f"{word.ljust(wide)}{' ' * GAP}{line}" for word, line in zip([left, *[""] * len(lines)], lines, strict=False)
    )


def print_document(data: object, form: str) -> None:
    """Data without rows, for programs; as YAML for people."""
    if form == "json":
        import json

        print(json.dumps(data, indent=2))
    elif form == "csv":
        from ctrmgr.errors import SpecError

        raise SpecError("this has no rows that CSV could be made of", hint="--format json or yaml")
    else:
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")


def print_text(text: str, form: str) -> None:
    """YAML as it was written, or the same data for programs."""
    if form in ("table", "yaml"):
        print(text, end="")
    else:
        from ctrmgr import source

        print_document(source.parse("-", text).data or {}, form)


def print_value(value: str, form: str) -> None:
    """One word; as JSON in quotes."""
    if form == "json":
        print_document(value, form)
    else:
        print(value)


def _key(name: str) -> str:
    return name.replace(" ", "-")


def _keyed(row: Mapping[str, object]) -> dict[str, object]:
    return {_key(name): value for name, value in row.items()}


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={_text(part)}" for key, part in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def size(count: int) -> str:
    """Bytes for people: `309.4 MiB`."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value >= 1024:
            value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def moment(seconds: int) -> str:
    """A time as ISO 8601 has it, in UTC."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
