"""The main metric of an evaluation: its name, its value, and how a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any, NamedTuple

from fedkeel.record.rows import Evaluation
from fedkeel.record.runs import RunRecord

SHARES = {
    "accuracy", "balanced_accuracy", "top_5", "top_5_accuracy", "top5_accuracy", "precision", "recall", "f1",
    "auroc", "auprc",
}  # fmt: skip
"""Metrics from 0 to 1 that are written in percent."""
LOWER = {"loss", "log_loss", "calibration_error", "mae", "mse", "rmse"}
"""Metrics of which less is better."""


class Metric(NamedTuple):
    """The main metric of one evaluation."""

    name: str
    value: float
    higher_is_better: bool


def main_metric(row: Evaluation | Mapping[str, Any]) -> Metric:
    """The main metric of an evaluation, or of a row of `history.jsonl`."""
    if isinstance(row, Evaluation):
        name = next(iter(row.metrics))
        return Metric(name, row.first, name not in LOWER)
    name = "accuracy"
    return Metric(name, row.get(name, nan), name not in LOWER)


def main_column(run: RunRecord) -> tuple[str, list[float]]:
    """The main metric of a run that was tested at least once: its name, and its value in every evaluation."""
    name = main_metric(run.history[0]).name
    return name, run.column(name)


def final_metric(summary: Mapping[str, Any]) -> tuple[str, float, float]:
    """The main metric of a finished run: its name, its final value, and its best one."""
    name = next(key.removeprefix("final_") for key in summary if key.startswith("final_") and key != "final_loss")
    final, best = (nan if (value := summary[f"{which}_{name}"]) is None else value for which in ("final", "best"))
    return name, final, best


def is_share(name: str) -> bool:
    """Whether a metric is written in percent."""
    return name in SHARES


def spelled(name: str) -> str:
    """A metric's name as it is written in a sentence."""
    return name.replace("_", " ")


def told(name: str, value: float) -> str:
    """A value as a person reads it: `93.21%` for a share, `2.104` for others."""
    return f"{value:.2%}" if is_share(name) else f"{value:.4g}"
