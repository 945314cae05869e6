"""When a server dispatches clients, and when it takes in what comes back: four paces."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from fedkeel.server.events import WakeMe, When

MOST_TOGETHER = 512
"""The most jobs that a world may train together ahead of time, because all their results are in memory."""


@dataclass(frozen=True)
class Pace:
    """What all paces have in common; a world wakes the server when a dispatch is due."""

    wanted: int
    """Uploads of a round; without rounds, as many as are counted as one."""

    in_rounds: ClassVar[bool]
    """Whether the next dispatch waits for the end of a round."""
    at_once: ClassVar[bool] = True
    """Whether an update is taken in when it arrives."""

    def due(self, busy: int) -> int:
        """How many clients get a job now, while `busy` clients are at work."""
        raise NotImplementedError

    def ahead(self, arrived: int) -> int:
        """How many more uploads will be taken in after the next one, as far as is known; the run may end earlier."""
        return MOST_TOGETHER

    def patience(self, arrived: int) -> int:
        """How many uploads may come before the server acts on them, when `arrived` of a round are there."""
        return 1

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When to dispatch again, after `launched` of the `due` jobs were sent; `busy` clients are at work now."""
        raise NotImplementedError

    def after_job(self) -> list[WakeMe]:
        """The same after the end of a job."""
        return []


@dataclass(frozen=True)
class Barrier(Pace):
    """Rounds: `wanted` clients and perhaps a few more start when the round before is over; their updates are
    aggregated together."""

    over_select: float = 0.0
    """Share of clients beyond those wanted."""

    in_rounds = True
    at_once = False

    def due(self, busy: int) -> int:
        """Nobody before the round is over."""
        return 0 if busy else self.wanted + ceil(self.wanted * self.over_select - 1e-9)

    def ahead(self, arrived: int) -> int:
        """0, because a round is taken in as a whole."""
        return 0

    def patience(self, arrived: int) -> int:
        """As many as are missing."""
        return 1 if self.at_once else max(1, self.wanted - arrived)

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When a device comes on, if none was."""
        return [] if busy else [WakeMe(When.DEVICE)]


class Stream(Barrier):
    """The same rounds, but every update is taken in when it arrives."""

    at_once = True

    def ahead(self, arrived: int) -> int:
        """No more than the round waits for."""
        return self.wanted - arrived - 1


@dataclass(frozen=True)
class Periodic(Pace):
    """`wanted` clients every `seconds`, fewer when `busy_limit` are at work; updates are taken in as they arrive."""

    seconds: float
    busy_limit: int

    in_rounds = False

    def due(self, busy: int) -> int:
        """Nobody while too many are at work."""
        return max(0, min(self.wanted, self.busy_limit - busy))

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """At the next tick; where that would send no job, at the first tick after a device comes on or a job ends."""
        return [WakeMe(When.DEVICE if not busy else When.NOW if due else When.CHANGE, self.seconds)]


@dataclass(frozen=True)
class Concurrency(Pace):
    """`busy_limit` clients are always at work; updates are taken in as they arrive."""

    busy_limit: int

    in_rounds = False

    def due(self, busy: int) -> int:
        """As many as are missing."""
        return max(0, self.busy_limit - busy)

    def after_dispatch(self, launched: int, due: int, busy: int) -> list[WakeMe]:
        """When a device comes on, if there were too few."""
        return [WakeMe(When.DEVICE)] if launched < due else []

    def after_job(self) -> list[WakeMe]:
        """Another client takes the place."""
        return [WakeMe(When.NOW)]
