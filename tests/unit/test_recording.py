# SPDX-License-Identifier: GPL-3.0-or-later
"""Recordings of `top`: what is written is read, whatever cut it off; and the pictures made from them."""

from __future__ import annotations

import json
import math
import os
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrmgr import chart
from ctrmgr.backend import recording, usage
from ctrmgr.cli import plot
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError

SVG = "{http://www.w3.org/2000/svg}"
START = 1763715292.0


def use(name: str, **values: float | None) -> usage.Usage:
    made = usage.Usage(name)
    made.values.update({key.replace("_", "-"): value for key, value in values.items()})
    return made


def write(path: Path, samples: list[list[usage.Usage]]) -> None:
    recorder = recording.Recorder(str(path))
    for index, found in enumerate(samples):
        recorder.add(START + index, found)
    recorder.close()


def series(path: Path, instance: str, metric: str, gpu: str = "") -> list[float | None]:
    for each in recording.read(str(path)).series:
        if (each.instance, each.metric, each.gpu) == (instance, metric, gpu):
            return [None if math.isnan(value) else value for value in each.values]
    raise AssertionError(f"no {metric} of {instance}")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    busy = use("c1", cpu=12.5, cpu_limit=50.0, memory=1 << 20)
    busy.gpus["0000:03:00.0"] = {"gpu-use": 30.0, "gpu-memory": 5, "gpu-memory-limit": None}
    write(path, [[busy, use("c2", memory=7)], [busy], [use("c1", cpu=1.0), use("c2", memory=8)]])
    assert series(path, "c1", "cpu") == [12.5, 12.5, 1.0]
    assert series(path, "c1", "memory") == [1 << 20, 1 << 20, None]
    assert series(path, "c2", "memory") == [7, None, 8], "it did not run meanwhile"
    assert series(path, "c1", "gpu-use", "0000:03:00.0") == [30.0, 30.0, None]
    found = recording.read(str(path), instances=["c1"], metrics=["cpu"])
    assert [(each.instance, each.metric, list(each.limits)[:2]) for each in found.series] == [
        ("c1", "cpu", [50.0, 50.0])
    ]
    assert (found.samples, found.damaged, found.start, found.end) == (3, 0, START, START + 2)
    assert json.loads(path.read_text().partition("\n")[0])["units"]["memory"] == "B"


VALUE = st.one_of(st.none(), st.integers(0, 1 << 60), st.floats(0, 1e6).map(lambda value: round(value, 1)))
SAMPLE = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(VALUE, VALUE), max_size=3)


@settings(max_examples=60, deadline=None)
@given(samples=st.lists(SAMPLE, min_size=1, max_size=6), cut=st.integers(0, 10**6))
def test_wherever_it_is_cut_off_and_gone_on_with(tmp_path_factory: pytest.TempPathFactory, samples, cut) -> None:  # type: ignore[no-untyped-def]
    """What comes back are whole samples: those before the cut, and those that were added after it."""
    path = tmp_path_factory.mktemp("rec") / "use.rec"
    made = [[use(name, cpu=cpu, memory=memory) for name, (cpu, memory) in sample.items()] for sample in samples]
    write(path, made)
    data = path.read_bytes()
    left = data[: cut % (len(data) + 1)]
    path.write_bytes(left)
    whole = left.split(b"\n").count(b".")  # nothing is missing where only the last newline is
    if b"\n" in left:
        assert recording.read(str(path)).samples == whole
    last = [use("later", cpu=5.0)]
    recorder = recording.Recorder(str(path))
    recorder.add(START + 100, last)
    recorder.close()
    found = recording.read(str(path))
    assert found.samples == whole + 1
    assert series(path, "later", "cpu") == [5.0]
    for name in ("a", "b", "c"):
        kept = [each.values["memory"] for sample in made[:whole] for each in sample if each.name == name]
        if kept:
            known = [value for value in series(path, name, "memory") if value is not None]
            assert known == [float(value) for value in kept if value is not None]


