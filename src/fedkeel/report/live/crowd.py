"""How many connections there are."""

from __future__ import annotations

from threading import Lock

MOST = 32
"""Connections that are served; as many more are told that there are too many, and others are closed."""


class Crowd:
    """Counts those that come and go, in whatever thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.count = 0

    def enter(self) -> bool:
        """Whether there is room for one more, if only to be told that it is refused."""
        with self._lock:
            room = self.count < 2 * MOST
            self.count += room
        return room

    def leave(self) -> None:
        """For each that entered."""
        with self._lock:
            self.count -= 1

    @property
    def too_many(self) -> bool:
        """Whether there are more than are served."""
        return self.count > MOST
