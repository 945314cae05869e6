"""When jobs did what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol


class Trip(Protocol):
    """When a job did what, in the world's seconds."""

    dispatched: float
    began: float
    """When the model was there and training began."""
    finished: float
    """When training ended and the upload began."""
    asked: float | None
    """When it asked for a fresh model."""
    merged: float | None
    """When it went on with that."""
    resumed: float | None
    """When it went on without, as there was none newer."""

    @property
    def arrives(self) -> float:
        """When the upload is there."""
        ...


@dataclass(slots=True)
class Times:
    """A trip that is over."""

    dispatched: float
    began: float
    finished: float
    arrives: float
    asked: float | None
    merged: float | None
    resumed: float | None = None


@dataclass(slots=True)
class Trips:
    """The trips of many jobs, in columns [m] of plain numbers."""

    dispatched: list[float]
    began: list[float]
    finished: list[float]
    arrives: list[float]
    asked: list[float | None]
    merged: list[float | None]
    resumed: list[float | None]

    @classmethod
    def of(cls, trips: Sequence[Trip]) -> Trips:
        """One by one, put together."""
        return cls(
            [trip.dispatched for trip in trips],
            [trip.began for trip in trips],
            [trip.finished for trip in trips],
            [trip.arrives for trip in trips],
            [trip.asked for trip in trips],
            [trip.merged for trip in trips],
            [trip.resumed for trip in trips],
        )

    def __add__(self, others: Trips) -> Trips:
        return Trips(*(getattr(self, name) + getattr(others, name) for name in _TIMES))

    def pick(self, rows: Sequence[int]) -> Trips:
        """Some of them, in this order."""
        return Trips(*([column[row] for row in rows] for column in map(self.__getattribute__, _TIMES)))

    def __getitem__(self, row: int) -> Times:
        return Times(*(getattr(self, name)[row] for name in _TIMES))


_TIMES = tuple(each.name for each in fields(Trips))
