"""Learning curves over several seeds: one line, and the range of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import InputError, unknown
from fedkeel.study.places import scale
from fedkeel.study.plan import At
from fedkeel.study.results import Outcome, State

Numbers = NDArray[np.float64]
Line = tuple[Numbers, Numbers]
"""Places, which rise, and values."""
SCALES: tuple[At, ...] = get_args(At)
ORDER: tuple[State, ...] = ("finished", "going on", "stopped", "pruned", "failed")
"""Runs of the first of these states that occurs are drawn."""


@dataclass(frozen=True)
class Curve:
    """A value over a scale. All arrays have the same length, which is zero where no stretch is common to all seeds."""

    x: Numbers
    mean: Numbers
    low: Numbers
    """The lowest value of the seeds, not a bound of an interval."""
    high: Numbers
    """The highest value of the seeds."""
    count: int
    """The number of seeds that have such values."""


def mean_curve(outcomes: Sequence[Outcome], x: str, y: str, points: int = 200) -> Curve:
    """The mean of a column of the history over a scale (`time`, `rounds`, `uploads` or `bytes`).

    It is the mean of the seeds' own lines, which join their evaluations. It is drawn where all seeds have begun and
    none has ended: at every evaluation of any of them, or, if there are more than `points`, at that many equally spaced
    places.

    It is drawn from the finished runs; while none is finished, from those that are going on; and from failed ones only
    where there are no others. So a run that has just begun, or that broke off, does not cut the curve short.
    """
    if x not in SCALES:
        raise unknown("x", x, SCALES)
    if points < 2:
        raise InputError(f"points must be at least 2; got {points}")
    found = {
        state: [line for each in outcomes if each.state == state and (line := _line(each, x, y))] for state in ORDER
    }
    return averaged(next(filter(None, found.values()), []), points)


def averaged(lines: Sequence[Line], points: int = 200) -> Curve:
    """The mean of lines (places, values), the lowest and the highest of them, where all have begun and none has ended.

    A curve has at most so many points.
    """
    places = _places([line[0] for line in lines], points)
    values = np.stack([np.interp(places, *line) for line in lines]) if lines else np.empty((1, 0))
    return Curve(places, values.mean(0), values.min(0), values.max(0), len(lines))


def _line(outcome: Outcome, x: At, y: str) -> Line | None:
    """A run's own curve."""
    record = outcome.record
    if record is None:
        return None
    with record.told_if_damaged("history.jsonl"):
        places = np.array([scale(row, x) for row in record.history], float)
        return line(places, np.array(record.column(y), float))


def line(places: Numbers, values: Numbers) -> Line | None:
    """A curve without evaluations that have no value; None if none has one. Of several at a place, the last counts."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return None
    known = known[np.append(np.diff(places[known]) > 0, True)]
    return places[known], values[known]


def _places(lines: Sequence[Numbers], points: int) -> Numbers:
    if not lines:
        return np.empty(0)
    first, last = max(line[0] for line in lines), min(line[-1] for line in lines)
    union = np.unique(np.concatenate(lines))
    union = union[(union >= first) & (union <= last)]
    return union if len(union) <= points else np.linspace(first, last, points)
