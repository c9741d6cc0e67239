# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr top`: what instances use, and what they may."""

from __future__ import annotations

import os
import signal
import sys
import time

from ctrmgr.backend import recording, usage
from ctrmgr.cli import screen
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.cli.table import width
from ctrmgr.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctrmgr.backend.recording import Recorder
    from ctrmgr.backend.usage import Usage
    from ctrmgr.cli.command import Args

SHORTEST = 0.1
"""Seconds between samples. More often, most of what is seen is ourselves."""
KEYS = {"n": "name", "c": "cpu", "m": "memory", "s": "swap", "p": "processes", "i": "io", "t": "network", "g": "gpu"}
NEAR, FULL = 0.8, 0.95
"""From which part of a limit on a number is yellow, and red."""


def run_top(args: Args) -> int | None:
    interval = seconds(args.one("interval", "1"))
    order = args.one("sort", "name")
    sampler = usage.Sampler()
    form = args.one("format", "table")
    sampler.sample(args.positional)
    recorder = recording.Recorder(args.one("record")) if args.flag("record") else None
    if form == "table" and not args.flag("once") and sys.stdin.isatty() and sys.stdout.isatty():
        return live(sampler, args.positional, interval, order, recorder)
    silent = recorder is not None and not args.flag("format")
    printer = (lambda when, found: None) if silent else printers(form)
    due = time.monotonic()
    while True:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        found = usage.ordered(sampler.sample(args.positional), order)
        now = time.time()
        if recorder:
            recorder.add(now, found)
        printer(now, found)
        sys.stdout.flush()
        if args.flag("once"):
            return None


def seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not SHORTEST <= value <= 86400:
        raise SpecError(f"`--interval`: `{word}` is no number of seconds from {SHORTEST} to 86400")
    return value


# One document, or some rows, for each sample


def printers(form: str) -> Callable[[float, Sequence[Usage]], None]:
    if form == "json":
        import json

        return lambda when, found: print(json.dumps(document(when, found)))
    if form == "yaml":
        import yaml

        return lambda when, found: print("---\n" + yaml.safe_dump(document(when, found), sort_keys=False), end="")
    if form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("time", "name", *usage.FIELDS, "gpu", *usage.GPU_FIELDS))

        def rows(when: float, found: Sequence[Usage]) -> None:
            """One for each instance, and one more for each GPU after its first."""
            for each in found:
                gpus: list[tuple[str, dict[str, float | None]]] = list(each.gpus.items()) or [("", {})]
                for index, (gpu, given) in enumerate(gpus):
                    own = [] if index else [usage.plain(each.values[key]) for key in usage.FIELDS]
                    own = own or [None] * len(usage.FIELDS)
                    writer.writerow([iso(when), each.name, *own, gpu,
                                     *(usage.plain(given.get(key)) for key in usage.GPU_FIELDS)])  # fmt: skip

        return rows
    first, room = True, width()

    def table(when: float, found: Sequence[Usage]) -> None:
        nonlocal first
        print(("" if first else "\n") + "\n".join(line.rstrip() for line in lines(found, room or 1 << 16, False)))
        first = False

    return table


def document(when: float, found: Sequence[Usage]) -> dict[str, object]:
    return {"time": iso(when), "instances": [each.fields() for each in found]}


def iso(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1000):03d}Z"


# For people


def lines(found: Sequence[Usage], width: int, colours: bool) -> list[str]:
    """A heading, and a line for each instance and for each of its GPUs. Columns that do not fit are left out, the last first."""
    table: list[list[tuple[str, float]]] = [[(name, 0.0) for name in HEADS]]
    gpus: list[list[str]] = [[]]
    for each in found:
        table.append(cells(each))
        gpus.append([gpu_line(gpu, values) for gpu, values in each.gpus.items()])
    widths = [max(len(row[column][0]) for row in table) for column in range(len(HEADS))]
    shown = len(HEADS)
    while shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    made = []
    for row, below in zip(table, gpus, strict=True):
        line = ""
        for column, (text, part) in enumerate(row[:shown]):
            padded = text.ljust(widths[0])[:width] if column == 0 else "  " + text.rjust(widths[column])
            line += colour(padded, part) if colours else padded
        made.append(line)
        made += [text[:width] for text in below]
    return made


HEADS = ("NAME", "CPU", "MEMORY", "PROCESSES", "SWAP", "READ/s", "WRITE/s", "IN/s", "OUT/s")


