# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of data on stdout, as `--format` wants them. Cold: for what nobody waits for in a loop."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, object]], form: str = "table") -> None:
    """Print every row's `columns`; `json` and `yaml` get the whole rows, lists as lists."""
    if form == "json":
        import json

        print(json.dumps(list(rows), indent=2))
    elif form == "yaml":
        import yaml

        print(yaml.safe_dump(list(map(dict, rows)), sort_keys=False), end="")
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row.get(column, "")) for column in columns] for row in rows)
    else:
        lines = [[column.upper() for column in columns]]
        lines += [[_text(row.get(column, "")) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())


def print_object(fields: Mapping[str, object], form: str = "table") -> None:
    """Print one object: `key: value` lines, things of which there are several below their key; or what `form` says."""
    if form == "table":
        for key, value in fields.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                print(f"{key}:")
                for item in value:
                    print(f"  {_text(item)}")
            else:
                print(f"{key}: {_text(value)}")
    elif form == "json":
        import json

        print(json.dumps(dict(fields), indent=2))
    elif form == "yaml":
        import yaml

        print(yaml.safe_dump(dict(fields), sort_keys=False), end="")
    else:
        print_rows(list(fields), [fields], form)


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
