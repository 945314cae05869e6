"""Whose turn it is when, and when a server has waited in vain for too long."""

from __future__ import annotations

from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from fedkeel.config.experiment import Experiment
from fedkeel.errors import FedkeelError
from fedkeel.runtime.flights import BEGINS, Begin, Flights
from fedkeel.runtime.sampling import Draw, draw
from fedkeel.runtime.stateful import Stateful

STARVED = 1000
"""Rounds in a row that came to nothing, or dispatches to nobody, after which a run is given up; without rounds, so many
jobs, or ten times as many as there are clients."""


class Turns(Stateful):
    """Dispatches, as the pace has them."""

    saved = ("wave", "_in_vain", "_awaited")

    def __init__(self, experiment: Experiment, sizes: NDArray[np.int64], flights: Flights) -> None:
        """`sizes` [N] are all clients' samples."""
        self._experiment, self._sizes, self._flights = experiment, sizes, flights
        self.pace = experiment.pace
        self.in_rounds = self.pace in ("barrier", "stream")
        self.wave = 0
        """Dispatches so far."""
        self._in_vain = 0
        self._awaited: list[float] = []
        """When dispatches are planned because a device comes on."""

    def schedule(self, time: float) -> None:
        """Let there be a dispatch."""
        self._flights.queue.schedule(time, (BEGINS,), Begin())

    def due(self) -> int:
        """How many devices are to be given a job now."""
        experiment, busy = self._experiment, len(self._flights)
        wanted = experiment.participants
        if self.in_rounds:
            return wanted + ceil(wanted * experiment.schedule.over_select - 1e-9)
        if self.pace == "periodic":
            return max(0, min(wanted, experiment.busy_limit - busy))
        return max(0, experiment.concurrency - busy)

    def draw(self, count: int) -> Draw:
        """So many of those that are free, or fewer (`sampling.draw`)."""
        self.wave += 1
        clients, draws = draw(self._experiment, self._sizes, self.wave, count, self._flights.free())
        if not len(clients) and not len(self._flights):
            self._starve(STARVED)
        return clients, draws

    def plan(self, launched: int, count: int) -> None:
        """When to dispatch again, after so many were, of so many that were due."""
        nobody = not launched and not len(self._flights)
        now, later = self._flights.now, self._next_on() if launched < count else inf
        if nobody and later == inf:
            raise FedkeelError(
                f"the server starves: all devices that have data had left for good by {now:g} virtual seconds "
                "(faults.leave)"
            )
        if self.pace == "periodic":
            seconds = self._experiment.schedule.trigger_seconds
            # Until somebody comes on, or somebody's job ends, triggers would come to nothing.
            until = later if nobody else now if count else self._flights.queue.heap[0][0]
            self.schedule(now + seconds * max(1, ceil((until - now) / seconds - 1e-9)))
        elif (nobody or self.pace == "concurrency") and now < later < inf and later not in self._awaited:
            self._awaited = [*(time for time in self._awaited if time > now), later]
            self.schedule(later)

    def _next_on(self) -> float:
        """When the next device that could be given a job comes on or back; now, if one is on; infinite if all work."""
        idle = np.flatnonzero((self._sizes > 0) & self._flights.idle)
        on = self._flights.fleet.next_on(self._flights.now, idle) if len(idle) else inf
        return min([on, *(flight.arrives for flight in self._flights.adrift.values())])

    def worked(self) -> None:
        """Something came of a job."""
        self._in_vain = 0

    def lost_job(self) -> None:
        """A job came to nothing; in rounds, it matters only whether all do."""
        if not self.in_rounds:
            self._starve(max(STARVED, 10 * len(self._sizes)))

    def empty_round(self) -> None:
        """A round came to nothing."""
        if self.in_rounds:
            self._starve(STARVED)

    def _starve(self, limit: int) -> None:
        self._in_vain += 1
        if self._in_vain > limit:
            what = "rounds" if self.in_rounds else "jobs"
            raise FedkeelError(
                f"the server starves: {limit} {what} in a row came to nothing, or nobody was there, until "
                f"{self._flights.now:g} virtual seconds; devices fail, are off, or miss the deadline (fleet.dropout, "
                "fleet.availability, schedule.deadline_seconds), or the gate refuses what they send (refused.jsonl)"
            )
