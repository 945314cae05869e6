"""Jobs on real machines, as the server knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from fedkeel.methods.job import Fresh
from fedkeel.server.stateful import Stateful
from fedkeel.server.trips import Times
from fedkeel.wire.orders import Order
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.message import Message


@dataclass
class Job:
    """A job that is out."""

    order: Order
    dispatched: float
    until: float
    """When it is lost."""
    why: str
    """What it is lost as."""
    pack: Callable[[], bytes]
    """Makes the message that waits for an answer; it is made when it is sent, as it may be large."""
    upload_bytes: int
    void: float
    """When its message is void."""
    message: str | None = None
    """Its name, once it was sent."""
    failures: int = 0
    error: str = ""
    """Its last failure."""
    not_before: float = 0.0
    """When its message may be sent."""
    absent_until: float = inf
    """When it is lost, if it must be sent and its node, which is away, does not come back."""
    busy: float = 0.0
    """Seconds that the node was at work on it, as it said."""
    fresh: Fresh[int] | None = None
    asked: float | None = None
    merged: float | None = None
    resumed: float | None = None

    def trip(self, now: float) -> Times:
        """What is known of its times: the way there is taken to be as long as the way back."""
        way = max(0.0, now - self.dispatched - self.busy) / 2
        return Times(self.dispatched, self.dispatched + way, now - way, now, self.asked, self.merged, self.resumed)


class Jobs(Stateful):
    """Which jobs are out, how long jobs take, and who gets none for now because it failed."""

    saved = ("longest",)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.out: dict[int, Job] = {}
        """By client."""
        self.strays: dict[str, tuple[Job, float]] = {}
        """By message: jobs that the server gave up, whose nodes may still be at work, and until when."""
        self.longest: dict[int, float] = {}
        """By client: seconds of its longest job."""
        self._misses: dict[int, int] = {}
        """By client: how many of its jobs in a row failed or were refused."""
        self.problems: dict[int, str] = {}
        """By client whose last job brought nothing: why."""
        self._aside: dict[int, float] = {}
        """By client that failed: until when it gets no job."""

    def limit(self, client: int) -> float:
        """Seconds that the next job of a client may take."""
        return self._limits.of(self.longest.get(client))

    def by_message(self, name: str) -> Job | None:
        """The job whose message waits for an answer."""
        return next((job for job in self.out.values() if job.message == name), None)

    def done(self, client: int, now: float) -> Job:
        """The job of a client was answered."""
        job = self.out.pop(client)
        self._took(client, now - job.dispatched)
        return job

    def _took(self, client: int, seconds: float) -> None:
        self.longest[client] = max(seconds, self.longest.get(client, 0.0))

    def lose(self, client: int, now: float, slow: bool) -> Job:
        """The job of a client is given up; one that may only be slow gets more time for its next job."""
        job = self.out.pop(client)
        if slow:
            self._took(client, now - job.dispatched)
        if job.message is not None:
            self.strays[job.message] = job, job.void
        return job

    def forget_strays(self, now: float) -> None:
        """Those whose messages are void."""
        self.strays = {name: stray for name, stray in self.strays.items() if now <= stray[1]}

    def taken_in(self, client: int) -> None:
        """The server has taken in what a client sent."""
        self._misses.pop(client, None)
        self.problems.pop(client, None)

    def put_aside(self, client: int, now: float, why: str) -> None:
        """The client failed: others come first for a while.

        Pauses end at common moments: those who fail together come back together, and share a round.
        """
        self.problems[client] = why
        self._misses[client] = self._misses.get(client, 0) + 1
        pause = self._limits.pause(self._misses[client])
        self._aside[client] = pause * ceil(now / pause + 1)

    def engaged(self, now: float, strays: bool) -> frozenset[int]:
        """Who cannot be given a job: at work, or put aside; `strays` counts those that may still do an old job."""
        straying = {job.order.client for job, _ in self.strays.values()} if strays else set()
        aside = {client for client, until in self._aside.items() if now < until}
        return frozenset(self.out.keys() | straying | aside)


def seconds(message: Message) -> float:
    """How long a node was at work on a message, as it says."""
    told = message.facts.get("seconds", 0.0)
    return float(told) if isinstance(told, int | float) and 0 <= told < 1e9 else 0.0


def claims(message: Message) -> tuple[int, int] | None:
    """The job and the version of the model that an upload says it belongs to."""
    job, version = (message.facts.get(name) for name in ("job", "version"))
    return (job, version) if type(job) is int and type(version) is int else None
