"""Learning curves for the page: the mean over seeds with its range, and the line of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import numbers, thinned
from fedkeel.study.curves import SCALES, mean_curve
from fedkeel.study.places import scale
from fedkeel.study.results import Outcome

LOSSES = {"loss": "loss", "train_loss": "train_loss"}
MOST_POINTS = 200
"""Of a curve."""
FEWEST_POINTS = 40
"""Of a curve, where there are many."""
ALL_POINTS, ALL_SEED_POINTS = 2_400, 12_000
"""Of all mean curves of a column over one scale, and of all lines of seeds."""


def curves(cells: Sequence[Cell], metric: str) -> list[dict[str, Any]]:
    """Of every cell that has been tested: by scale and column the places, the mean, the lowest and the highest.

    The column of the metric is called `value`, whatever the metric is.
    """
    points = _points(ALL_POINTS, len(cells))
    found = []
    for cell in cells:
        axes = {at: _columns(cell.outcomes, at, points, metric) for at in SCALES}
        if any(axes.values()):
            found.append({**cell.key, "axes": axes})
    return found


def _columns(outcomes: Sequence[Outcome], at: str, points: int, metric: str) -> dict[str, Any]:
    told = {}
    for column, name in {"value": metric, **LOSSES}.items():
        curve = mean_curve(outcomes, at, name, points)
        if len(curve.x):
            told[column] = {"x": numbers(curve.x), "mean": numbers(curve.mean), "seeds": curve.count}
            if curve.count > 1:
                told[column] |= {"low": numbers(curve.low), "high": numbers(curve.high)}
    return told


def seeds(cells: Sequence[Cell], metric: str) -> list[dict[str, Any]]:
    """The line of every run, where a cell has more than one."""
    several = [cell for cell in cells if sum(bool(each.history) for each in cell.outcomes) > 1]
    points = _points(ALL_SEED_POINTS, sum(len(cell.outcomes) for cell in several))
    return [
        {**cell.key, "seed": each.seed, **_line(each, points, metric)}
        for cell in several
        for each in cell.outcomes
        if each.history
    ]


def _line(outcome: Outcome, points: int, metric: str) -> dict[str, Any]:
    assert outcome.record is not None
    names = {"value": metric, **LOSSES}
    columns = {column: thinned(outcome.record.column(name), points) for column, name in names.items()}
    with outcome.record.told_if_damaged("history.jsonl"):
        along = {at: [scale(row, at) for row in thinned(outcome.history, points)] for at in SCALES}
    return {"x": {at: numbers(each) for at, each in along.items()}, **{k: numbers(v) for k, v in columns.items()}}


def _points(all_: int, curves: int) -> int:
    return max(FEWEST_POINTS, min(MOST_POINTS, all_ // max(1, curves)))
