# SPDX-License-Identifier: GPL-3.0-or-later
"""`ctrmgr plot`: a recording of `ctrmgr top` as a picture."""

from __future__ import annotations

import math
import sys

from ctrmgr import chart, state
from ctrmgr.backend import recording, usage
from ctrmgr.cli.command import Argument, Command, Option
from ctrmgr.errors import NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctrmgr.backend.recording import Recording
    from ctrmgr.cli.command import Args

TITLES = {
    "cpu": "CPU (per cent of one)",
    "memory": "memory",
    "swap": "swap",
    "processes": "processes",
    "io-read": "read from disks",
    "io-write": "written to disks",
    "network-in": "network, in",
    "network-out": "network, out",
    "gpu-use": "GPU, busiest engine",
    "gpu-memory": "GPU memory",
}


def run_plot(args: Args) -> None:
    path, output = args.positional[0], args.one("output")
    form = output.rpartition(".")[2] if output else "svg"
    if form not in ("svg", "html"):
        raise SpecError(f"`--output`: `{output}` ends neither in .svg nor in .html")
    if not output and sys.stdout.isatty():
        raise SpecError("a picture is no use on a terminal", hint=f"`ctrmgr plot {path} --output use.svg`")
    wanted = args.all("metric")
    found = recording.read(path, instances=args.all("instance"), metrics=wanted)
    if found.damaged:
        print(f"ctrmgr: `{path}`: {found.damaged} of its samples are cut off or damaged: left out", file=sys.stderr)
    made = panels(found)
    if not made:
        hint = f"it has {found.samples} samples; `--instance` and `--metric` must name what is in it"
        raise NotFoundError(f"`{path}` has nothing to show", hint=hint)
    draw = chart.html if form == "html" else chart.svg
    picture = draw(made, found.start, found.end, "use by instance")
    if output:
        state.write_file(output, picture.encode(), 0o644)
    else:
        print(picture, end="")


def panels(found: Recording) -> list[chart.Panel]:
    """One for each metric of which anything is known. Things keep their colours through all of them."""
    names: dict[tuple[str, str], int] = {}
    for series in sorted(found.series, key=lambda series: (bool(series.gpu), series.instance, series.gpu)):
        if any(not math.isnan(value) for value in series.values):
            names.setdefault((series.instance, series.gpu), len(names))
    made = []
    for metric, unit in usage.METRICS.items():
        lines = [
            chart.Line(f"{series.instance} {series.gpu}".strip(), number, series.times, series.values, series.limits)
            for (instance, gpu), number in names.items()
            for series in found.series
            if (series.instance, series.gpu, series.metric) == (instance, gpu, metric)
            and any(not math.isnan(value) for value in series.values)
        ]
        if lines:
            made.append(chart.Panel(TITLES[metric], found.units.get(metric, unit), lines))
    return made


COMMANDS = (
    Command(
        "plot",
        "a recording of `top` as a picture",
        run_plot,
        arguments=(Argument("FILE", "what `ctrmgr top --record` has written", complete="file"),),
        options=(
            Option("output", "a name that ends in .svg or .html (else SVG on stdout)", metavar="FILE", short="o"),
            Option("instance", "only this one", metavar="NAME", repeat=True),
            Option("metric", "only this one", metavar="WHAT", repeat=True, choices=tuple(usage.METRICS)),
        ),
        help="One panel for each metric, limits as thin broken lines. Of long recordings the least and the most of every stretch are "
        "drawn: no peak is lost.",
    ),
)
