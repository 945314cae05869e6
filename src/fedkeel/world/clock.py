"""The virtual clock: one queue of events for every method."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from fedkeel.errors import FedkeelError
from fedkeel.server.stateful import Stateful

E = TypeVar("E")


class EventQueue(Stateful, Generic[E]):
    """Events in order of (time, rank, order of scheduling), so that a run is a function of its seed.

    The rank decides what comes first at one instant; time never runs backwards.
    """

    saved = ("now", "heap", "scheduled")

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[tuple[float, tuple[int, ...], int, E]] = []
        self.scheduled = 0
        """How many events were scheduled."""

    def schedule(self, time: float, rank: tuple[int, ...], what: E) -> None:
        """Let `what` happen at `time`, not before now."""
        if not time >= self.now:
            raise FedkeelError(f"an event cannot be scheduled before the present, {self.now} s; got {time} s")
        heapq.heappush(self.heap, (time, rank, self.scheduled, what))
        self.scheduled += 1

    def until(self, time: float) -> Iterator[E]:
        """Take events up to `time`; handling one may schedule more.

        If a later event is left, the clock shows `time` at the end.
        """
        while self.heap:
            if self.heap[0][0] > time:
                self.now = time
                return
            self.now, _, _, what = heapq.heappop(self.heap)
            yield what
