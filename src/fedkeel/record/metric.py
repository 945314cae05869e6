"""The main metric of an evaluation: its name, its value, and how a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any, NamedTuple

from fedkeel.record.measured import known
from fedkeel.record.rows import Evaluation
from fedkeel.record.runs import RunRecord


class Metric(NamedTuple):
    """The main metric of one evaluation."""

    name: str
    value: float
    higher_is_better: bool


def main_metric(row: Evaluation) -> Metric:
    """The main metric of an evaluation; of a function of the user's, more is taken to be better."""
    name = next(iter(row.metrics))
    return Metric(name, row.first, known(name).better == "higher")


def main_column(run: RunRecord) -> tuple[str, list[float]]:
    """The main metric of a run: its name, and its value in every evaluation."""
    name = run.metrics[0].name
    return name, run.column(name)


def final_metric(summary: Mapping[str, Any]) -> tuple[str, float, float]:
    """The main metric of a finished run: its name, its final value, and its best one."""
    name = next(key.removeprefix("final_") for key in summary if key.startswith("final_") and key != "final_loss")
    final, best = (nan if (value := summary[f"{which}_{name}"]) is None else value for which in ("final", "best"))
    return name, final, best


def is_share(name: str) -> bool:
    """Whether a metric is written in percent."""
    return known(name).share


def is_error(name: str) -> bool:
    """Whether a metric is an error without an upper bound, such as rmse."""
    return known(name).error


def spelled(name: str) -> str:
    """A metric's name as it is written in a sentence."""
    return known(name).words


def told(name: str, value: float) -> str:
    """A value as a person reads it: `93.21%` for a share, `2.104` or `51941` for others."""
    return known(name).told(value)
