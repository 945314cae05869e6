"""Ending a run in good order when somebody asks for it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

GRACE = 2.0
"""Seconds that a round has to end when the run is to stop; then it is given up."""


class Stop:
    """A wish that a run may end: after the round that is going on, or in the middle of it if that takes long."""

    def __init__(self) -> None:
        self.asked = False
        self.heard = False
        """Whether somebody will see to it: a run whose rounds have begun."""
        self.code = 130
        """The exit code that says why."""

    @contextmanager
    def on_signals(self, tell: Callable[[str], None]) -> Iterator[Stop]:
        """Ctrl-C, SIGTERM and a closed terminal are such a wish; a second one, or an early one, ends the run at once.

        Signals that this process was told to ignore (nohup) stay ignored.
        """

        def handle(number: int, _: FrameType | None) -> None:
            self.code = 128 + number
            if self.asked or not self.heard:
                raise KeyboardInterrupt
            self.asked = True
            with suppress(OSError, ValueError):  # nobody listens any more
                tell(f"stopping: a round that is not over in {GRACE:g} s is given up; once more to stop at once")

        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class PartStop(Stop):
    """A wish that a part of something may end; that the whole may end is such a wish, too."""

    def __init__(self, whole: Stop) -> None:
        self._whole, self._own = whole, False
        super().__init__()

    @property
    def asked(self) -> bool:
        """By somebody, of the part or of the whole."""
        return self._own or self._whole.asked

    @asked.setter
    def asked(self, wish: bool) -> None:
        self._own = wish
