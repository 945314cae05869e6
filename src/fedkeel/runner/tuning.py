"""What a run is tuned by: the best model so far, a target, and early stopping.

All of it looks at the validation set where there is one, and else at the test set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.errors import counted
from fedkeel.record.rows import Evaluation
from fedkeel.server.stateful import Stateful

Weights = tuple[Tensor, Tensor]
"""Weights [D] and buffers [B]."""


class Tuning(Stateful):
    """Watches the evaluations of a run."""

    saved = ("best", "mark", "stale", "why")

    def __init__(self, experiment: Experiment) -> None:
        self.aim = experiment.aim
        self._stops = experiment.stop_at_target
        self._early = experiment.early_stopping
        self.best: dict[str, Any] | None = None
        """The best evaluation: its round, its value and, where there is a global model, that model (`w`, `buffers`)."""
        self.mark: float | None = None
        """The value that early stopping counts from: the last that was better than the mark before by `min_delta`."""
        self.stale = 0
        """Evaluations since then."""
        self.why: str | None = None
        """Why the run ended before its last round, if it did."""

    def seen(self, row: Evaluation, model: Callable[[], Weights | None]) -> bool:
        """Take note of an evaluation; whether the run should end with it."""
        value = row.tuned(self.aim.metric)
        if self.best is None or self.aim.gain(value, self.best["value"]) > 0:
            now = model()
            kept = {} if now is None else {"w": now[0].clone(), "buffers": now[1].clone()}
            self.best = {"round": row.round, "value": value, **kept}
        if self.mark is None or self.aim.gain(value, self.mark) > self._early.min_delta:
            self.mark, self.stale = value, 0
        else:
            self.stale += 1
        if self._stops and self.aim.reached(value):
            self.why = "the target is reached"
        elif self._early.patience is not None and self.stale >= self._early.patience:
            self.why = f"{self.aim.metric} has not become better in {counted(self.stale, 'evaluation')}"
        return self.why is not None

    def first_to_reach(self, history: Sequence[Evaluation]) -> Evaluation | None:
        """The evaluation by which the target was reached."""
        return next((row for row in history if self.aim.reached(row.tuned(self.aim.metric))), None)
