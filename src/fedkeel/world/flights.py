"""The jobs on their way: who is at work since when, and what becomes of each when."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedkeel.server.events import NOT_NEEDED, TOO_LATE
from fedkeel.server.stateful import Stateful
from fedkeel.wire.orders import Order
from fedkeel.world.clock import EventQueue
from fedkeel.world.fleet.profile import Fleet

LEFT = "left for good"


@dataclass(slots=True, eq=False)
class Flight:
    """A job on its way: the order and what the clock knows of it; all times are virtual seconds."""

    order: Order
    dispatched: float
    began: float
    """The model is there, and training begins."""
    epoch_seconds: float
    finished: float
    """Training ends, and the upload begins."""
    upload_seconds: float
    fails: float
    """When the device is lost if the job is not over by then."""
    why: str
    """Why it would be lost."""
    upload_bytes: int
    fault: str = ""
    """What goes wrong on purpose (`FaultSettings`)."""
    pause: float = 0.0
    """Of `finished`: seconds that it hangs before its upload, and hears nothing."""
    before: int = 0
    """The device's job before this one, where that matters."""
    asked: float | None = None
    """When it asked for a fresh model and got one."""
    merged: float | None = None
    """When it went on with it."""
    revision: int = 0
    """How often its end was planned anew: what was planned before does not count."""

    @property
    def arrives(self) -> float:
        """When the upload is there, if nothing happens."""
        return self.finished + self.upload_seconds

    @property
    def lost(self) -> bool:
        """Whether it will not arrive."""
        return self.fails < self.arrives

    @property
    def asks(self) -> bool:
        """Whether it is still going to ask for a fresh model."""
        return self.order.slot > 0 and self.asked is None

    @property
    def slot_time(self) -> float:
        """When it asks for a fresh model."""
        return self.began + self.order.slot * self.epoch_seconds


@dataclass(frozen=True)
class Begin:
    """A round begins, or another dispatch is due."""


@dataclass(frozen=True)
class Planned:
    """What is next for a job, as things stood when it was planned."""

    client: int
    job: int
    revision: int


@dataclass(frozen=True)
class Request(Planned):
    """A device asks for a fresh model."""


@dataclass(frozen=True)
class End(Planned):
    """A job arrives, or its device is lost."""


@dataclass(frozen=True)
class Stray:
    """An upload comes that belongs to no job in flight: once more, or late."""

    client: int
    job: int
    version: int
    bytes_up: int


What = Begin | Request | End | Stray
ARRIVES, ASKS, BEGINS = range(3)
"""What comes first at one instant: arrivals by client, so that whoever asks then gets the newest model; then requests;
then dispatches, from the newest model too."""


class Flights(Stateful):
    """Everything in flight, and the clock it flies by."""

    saved = ("by_client", "adrift", "idle")
    parts = ("queue",)

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.queue: EventQueue[What] = EventQueue()
        self.by_client: dict[int, Flight] = {}
        self.adrift: dict[int, Flight] = {}
        """Jobs that were given up, but whose devices do not know it and will upload them."""
        self.idle = np.ones(len(fleet), dtype=np.bool_)
        """[N], who is neither at work nor gone."""

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.queue.now

    def free(self) -> NDArray[np.bool_]:
        """[N], whom a job can be given now."""
        on = self.fleet.available(self.now)
        return self.idle if on is None else self.idle & on

    def next_on(self, samples: NDArray[np.int64]) -> float:
        """When the next device that could be given a job comes on or back; now, if one is on; infinite if none will."""
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

    def plan(self, flight: Flight) -> None:
        """Its next step is known, as things stand; what was planned before does not count any more."""
        flight.revision += 1
        client, which = flight.order.client, (flight.order.client, flight.order.job, flight.revision)
        if flight.asks and flight.slot_time <= flight.fails:
            self.queue.schedule(flight.slot_time, (ASKS, client), Request(*which))
        else:
            self.queue.schedule(min(flight.arrives, flight.fails), (ARRIVES, client), End(*which))

    def find(self, planned: Planned) -> Flight | None:
        """The job that this was planned for, if it is still so."""
        flight = self.by_client.get(planned.client)
        current = flight is not None and (flight.order.job, flight.revision) == (planned.job, planned.revision)
        return flight if current else None

    def refresh(self, flight: Flight, seconds: float) -> None:
        """It has got a fresh model, which took so long to fetch."""
        flight.asked, flight.merged = self.now, self.now + seconds
        flight.finished += seconds

    def interrupt(self, flight: Flight) -> bool:
        """Ask for what the device has after the epoch it has just finished, or after its first one, or after a merge.

        False if that changes nothing.
        """
        told = self.now + float(self.fleet.download_seconds(np.array([flight.order.client]), 0)[0])
        waited = 0.0 if flight.merged is None or flight.asked is None else flight.merged - flight.asked
        # Told at an epoch's end, give or take a bit, it has finished that.
        done = int((told - flight.began - waited) / flight.epoch_seconds + 1e-9)
        least = 1 if flight.merged is None else flight.order.slot + 1
        epochs = min(max(least, done), flight.order.epochs)
        finished = max(told, flight.began + waited + epochs * flight.epoch_seconds)
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
        """Its upload will come then, though nobody waits for it."""
        order = flight.order
        stray = Stray(order.client, order.job, order.version, flight.upload_bytes)
        self.queue.schedule(time, (ARRIVES, order.client, order.job), stray)

    def come_back(self, stray: Stray) -> Flight | None:
        """The job whose device was adrift until now, if this is its upload: it is free again."""
        flight = self.adrift.get(stray.client)
        if flight is None or flight.order.job != stray.job:
            return None
        del self.adrift[stray.client]
        self.idle[stray.client] = True
        return flight