def test_a_gap_between_two_recordings(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    write(path, [[use("c1", cpu=1.0)]] * 2)
    write(path, [[use("c1", cpu=2.0)]] * 2)
    assert series(path, "c1", "cpu") == [1.0, 1.0, None, 2.0, 2.0]


def test_one_writer_and_only_to_our_own_files(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    recorder = recording.Recorder(str(path))
    with pytest.raises(ConflictError, match="already"):
        recording.Recorder(str(path))
    recorder.close()
    (tmp_path / "letter").write_text("dear\nreader\n")
    with pytest.raises(SpecError, match="no recording"):
        recording.Recorder(str(tmp_path / "letter"))
    assert (tmp_path / "letter").read_text() == "dear\nreader\n"
    with pytest.raises(HostError):
        recording.Recorder(str(tmp_path / "no/such/folder"))
    with pytest.raises(NotFoundError, match="no file"):
        recording.read(str(tmp_path / "nothing"))


def test_damage_is_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    write(path, [[use("c1", cpu=1.0)], [use("c1", cpu=2.0)]])
    with path.open("a") as file:
        for block in ("@nan\nc1\t1\n.\n", "@1763715300\nc1\tx\n.\n", "@1763715301\nc1" + "\t1" * 99 + "\n.\n", "@1763715302\nc9\t=\n.\n",
                      "@1763715303\nc1\tinf\n.\n", "noise\n", "@1763715304\nc1\t3\n"):  # fmt: skip
            file.write(block)
    found = recording.read(str(path))
    assert (found.samples, found.damaged) == (2, 6)
    path.write_text(path.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(HostError, match="does not know"):
        recording.read(str(path))


# Pictures


def draw(path: Path) -> tuple[str, ElementTree.Element]:
    found = recording.read(str(path))
    text = chart.svg(plot.panels(found), found.start, found.end, "<use> & more")
    return text, ElementTree.fromstring(text)


def points(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]
        for line in picture.iter(f"{SVG}polyline")
    ]


def test_points_are_where_the_data_says(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    values = [0.0, 25.0, 100.0, 50.0, 75.0]
    write(path, [[use("c1", cpu=value, cpu_limit=80.0)] for value in values])
    text, picture = draw(path)
    (line,) = points(picture)
    assert [x for x, _ in line] == pytest.approx([chart.LEFT + index * 217.0 for index in range(5)], abs=0.1)
    bottom = line[0][1]
    assert [bottom - y for _, y in line] == pytest.approx([value / 100 * chart.HEIGHT for value in values], abs=0.1)
    limit = next(path for path in picture.iter(f"{SVG}path") if path.get("class") == "limit")
    height = bottom - float(re.match(r"M[\d.]+ ([\d.]+)", limit.attrib["d"])[1])  # type: ignore[index]
    assert height == pytest.approx(0.8 * chart.HEIGHT, abs=0.1)
    words = [each.text for each in picture.iter(f"{SVG}text")]
    assert {"<use> & more", "c1", "limit", "CPU (per cent of one)", "0%", "100%", "08:54:52"} <= set(words)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"


def test_no_peak_and_no_gap_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    rng = random.Random(7)
    values: list[float | None] = [round(rng.uniform(10, 20), 1) for _ in range(20000)]
    values[7777], values[12345], values[15000:15200] = 1000.0, 0.0, [None] * 200
    write(path, [[use("c1", processes=value)] for value in values])
    lines = points(draw(path)[1])
    drawn = [y for line in lines for _, y in line]
    assert len(lines) == 2 and len(drawn) < 4 * chart.WIDTH
    bottom = max(drawn)
    assert bottom - min(drawn) == pytest.approx(chart.HEIGHT, abs=0.1)
    peak = next(x for line in lines for x, y in line if y == min(drawn))
    assert peak == pytest.approx(chart.LEFT + 7777 / 19999 * 868, abs=1)
    assert lines[1][0][0] - lines[0][-1][0] == pytest.approx(201 / 19999 * 868, abs=1)


def test_many_instances_can_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    write(path, [[use(f"web{index}", processes=index, memory=index) for index in range(20)]] * 3)
    looks: dict[str, set[tuple[str, str]]] = {}
    for line in draw(path)[1].iter(f"{SVG}polyline"):
        name = line.find(f"{SVG}title").text  # type: ignore[union-attr]
        looks.setdefault(str(name), set()).add((line.attrib["stroke"], line.get("stroke-dasharray", "")))
    assert len(looks) == 20 and all(len(each) == 1 for each in looks.values()), "the same in both panels"
    assert len(set.union(*looks.values())) == 20


@pytest.mark.parametrize(("top", "unit", "last"), [(0, "B", "1 B"), (0, "%", "1%"), (97, "%", "100%"), (3, "", "3"),
                                                   (300 << 20, "B", "300 MiB"), (1500 << 20, "B/s", "1.5 GiB/s"), (0.03, "%", "0.03%")])  # fmt: skip
def test_axes_end_on_round_numbers_with_units(top: float, unit: str, last: str) -> None:
    marks = chart.ticks(top, unit)
    assert 2 <= len(marks) <= 7 and marks[0] == 0 and marks[-1] >= top
    assert chart.number(marks[-1], unit) == last


@pytest.mark.parametrize("span", [1, 9, 100, 3000, 40000, 10**6, 10**8])
def test_a_time_axis_can_be_read(span: int) -> None:
    marks = chart.moments(START, START + span)
    assert 1 <= len(marks) <= 10 and all(START <= when <= START + span for when, _ in marks)


def test_hostile_names(tmp_path: Path) -> None:
    path = tmp_path / "use.rec"
    write(path, [[use('x"><script>\x01', cpu=1.0)]] * 2)
    _, picture = draw(path)
    assert not list(picture.iter("script"))
    assert any(each.text == 'x"><script>?' for each in picture.iter(f"{SVG}text"))
    found = recording.read(str(path))
    page = chart.html(plot.panels(found), found.start, found.end, "t")
    assert "<script" not in page and page.count("<tr><td>") == 1
    assert os.path.getsize(path) < 1000
