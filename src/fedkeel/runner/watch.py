"""Seeing to it that a run stops in time: when somebody asks for it, or when its time is over."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic

from fedkeel.errors import StoppedError, TimeLimitError
from fedkeel.runner.stopping import GRACE, Stop

NOTHING = "nothing was recorded, as there is no run folder"
_TICK = 0.1
_AGAIN = 5.0
"""Seconds until it is tried again to interrupt a round: Python ignores what is raised in a destructor."""


class GivenUpError(KeyboardInterrupt):
    """What was going on is given up; no handler of ordinary errors catches this."""


class Watch(AbstractContextManager["Watch"]):
    """Whether a run is to stop, and an interruption of what takes too long then.

    The interruption is an exception in the thread that works. It is raised between two steps of Python, so a call of a
    native kernel or of PyTorch ends first.
    """

    def __init__(self, stop: Stop | None, limit: float | None) -> None:
        """The real seconds of `limit` begin now."""
        self.stop = stop or Stop()
        self._needed = stop is not None or limit is not None
        self._deadline = None if limit is None else monotonic() + limit - GRACE
        self._limit = limit
        self._lock = threading.Lock()
        self._worker: int | None = None
        """The thread that may be interrupted now."""
        self._closed = threading.Event()

    @property
    def due(self) -> bool:
        """Whether the run is to stop."""
        return self.stop.asked or (self._deadline is not None and monotonic() >= self._deadline)

    def stopped(self, when: str, advice: str = NOTHING) -> StoppedError:
        """The error that says so, and how to go on."""
        if self.stop.asked:
            return StoppedError(f"stopped {when}; {advice}")
        return TimeLimitError(f"stopped {when}, as limit_wall_seconds={self._limit:g} is used up; {advice}")

    @contextmanager
    def impatiently(self) -> Iterator[None]:
        """What goes on inside is interrupted by a `GivenUpError` if the run is to stop and this takes too long."""
        me = threading.get_ident()
        with self._lock:
            self._worker = me
        try:
            yield
        finally:
            with self._lock:
                self._worker = None
                _raise_in(me, None)

    def __enter__(self) -> Watch:
        if self._needed:
            threading.Thread(target=self._look, name="fedkeel-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Interrupt nothing any more."""
        self._worker = None
        self._closed.set()

    def _look(self) -> None:
        while not self.due:
            if self._closed.wait(_TICK):
                return
        pause = GRACE
        while not self._closed.wait(pause):
            with self._lock:
                if self._worker is not None:
                    _raise_in(self._worker, GivenUpError)
                pause = _TICK if self._worker is None else _AGAIN


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread as soon as it gets to Python code, or with None withdraw one that was not yet."""
    what = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
