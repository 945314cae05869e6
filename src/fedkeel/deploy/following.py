"""The evaluations of a run as they come, while other things go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from fedkeel.errors import FedkeelError
from fedkeel.record.follow import follow
from fedkeel.record.places import begun
from fedkeel.record.rows import Arrival, Evaluation
from fedkeel.record.runs import RunRecord

_LAST = 5.0
"""Seconds that the last rows have to be shown when all else is over."""

Show = Callable[[Evaluation, int], None]
"""Is given an evaluation, and how many sites have trained since the one before."""


@contextmanager
def following(out: Path, show: Show) -> Iterator[None]:
    """Call `show` with every new evaluation of the run in a folder, from a thread, also if the run begins later."""
    stop = Event()
    thread = Thread(target=_show, args=(out, show, stop, _known(out)), daemon=True)
    thread.start()
    try:
        yield
        thread.join(_LAST)
    finally:
        stop.set()
        thread.join(_LAST)


def _known(out: Path) -> int:
    """The last round whose evaluation is there already."""
    with suppress(FedkeelError, OSError, ValueError, KeyError):  # what is wrong with a run is told elsewhere
        return max((int(row["round"]) for row in RunRecord.begun(out).history), default=0) if begun(out) else 0
    return 0


def _show(out: Path, show: Show, stop: Event, known: int) -> None:
    trained = set[int]()
    with suppress(FedkeelError, OSError, TimeoutError, ValueError):  # what is wrong with a run is told elsewhere
        for row in follow(out, ["history", "clients"], timeout=1e6, poll_seconds=0.3, stop=stop):
            if isinstance(row, Arrival):
                trained.add(row.client)
            elif isinstance(row, Evaluation):
                if row.round > known:
                    show(row, len(trained))
                trained.clear()
