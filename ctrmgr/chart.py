# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers over time as a picture: SVG, or HTML with the same picture and a table. Nothing is fetched when it is looked at."""

from __future__ import annotations

import html as markup
import math
import time
from bisect import bisect_left
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which people with any colour vision can tell apart; without yellow, which nobody sees on white."""
DASHES = ("", "6 2", "2 2", "8 2 2 2")
"""For more lines than there are colours."""
WIDTH, LEFT, RIGHT, HEIGHT, GAP, TOP = 960, 76, 16, 170, 52, 40


class Line:
    """One line of a panel. Its look goes with `number`: the same thing looks the same in all panels. A NaN is a gap."""

    __slots__ = ("limits", "name", "number", "times", "values")

    def __init__(
        self, name: str, number: int, times: Sequence[float], values: Sequence[float], limits: Sequence[float] = ()
    ) -> None:
        self.name, self.number, self.times, self.values = name, number, times, values
        self.limits = limits


class Panel:
    """What has one unit: `%`, `B`, `B/s`, or "" for a count."""

    __slots__ = ("lines", "title", "unit")

    def __init__(self, title: str, unit: str, lines: Sequence[Line]) -> None:
        self.title, self.unit, self.lines = title, unit, lines


def text(words: str) -> str:
    """What XML takes, whatever it is."""
    return markup.escape("".join(letter if letter.isprintable() else "?" for letter in words))


# Scales


def ticks(top: float, unit: str, most: int = 5) -> list[float]:
    """Round numbers from 0 to the first that is not below `top`: of 1024s for bytes, of 10s for all else."""
    top = top if top > 0 else 1.0
    base = 1024.0 ** int(math.log(max(top, 1.0), 1024.0)) if unit.startswith("B") else 1.0
    want = top / base / most
    ten = 10.0 ** math.floor(math.log10(want))
    step = next(ten * nice for nice in (1, 2, 5, 10) if ten * nice >= want * 0.999999) * base
    if unit in ("", "B"):
        step = max(step, 1.0)
    return [step * index for index in range(math.ceil(top / step * 0.999999) + 1)]


def number(value: float, unit: str) -> str:
    """With its unit: `34%`, `1.5 MiB/s`, `12`."""
    if not unit.startswith("B"):
        return f"{value:.10g}{unit}" if value == round(value, 6) else f"{value:.4g}{unit}"
    prefix = ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi"):
        if value < 1024:
            break
        value, prefix = value / 1024, larger
    return f"{value:.4g} {prefix}{unit}"


STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def moments(start: float, end: float, most: int = 9) -> list[tuple[float, str]]:
    """Where the time axis has marks, in UTC."""
    span = max(end - start, 1.0)
    step = next((step for step in STEPS if span / step <= most), 604800 * math.ceil(span / 604800 / most))
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
    first = math.ceil(start / step) * step
    return [(when, time.strftime(form, time.gmtime(when))) for when in range(first, int(end) + 1, step)]


# Fewer points than were measured


def thin(
    times: Sequence[float], values: Sequence[float], start: float, end: float, columns: int
) -> Iterator[tuple[float, float]]:
    """At most four points for each of `columns` stretches of time: the first, the least, the most and the last of it. So every
    peak is seen, however short it was. Gaps stay."""
    if len(times) <= 2 * columns:
        yield from zip(times, values, strict=True)
        return
    at = 0
    for column in range(columns):
        until = (
            len(times)
            if column == columns - 1
            else bisect_left(times, start + (end - start) * (column + 1) / columns, at)
        )
        part = range(at, until)
        at = until
        known = [index for index in part if not math.isnan(values[index])]
        if not known:
            yield from ((times[index], math.nan) for index in part[:1])
            continue
        kept = {known[0], known[-1], min(known, key=values.__getitem__), max(known, key=values.__getitem__)}
        gaps = [index for index in part if math.isnan(values[index])]
        kept.update(gaps[:1])
        yield from ((times[index], values[index]) for index in sorted(kept))


def pieces(points: Iterator[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The stretches between gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for when, value in points:
        if not math.isnan(value):
            found[-1].append((when, value))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


# The picture


def svg(panels: Sequence[Panel], start: float, end: float, title: str) -> str:
    """All panels below each other, over the same time."""
    names = {line.number: line.name for panel in panels for line in panel.lines}
    rows, legend = _legend(names, any(_known(line.limits) for panel in panels for line in panel.lines))
    top = TOP + 18 * rows
    height = top + len(panels) * (HEIGHT + GAP)
    when = f"{_day(start)} – {_day(end)} UTC"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        '<g font-family="sans-serif" font-size="12">',
        f"<title>{text(title)}</title><desc>{text(when)}</desc>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{text(title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="24" text-anchor="end" fill="#555">{text(when)}</text>',
        *legend,
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, top + index * (HEIGHT + GAP) + 24, start, end)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def _day(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when))


def _known(values: Sequence[float]) -> bool:
    return any(not math.isnan(value) for value in values)


def _look(number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return f'stroke="{COLOURS[number % len(COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend(names: dict[int, str], limited: bool) -> tuple[int, list[str]]:
    """How many rows it takes, and the rows."""
    parts, x, row = [], LEFT, 0
    entries = [(name, f'{_look(index)} stroke-width="2"') for index, name in sorted(names.items())]
    if limited:
        entries.append(("limit", 'stroke="#555" stroke-width="1" stroke-dasharray="10 4 2 4"'))
    for name, look in entries:
        width = 34 + 8 * len(name)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, row = LEFT, row + 1
        y = TOP + 18 * row + 4
        parts.append(f'<path d="M{x} {y}h22" fill="none" {look}/><text x="{x + 28}" y="{y + 4}">{text(name)}</text>')
        x += width + 12
    return row + 1, parts


def _panel(panel: Panel, top: int, start: float, end: float) -> list[str]:
    most = max((value for line in panel.lines for row in (line.values, line.limits) for value in row if not math.isnan(value)),
               default=0.0)  # fmt: skip
    marks = ticks(most, panel.unit)
    scale, bottom, right = HEIGHT / marks[-1], top + HEIGHT, WIDTH - RIGHT
    span = max(end - start, 1e-3)

    def x(when: float) -> str:
        return f"{LEFT + (when - start) / span * (right - LEFT):.1f}"

    def y(value: float) -> str:
        return f"{bottom - value * scale:.1f}"

    parts = [f'<g><text x="{LEFT}" y="{top - 8}" font-weight="bold">{text(panel.title)}</text>']
    for mark in marks:
        parts.append(f'<path d="M{LEFT} {y(mark)}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{float(y(mark)) + 4:.1f}" text-anchor="end">{number(mark, panel.unit)}</text>'
        )
    for when, label in moments(start, end):
        parts.append(f'<path d="M{x(when)} {bottom}v4" stroke="#555"/>')
        parts.append(f'<text x="{x(when)}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    parts.append(f'<path d="M{LEFT} {top}V{bottom}H{right}" fill="none" stroke="#555"/>')
    for line in panel.lines:
        colour = COLOURS[line.number % len(COLOURS)]
        limits = pieces(thin(line.times, line.limits, start, end, right - LEFT)) if _known(line.limits) else []
        for piece in limits:
            # a limit holds until it is changed: steps, not slopes
            d = f"M{x(piece[0][0])} {y(piece[0][1])}"
            for (_, old), (when, value) in pairwise(piece):
                d += f"H{x(when)}" + (f"V{y(value)}" if value != old else "")
            parts.append(
                f'<path class="limit" d="{d}" fill="none" stroke="{colour}" stroke-dasharray="10 4 2 4" opacity="0.8"/>'
            )
        for piece in pieces(thin(line.times, line.values, start, end, right - LEFT)):
            if len(piece) == 1:
                parts.append(f'<circle cx="{x(piece[0][0])}" cy="{y(piece[0][1])}" r="2" fill="{colour}"/>')
                continue
            points = " ".join(f"{x(when)},{y(value)}" for when, value in piece)
            parts.append(f'<polyline points="{points}" fill="none" {_look(line.number)} stroke-width="1.5">'
                         f"<title>{text(line.name)}</title></polyline>")  # fmt: skip
    return [*parts, "</g>"]


def html(panels: Sequence[Panel], start: float, end: float, title: str) -> str:
    """The picture, and least, mean and most of each line."""
    rows = []
    for panel in panels:
        for line in panel.lines:
            known = [value for value in line.values if not math.isnan(value)]
            if known:
                cells = (min(known), sum(known) / len(known), max(known))
                rows.append(f"<tr><td>{text(line.name)}<td>{text(panel.title)}" +
                            "".join(f"<td>{number(value, panel.unit)}" for value in cells))  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{text(title)}</title>\n'
        "<style>body{font-family:sans-serif;max-width:960px;margin:1em auto}svg{width:100%;height:auto}"
        "td,th{padding:.2em .8em;text-align:left}td:nth-child(n+3){text-align:right}</style>\n"
        + svg(panels, start, end, title)
        + "<table><tr><th>instance<th>what<th>least<th>mean<th>most\n"
        + "\n".join(rows)
        + "\n</table></html>\n"
    )
