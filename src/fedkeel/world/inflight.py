"""The jobs on their way: which devices are at work, and when each job ends and how."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkeel.server.events import NOT_NEEDED, TOO_LATE, ArrivedTogether
from fedkeel.server.stateful import Stateful
from fedkeel.world.clock import EventQueue
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.flights import ARRIVES, ASKS, LEFT, End, Flight, Planned, Request, Stray, What
from fedkeel.world.together import Departure, Together


class Flights(Stateful):
    """Everything in flight, and its clock.

    Each job is an object of its own, except for jobs that only have to arrive at a server that waits for many.
    """

    saved = ("by_client", "adrift", "idle")
    parts = ("queue",)

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.queue: EventQueue[What] = EventQueue()
        self.by_client: dict[int, Flight] = {}
        """Jobs that are objects of their own."""
        self.together: Together | None = None
        """The other jobs, which are of one dispatch; between two rounds there are none."""
        self.adrift: dict[int, Flight] = {}
        """Jobs that were given up, but whose devices do not know it and will upload them."""
        self.idle = np.ones(len(fleet), dtype=np.bool_)
        """[N], which devices are neither at work nor gone."""

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.queue.now

    def free(self) -> NDArray[np.bool_]:
        """[N], which devices can be given a job now."""
        on = self.fleet.available(self.now)
        return self.idle if on is None else self.idle & on

    def next_on(self, samples: NDArray[np.int64]) -> float:
        """When the next device comes on or back that could get a job: now if one is on, infinite if none will."""
        idle = np.flatnonzero((samples > 0) & self.idle)
        on = self.fleet.next_on(self.now, idle) if len(idle) else np.inf
        return min([on, *(flight.arrives for flight in self.adrift.values())])

    def launch(self, flight: Flight) -> None:
        """A job is on its way."""
        client = flight.order.client
        assert self.idle[client], f"device {client} is at work already"
        self.by_client[client] = flight
        self.idle[client] = False
        self.plan(flight)

    def launch_together(self, jobs: Departure) -> None:
        """Jobs that are sure to arrive are on their way."""
        clients = jobs.orders.client
        assert self.together is None, "others are on their way together"
        assert self.idle[clients].all(), "a device is at work already"
        self.idle[clients] = False
        self.together = Together(jobs)
        self._plan_next(self.together)

    def _plan_next(self, jobs: Together) -> None:
        time, client, job = jobs.next
        self.queue.schedule(time, (ARRIVES, client), End(client, job, 1))

    def plan(self, flight: Flight) -> None:
        """Plan its next step, as far as it is known now; earlier plans do not count any more."""
        flight.revision += 1
        client, which = flight.order.client, (flight.order.client, flight.order.job, flight.revision)
        if flight.asks and flight.slot_time <= flight.fails:
            self.queue.schedule(flight.slot_time, (ASKS, client), Request(*which))
        else:
            self.queue.schedule(min(flight.arrives, flight.fails), (ARRIVES, client), End(*which))

    def find(self, planned: Planned) -> Flight | None:
        """The job that this was planned for, if the plan still holds."""
        flight = self.by_client.get(planned.client)
        current = flight is not None and (flight.order.job, flight.revision) == (planned.job, planned.revision)
        return flight if current else None

    def begins_landing(self, planned: Planned) -> bool:
        """Whether this was planned for the next of the jobs that are together."""
        return self.together is not None and self.together.next[2] == planned.job

    def land_together(self, most: int, limit: float) -> ArrivedTogether:
        """The next jobs arrive, as many as do so before `limit` and before anything else happens; the clock moves."""
        together, heap = self.together, self.queue.heap
        assert together is not None
        self.queue.now, rows = together.take(most, limit, heap[0] if heap else None)
        uploads = together.jobs.uploads
        self.idle[uploads.orders.client[rows]] = True
        if len(together):
            self._plan_next(together)
        else:
            self.together = None
        return ArrivedTogether(self.now, uploads, rows)

    def separate(self) -> None:
        """Jobs that are together continue one by one, as if they had never been together."""
        jobs, self.together = self.together, None
        for place, flight in enumerate(jobs.rest() if jobs is not None else ()):
            self.by_client[flight.order.client] = flight
            if place:
                self.plan(flight)
            else:  # its end is in the queue
                flight.revision = 1

    def go_on(self, flight: Flight, seconds: float) -> None:
        """It has its answer, which took so long to come: the fresh model in its order, or that there is none."""
        flight.asked, went_on = self.now, self.now + seconds
        if flight.order.fresh is None:
            flight.resumed = went_on
        else:
            flight.merged = went_on
        flight.finished += seconds

    def interrupt(self, flight: Flight) -> bool:
        """Ask a device for the model after its last finished epoch, but at least after its first, or after a merge.

        Returns False if that changes nothing.
        """
        told = self.now + float(self.fleet.download_seconds(np.array([flight.order.client]), 0)[0])
        done = flight.done_in(told - flight.began - flight.waited)
        least = 1 if flight.merged is None else flight.order.slot + 1
        epochs = min(max(least, done), flight.order.epochs)
        finished = max(told, flight.began + flight.waited + flight.seconds_of(epochs))
        if flight.pause or finished >= flight.finished:
            return False
        slot = flight.order.slot if flight.order.slot < epochs else 0
        flight.order = replace(flight.order, epochs=epochs, lr=flight.order.lr[:epochs], slot=slot)
        flight.finished = finished
        self.plan(flight)
        return True

    def land(self, flight: Flight, free: bool = True) -> None:
        """It is over: the device is free, unless it hangs or is gone."""
        del self.by_client[flight.order.client]
        self.idle[flight.order.client] = free

    def lose(self, flight: Flight, why: str) -> None:
        """It is over without a result."""
        hangs = why in (TOO_LATE, NOT_NEEDED) and flight.pause > 0 and flight.finished - flight.pause <= self.now
        self.land(flight, free=why != LEFT and not hangs)
        if hangs:
            self.adrift[flight.order.client] = flight
            self.stray(flight, flight.arrives)

    def stray(self, flight: Flight, time: float) -> None:
        """Its upload will come at `time`, though the server does not wait for it."""
        order = flight.order
        stray = Stray(order.client, order.job, order.version, flight.upload_bytes)
        self.queue.schedule(time, (ARRIVES, order.client, order.job), stray)

    def come_back(self, stray: Stray) -> Flight | None:
        """The job whose device was adrift until now, if this is its upload; the device is free again."""
        flight = self.adrift.get(stray.client)
        if flight is None or flight.order.job != stray.job:
            return None
        del self.adrift[stray.client]
        self.idle[stray.client] = True
        return flight
