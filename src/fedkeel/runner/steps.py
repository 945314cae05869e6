"""The steps before the first round and after the last one, told to whoever shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("fedkeel steps", default=None)


def announce(step: str) -> None:
    """Tell the listener, if there is one, what begins now: `loading the data`."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(step)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call the listener with every step of the runs inside."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
