"""Jobs that are dispatched together, in columns; those that will arrive stay together until they do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from fedkeel.server.events import Uploads
from fedkeel.server.trips import Trips
from fedkeel.wire.many import Column, Orders, picked
from fedkeel.wire.orders import Same
from fedkeel.world.flights import ARRIVES, Flight

Numbers = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(eq=False)
class Departure:
    """Jobs that leave at one moment, in columns [m] by the names of `Flight`'s fields."""

    orders: Orders
    dispatched: float
    began: Times
    epoch_seconds: Times
    finished: Times
    upload_seconds: Times
    fails: Times
    why: Column[str]
    upload_bytes: Numbers
    fault: Column[str]
    pause: Times
    before: Column[int]
    an_epoch: Times

    @cached_property
    def arrives(self) -> Times:
        """`Flight.arrives`"""
        return self.finished + self.upload_seconds

    @property
    def alone(self) -> NDArray[np.bool_]:
        """[m], whether something may happen to a job before it arrives: a loss, a request or a fault."""
        alone = (self.fails < self.arrives) | (self.orders.slot > 0)
        return alone if isinstance(self.fault, Same) else alone | np.array([bool(fault) for fault in self.fault])

    def pick(self, rows: Numbers) -> Departure:
        """Some of them, in this order."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        some = {name: picked(column, rows) for name, column in columns.items() if name not in ("orders", "dispatched")}
        return Departure(orders=self.orders.pick(rows), dispatched=self.dispatched, **some)

    def flights(self) -> list[Flight]:
        """One by one."""
        columns = (getattr(self, each.name) for each in fields(self)[2:])
        told = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
        return [*map(Flight, self.orders, repeat(self.dispatched), *told)]

    @cached_property
    def uploads(self) -> Uploads:
        """What is sent if they arrive."""
        count = len(self.orders)
        times = self.began.tolist(), self.finished.tolist(), self.arrives.tolist()
        trips = Trips([self.dispatched] * count, *times, [None] * count, [None] * count, [None] * count)
        return Uploads(self.orders, trips, self.upload_bytes.tolist())


class Together:
    """Jobs that cause no event until they arrive, one after the other; at the same time, in the order of clients."""

    def __init__(self, jobs: Departure) -> None:
        """Clients are in ascending order."""
        self.jobs = jobs
        self._order = np.argsort(jobs.arrives, kind="stable")
        self._times: list[float] = jobs.arrives[self._order].tolist()
        self._clients: list[int] = jobs.orders.client[self._order].tolist()
        self._next = 0
        """How many have arrived."""

    def __len__(self) -> int:
        return len(self._times) - self._next

    @property
    def next(self) -> tuple[float, int, int]:
        """(When the next one arrives, its client, its job)."""
        place = self._next
        return self._times[place], self._clients[place], self.jobs.orders.job.item(self._order.item(place))

    def take(self, most: int, limit: float, before: Sequence[object] | None) -> tuple[float, Numbers]:
        """(When the last one arrives, the rows): the next one and those after it, up to `most` in all.

        They arrive no later than `limit`, and earlier than the event `before`, which is first in the queue.
        """
        start, end = self._next, min(self._next + most, len(self._times))
        end = bisect_right(self._times, limit, start, end)
        if before is not None:
            end = bisect_left(range(len(self._times)), (before[0], before[1]), start, end, key=self._place)
        self._next = end = max(start + 1, end)
        return self._times[end - 1], self._order[start:end]

    def rest(self) -> list[Flight]:
        """Those that have not arrived, one by one, the next one first."""
        return self.jobs.pick(self._order[self._next :]).flights()

    def _place(self, place: int) -> tuple[object, object]:
        """The place in the queue of events."""
        return self._times[place], (ARRIVES, self._clients[place])