def cells(each: Usage) -> list[tuple[str, float]]:
    """Text, and which part of the limit it is."""
    values = each.values
    return [
        (each.name, 0.0),
        of(values["cpu"], values["cpu-limit"], percent),
        of(values["memory"], values["memory-limit"], short),
        of(values["processes"], values["processes-limit"], whole),
        of(values["swap"], values["swap-limit"], short),
        *((short(value) if value is not None else "", 0.0)
          for value in (values[name] for name in ("io-read", "io-write", "network-in", "network-out"))),
    ]  # fmt: skip


def of(value: float | None, limit: float | None, text: Callable[[float], str]) -> tuple[str, float]:
    if value is None:
        return "", 0.0
    if limit is None:
        return text(value), 0.0
    return f"{text(value)}/{text(limit)}", value / limit if limit else 1.0


def gpu_line(gpu: str, values: dict[str, float | None]) -> str:
    use, _ = of(values["gpu-use"], 100.0, percent)
    memory, _ = of(values["gpu-memory"], values["gpu-memory-limit"], short)
    return f"  {gpu or 'gpu'}" + (f"  use {use}" if use else "") + (f"  memory {memory}" if memory else "")


def percent(value: float) -> str:
    return f"{value:.1f}%" if value < 99.95 else f"{value:.0f}%"


def whole(value: float) -> str:
    return f"{value:.0f}"


def short(value: float) -> str:
    """Bytes in powers of 1024: `34.1M`."""
    if value < 1000:
        return f"{value:.0f}"
    unit = "K"
    value /= 1024
    for larger in "MGTP":
        if value >= 1000:
            value, unit = value / 1024, larger
    return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"


def colour(text: str, part: float) -> str:
    if part < NEAR:
        return text
    return f"{screen.RED if part >= FULL else screen.YELLOW}{text}{screen.PLAIN}"


def live(sampler: usage.Sampler, wanted: Sequence[str], interval: float, order: str, recorder: Recorder | None) -> int:
    """Until `q` or a signal. Returns the exit code."""
    colours = "NO_COLOR" not in os.environ
    found: list[Usage] = sampler.sample(wanted)
    try:
        with screen.Screen() as terminal:
            due = time.monotonic() + min(interval, 0.5)
            while True:
                draw(terminal, usage.ordered(found, order), order, colours)
                key = terminal.wait(max(0.0, due - time.monotonic()))
                if key == "q":
                    return 0
                order = KEYS.get(key, order)
                if key == " " or time.monotonic() >= due:
                    found = sampler.sample(wanted)
                    if recorder:
                        recorder.add(time.time(), found)
                    due = time.monotonic() + interval
    except screen.EndedError as ended:
        return 0 if ended.number == signal.SIGINT else 128 + ended.number


def draw(terminal: screen.Screen, found: Sequence[Usage], order: str, colours: bool) -> None:
    width, height = terminal.size()
    title = f"ctrmgr top  {time.strftime('%H:%M:%S')}  {len(found)} running, by {order}"
    keys = "  q quit, sort by " + " ".join(f"{letter} {name}" for letter, name in KEYS.items())
    made = lines(found, width, colours)
    if colours:
        made[0] = f"{screen.REVERSE}{made[0].ljust(width)[:width]}{screen.PLAIN}"
    body = made[: height - 1]
    if len(made) > len(body) and body:
        body[-1] = f"… {len(made) - len(body) + 1} more lines"[:width]
    terminal.show([(title + keys)[:width], *body])


COMMANDS = (
    Command(
        "top",
        "what instances use, and what they may",
        run_top,
        arguments=(Argument("INSTANCE", "only these", required=False, repeat=True, complete="instance"),),
        options=(
            Option("once", "one sample, then end"),
            Option("interval", "between samples (1)", metavar="SECONDS", short="i"),
            Option("sort", "by name, or most first", metavar="WHAT", choices=tuple(usage.ORDERS), short="s"),
            Option("record", "append each sample to a file, for `plot`", metavar="FILE"),
        ),
        help="On a terminal it is redrawn in place until `q`; elsewhere, and with `--format json`, `yaml` or `csv`, one document (or "
        "the rows of one sample) follows the other. Per cents are of one CPU; sizes are in powers of 1024. What the host cannot "
        "tell is empty (`null`).",
    ),
)
