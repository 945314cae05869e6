"""Tells a display how far a download is, whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Report = Callable[[str, int, int | None], None]
"""Receives what is being done, how many bytes are done, and how many there are (None where nobody knows)."""

_REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reported_to(report: Report) -> Iterator[None]:
    """Whatever is downloaded inside the block is reported to this function."""
    before = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(before)


def tell(what: str, done: int, total: int | None) -> None:
    """Reports to whoever listens, if anybody does."""
    report = _REPORT.get()
    if report is not None:
        report(what, done, total)
