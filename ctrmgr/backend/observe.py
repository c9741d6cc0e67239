# SPDX-License-Identifier: GPL-3.0-or-later
"""What instances use and what happens to them, for programs: typed, and without printing. Cold."""

from __future__ import annotations

import time

from ctrmgr.backend import events, usage
from ctrmgr.errors import ConflictError, SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import TracebackType

    from ctrmgr.backend.events import Event


class GpuUse:
    """What an instance uses of one GPU: per cent of its busiest engine, bytes of its memory. None is not known."""

    __slots__ = ("memory", "memory_limit", "use")

    def __init__(self, use: float | None, memory: float | None, memory_limit: float | None) -> None:
        self.use, self.memory, self.memory_limit = use, memory, memory_limit


class Use:
    """What an instance used at the moment `when` (seconds since 1970). None is not known, or not limited.

    `cpu` is per cent of one CPU since the sample before; `io_…` and `network_…` are bytes a second; memory and swap are bytes.
    `gpus` has a `GpuUse` for each GPU, by its address or name.
    """

    __slots__ = ("cpu", "cpu_limit", "gpus", "io_read", "io_write", "memory", "memory_limit", "name", "network_in",
                 "network_out", "processes", "processes_limit", "swap", "swap_limit", "when")  # fmt: skip

    def __init__(self, name: str, when: float) -> None:
        self.name, self.when = name, when
        self.cpu: float | None = None
        self.cpu_limit: float | None = None
        self.memory: float | None = None
        self.memory_limit: float | None = None
        self.swap: float | None = None
        self.swap_limit: float | None = None
        self.processes: float | None = None
        self.processes_limit: float | None = None
        self.io_read: float | None = None
        self.io_write: float | None = None
        self.network_in: float | None = None
        self.network_out: float | None = None
        self.gpus: dict[str, GpuUse] = {}

    def __repr__(self) -> str:
        return f"<Use of {self.name!r}: cpu={self.cpu} memory={self.memory} processes={self.processes}>"


def _typed(found: usage.Usage, when: float) -> Use:
    use = Use(found.name, when)
    for key in usage.FIELDS:
        setattr(use, key.replace("-", "_"), usage.plain(found.values[key]))
    for gpu, values in found.gpus.items():
        use.gpus[gpu] = GpuUse(*(usage.plain(values[key]) for key in usage.GPU_FIELDS[:3]))
    return use


def samples(names: Sequence[str], interval: float) -> Iterator[list[Use]]:
    """Without an end: what all running instances, or those named that run, used in each `interval` seconds, by name.

    Raises SpecError for an interval of less than 0.01 s, NotFoundError for a name that there is not.
    """
    if not 0.01 <= interval <= 86400:
        raise SpecError(f"`{interval}` is no interval: 0.01 to 86400 seconds")
    sampler = usage.Sampler()
    sampler.sample(names)
    return _sampled(sampler, names, interval)


def _sampled(sampler: usage.Sampler, names: Sequence[str], interval: float) -> Iterator[list[Use]]:
    due = time.monotonic()
    while True:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        found = sampler.sample(names)
        now = time.time()
        yield [_typed(each, now) for each in found]


def one(name: str, seconds: float) -> Use:
    """What a running instance uses in the next `seconds`. Raises NotFoundError, SpecError, ConflictError when it is not running."""
    found = next(samples([name], seconds))
    if not found:
        raise ConflictError(f"`{name}` is not running", hint=f"`ctrmgr start {name}`")
    return found[0]


class Events:
    """What happens from its making on. Iterate over it, or ask `wait`; `close` it, or use it as a context manager."""

    def __init__(self, names: Collection[str], types: Collection[str]) -> None:
        for kind in types:
            if kind not in events.TYPES:
                raise SpecError(f"`{kind}` is no type of events", hint=f"there are {', '.join(events.TYPES)}")
        self._watcher: events.Watcher | None = events.Watcher(names, types or events.TYPES)
        self._held: list[Event] = []

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Those that have happened, once there is one; none when there was none for `timeout` seconds."""
        if self._watcher is None:
            raise ConflictError("these events were closed")
        found, self._held = self._held, []
        return found or self._watcher.wait(timeout=timeout) or []

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._watcher is None:
            raise StopIteration
        self._held = self.wait()
        return self._held.pop(0)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
