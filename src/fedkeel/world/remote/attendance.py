"""When clients on real machines were there."""

from __future__ import annotations

from collections.abc import Callable

from fedkeel.server.stateful import Stateful


class Attendance(Stateful):
    """Remembers when clients came and left."""

    saved = ("times",)

    def __init__(self) -> None:
        self.times: dict[int, list[float]] = {}
        """By client: the seconds of the run at which it came and left, in turn."""
        self.changed: Callable[[], None] = lambda: None
        """Called when somebody came or left."""

    def see(self, present: frozenset[int], now: float) -> None:
        """These are there now, and no others."""
        before = {client for client, times in self.times.items() if len(times) % 2}
        for client in sorted(present ^ before):
            self.times.setdefault(client, []).append(now)
        if present != before:
            self.changed()
