# SPDX-License-Identifier: GPL-3.0-or-later
"""A bar on stderr for long work, when stderr is a terminal; silence otherwise."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID


class Bar:
    """`with Bar(quiet) as bar: work(progress=bar.update)`."""

    def __init__(self, quiet: bool = False) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            words = TextColumn("{task.description}")
            console = Console(stderr=True)
            self._progress = Progress(
                SpinnerColumn(),
                words,
                BarColumn(),
                DownloadColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Bar:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def update(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `what`; a total of 0 is unknown."""
        if not self._progress:
            return
        if self._task is None or what != self._what:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task, self._what = self._progress.add_task(what, total=total or None), what
        self._progress.update(self._task, completed=done, total=total or None)
