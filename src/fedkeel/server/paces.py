"""Whom a server dispatches when, and when it takes in what comes back: four paces."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from fedkeel.server.events import WakeMe, When

MOST_TOGETHER = 512
"""Jobs that a world may train together beforehand: their results lie in memory side by side."""


@dataclass(frozen=True)
class Pace:
    """What all paces have in common; a world wakes the server when a dispatch is due."""

    wanted: int
    """Uploads of a round; without rounds, those that are called one."""

    in_rounds: ClassVar[bool]
    """Whether the next dispatch waits for the end of a round."""
    at_once: ClassVar[bool] = True
    """Whether an update is taken in when it arrives."""

    def due(self, busy: int) -> int:
        """How many clients are to be given a job now, while so many are at work."""
        raise NotImplementedError

    def ahead(self, arrived: int) -> int:
        """How many more uploads will be taken in behind the next one, as far as is known: wherever the run will end."""
        return MOST_TOGETHER

    def patience(self, arrived: int) -> int:
        """How many uploads may come before the server does something about them, when so many of a round are there."""
        return 1

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When to dispatch again, after so many were, of so many that were due; `busy` are at work now."""
        raise NotImplementedError

    def after_job(self) -> list[WakeMe]:
        """The same after the end of a job."""
        return []


@dataclass(frozen=True)
class Barrier(Pace):
    """Rounds: `wanted` clients and a few more, when the round before is over; all that came is aggregated together."""

    over_select: float = 0.0
    """Share of clients beyond those wanted."""

    in_rounds = True
    at_once = False

    def due(self, busy: int) -> int:
        """Nobody before the round is over."""
        return 0 if busy else self.wanted + ceil(self.wanted * self.over_select - 1e-9)

    def ahead(self, arrived: int) -> int:
        """None: a round is taken in as a whole."""
        return 0

    def patience(self, arrived: int) -> int:
        """As many as are missing."""
        return 1 if self.at_once else max(1, self.wanted - arrived)

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When somebody comes on, if nobody was."""
        return [] if busy else [WakeMe(When.DEVICE)]


class Stream(Barrier):
    """The same rounds, but every update is taken in when it arrives."""

    at_once = True

    def ahead(self, arrived: int) -> int:
        """No more than the round waits for."""
        return self.wanted - arrived - 1


@dataclass(frozen=True)
class Periodic(Pace):
    """`wanted` clients every so many seconds, fewer when `busy_limit` are at work; updates are taken in at once."""

    seconds: float
    busy_limit: int

    in_rounds = False

    def due(self, busy: int) -> int:
        """Nobody while too many are at work."""
        return max(0, min(self.wanted, self.busy_limit - busy))

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """At the next tick, unless it would come to nothing: until somebody comes on, or somebody's job ends."""
        return [WakeMe(When.DEVICE if not busy else When.NOW if due else When.CHANGE, self.seconds)]


@dataclass(frozen=True)
class Concurrency(Pace):
    """`busy_limit` clients at work, always; updates are taken in at once."""

    busy_limit: int

    in_rounds = False

    def due(self, busy: int) -> int:
        """As many as are missing."""
        return max(0, self.busy_limit - busy)

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When somebody comes on, if there were too few."""
        return [WakeMe(When.DEVICE)] if launched < due else []

    def after_job(self) -> list[WakeMe]:
        """Somebody else takes the place."""
        return [WakeMe(When.NOW)]
