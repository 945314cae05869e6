"""Shows downloads while they go on, beside the output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedkeel.data.sources.progress import reported_to

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def shown_downloads(bars: bool = True) -> Iterator[None]:
    """A bar per file on a terminal, one line per file elsewhere; nothing at all if nothing is downloaded.

    Without `bars` there are only lines, for commands that have a bar of their own.
    """
    if not bars or not sys.stderr.isatty():
        with reported_to(_Lines()):
            yield
        return
    shown = _Bars()
    try:
        with reported_to(shown):
            yield
    finally:
        shown.stop()


class _Bars:
    """One bar per file, from its first report on."""

    def __init__(self) -> None:
        self._display: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self._display is None:
            self._display = _display()
            self._display.start()
        if what not in self._tasks:
            self._tasks[what] = self._display.add_task(what, total=total)
        self._display.update(self._tasks[what], completed=done)

    def stop(self) -> None:
        """Leaves the last state on the screen."""
        if self._display is not None:
            self._display.stop()


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


class _Lines:
    """Says once what is being done."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what in self._said:
            return
        self._said.add(what)
        size = "" if total is None else f", {total / 1e6:,.1f} MB"
        with suppress(OSError, ValueError):  # nobody listens any more
            print(f"fedkeel: {what}{size}", file=sys.stderr, flush=True)
