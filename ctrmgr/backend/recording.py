# SPDX-License-Identifier: GPL-3.0-or-later
"""Samples of `usage` in a file, and back. Cold.

The file is text and only ever grows. Its first line is JSON and says the schema; whoever goes on with a file writes the line
again. A sample is written in one piece:

    @1763715292.897             seconds since 1970
    c1<TAB>12.5<TAB>50<TAB>…    the values of an instance, in the schema's order
    c1<TAB>:0000:03:00.0<TAB>…  those of one of its GPUs
    .                           the end: a sample without one was cut off by a crash, and is left out

An empty value is not known, `=` is what it was in the sample before, and trailing `=` are left out.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from array import array

from ctrmgr import state
from ctrmgr.backend import usage
from ctrmgr.errors import ConflictError, HostError, NotFoundError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ctrmgr.backend.usage import Usage

FORMAT, VERSION = "ctrmgr-use", 1
SAME = "="


def schema() -> bytes:
    said = {
        "format": FORMAT,
        "version": VERSION,
        "fields": usage.FIELDS,
        "gpu-fields": usage.GPU_FIELDS,
        "units": usage.METRICS,
    }
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


class Recorder:
    """Appends to a file, which is made if it is not there. Raises SpecError for a file that is none of ours, ConflictError when
    somebody else writes to it, HostError."""

    __slots__ = ("_before", "fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._before: dict[tuple[str, str], list[str]] = {}
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise state.unwritable(path, error) from error
        try:
            self._begin()
        except BaseException:
            os.close(self.fd)
            raise

    def _begin(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(self.fd).st_size
            head = os.pread(self.fd, 4096, 0)
            last = os.pread(self.fd, 1, size - 1) if size else b""
        except BlockingIOError:
            raise ConflictError(f"`{self.path}` is being recorded to already", hint="name another file") from None
        except OSError as error:
            raise state.unwritable(self.path, error) from error
        if b"\n" not in head and schema().startswith(head):
            os.ftruncate(self.fd, 0)  # nothing, or a first line that was cut off
            last = b""
        elif not _is_schema(head.partition(b"\n")[0]):
            raise SpecError(f"`{self.path}` is no recording of ctrmgr's", hint="name a new file")
        self._append((b"" if last in (b"\n", b"") else b"\n") + schema())

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError as error:
            raise state.unwritable(self.path, error) from error

    def add(self, when: float, found: Sequence[Usage]) -> None:
        """One sample."""
        rows = [f"@{when:.3f}"]
        after: dict[tuple[str, str], list[str]] = {}
        for each in found:
            rows.append(self._row((each.name, ""), [each.values[key] for key in usage.FIELDS], after))
            for gpu, given in each.gpus.items():
                rows.append(self._row((each.name, gpu), [given[key] for key in usage.GPU_FIELDS], after))
        self._before = after
        self._append(("\n".join(rows) + "\n.\n").encode())

    def _row(
        self, key: tuple[str, str], values: Sequence[float | None], after: dict[tuple[str, str], list[str]]
    ) -> str:
        words = ["" if value is None else _number(value) for value in values]
        after[key] = words
        before = self._before.get(key, [])
        short = [SAME if word == old else word for word, old in zip(words, before, strict=True)] if before else words[:]
        while short and short[-1] == SAME:
            short.pop()
        return "\t".join([key[0], *([f":{key[1]}"] if key[1] else []), *short])

    def close(self) -> None:
        os.close(self.fd)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}".removesuffix(".0")


def _is_schema(line: bytes) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("format") == FORMAT


class Series:
    """One metric of one instance, or of one of its GPUs, over time. Where nothing is known there is a NaN."""

    __slots__ = ("gpu", "instance", "limits", "metric", "times", "values")

    def __init__(self, instance: str, gpu: str, metric: str) -> None:
        self.instance, self.gpu, self.metric = instance, gpu, metric
        self.times, self.values, self.limits = array("d"), array("d"), array("d")

    def add(self, when: float, value: float, limit: float = math.nan) -> None:
        self.times.append(when)
        self.values.append(value)
        self.limits.append(limit)


class Recording:
    """What `read` has found. `damaged` is how many samples could not be understood; those that were cut off count."""

    __slots__ = ("damaged", "end", "samples", "series", "start", "units")

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.start, self.end = math.inf, -math.inf
        self.samples = self.damaged = 0
        self.units: dict[str, str] = {}


def read(path: str, *, instances: Collection[str] = (), metrics: Collection[str] = ()) -> Recording:
    """Read a recording, or of it only these instances and metrics. Raises NotFoundError, SpecError for any other file, HostError."""
    reader = _Reader(path, instances, metrics)
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file):
                reader.line(number, line)
    except FileNotFoundError:
        raise NotFoundError(f"no file `{path}`", hint="`ctrmgr top --record FILE` makes one") from None
    except OSError as error:
        raise state.unreadable(path, error) from error
    reader.cut_off()
    reader.found.series = list(reader.by_key.values())
    return reader.found


class _Reader:
    def __init__(self, path: str, instances: Collection[str], metrics: Collection[str]) -> None:
        self.path, self.instances, self.metrics = path, instances, metrics
        self.found = Recording()
        self.by_key: dict[tuple[str, str, str], Series] = {}
        self.fields: list[str] = []
        self.gpu_fields: list[str] = []
        self.before: dict[tuple[str, str], list[str]] = {}
        self.block: list[str] | None = None
        self.gap = False

    def line(self, number: int, line: str) -> None:
        line = line.rstrip("\n")
        if number == 0 or line.startswith("{"):
            self._schema(number, line)
        elif line.startswith("@"):
            self.cut_off()
            self.block = [line]
        elif line == "." and self.block:
            self._sample(self.block)
            self.block = None
        elif self.block is not None:
            self.block.append(line)

    def cut_off(self) -> None:
        self.found.damaged += self.block is not None
        self.block = None

    def _schema(self, number: int, line: str) -> None:
        self.cut_off()
        if not _is_schema(line.encode(errors="replace")):
            if number:
                return
            raise SpecError(f"`{self.path}` is no recording of ctrmgr's", hint="`ctrmgr top --record FILE` makes one")
        said = json.loads(line)
        fields, gpu_fields, units = said.get("fields"), said.get("gpu-fields"), said.get("units")
        known = all(
            isinstance(names, list) and all(isinstance(name, str) for name in names) for names in (fields, gpu_fields)
        )
        if said.get("version") != VERSION or not known or not isinstance(units, dict):
            raise HostError(f"`{self.path}`: line {number + 1} has a schema that this version does not know")
        self.fields, self.gpu_fields = fields, gpu_fields
        self.found.units.update({str(name): str(unit) for name, unit in units.items()})
        self.before = {}
        self.gap = number > 0

    def _sample(self, block: list[str]) -> None:
        try:
            when = float(block[0][1:])
            rows = [self._row(row) for row in block[1:]]
            if not 0 < when < 1e11:
                raise ValueError(when)
        except ValueError:
            self.found.damaged += 1
            return
        self.before = {key: words for key, words, _ in rows}
        self.found.samples += 1
        self.found.start, self.found.end = min(self.found.start, when), max(self.found.end, when)
        here = set()
        for (instance, gpu), _, values in rows:
            if self.instances and instance not in self.instances:
                continue
            for metric, value in values.items():
                if metric.endswith("-limit") or (self.metrics and metric not in self.metrics):
                    continue
                key = (instance, gpu, metric)
                here.add(key)
                series = self.by_key.get(key) or self.by_key.setdefault(key, Series(*key))
                if self.gap and series.times:
                    series.add(when, math.nan)
                series.add(when, value, values.get(f"{metric}-limit", math.nan))
        self.gap = False
        for key, series in self.by_key.items():
            if key not in here and not math.isnan(series.values[-1]):
                series.add(when, math.nan)

    def _row(self, row: str) -> tuple[tuple[str, str], list[str], dict[str, float]]:
        name, *words = row.split("\t")
        gpu = words.pop(0)[1:] if words and words[0].startswith(":") else ""
        fields = self.gpu_fields if gpu else self.fields
        before = self.before.get((name, gpu))
        words += [SAME] * (len(fields) - len(words))
        if len(words) != len(fields) or not name or (before is None and SAME in words):
            raise ValueError(row)
        if before is not None:
            words = [old if word == SAME else word for word, old in zip(words, before, strict=True)]
        values = {field: float(word) if word else math.nan for field, word in zip(fields, words, strict=True)}
        if any(math.isinf(value) for value in values.values()):
            raise ValueError(row)
        return (name, gpu), words, values
