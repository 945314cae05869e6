"""A run that is compared, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

from fedkeel.record.measured import ACCURACY, LOSS, Measured
from fedkeel.record.runs import RunRecord
from fedkeel.study.plan import Measure

FEW = 3
"""The fewest evaluations by which a run with more of them is judged."""
State = Literal["finished", "failed", "pruned", "going on", "stopped", "not begun"]
"""A run that was stopped or killed is `stopped` until it is continued; a search prunes trials."""
LEFT: tuple[State, ...] = ("going on", "stopped", "not begun")
"""The states of runs that have not ended yet."""


@dataclass(frozen=True)
class Listed:
    """A run that is compared, and where it is."""

    name: str
    scene: str
    variant: str
    seed: int
    folder: Path
    failure: str | None = None
    """Why it failed, if it did."""
    pruned: bool = False
    """Whether it failed because a search stopped it early."""


@dataclass(frozen=True)
class Outcome(Listed):
    """The result of a run."""

    state: State = "not begun"
    record: RunRecord | None = None
    """Its experiment and history; None before it has begun."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The summary of a finished run."""
    kept: int = 0
    """The number of evaluations up to where runs are compared."""
    measure: Measure = field(default_factory=Measure)
    metric: Measured = ACCURACY
    """What it is compared by."""

    @property
    def broken(self) -> bool:
        """Whether it failed or was stopped early by a search."""
        return self.state in ("failed", "pruned")

    @property
    def early(self) -> bool:
        """Whether it is judged by its first few evaluations, although there are more."""
        return self.state == "finished" and 0 < self.kept < min(FEW, len(self.history))

    @property
    def history(self) -> list[dict[str, Any]]:
        """All evaluations."""
        return self.record.history if self.record else []

    @cached_property
    def value(self) -> float | None:
        """The metric on the test set: the mean of the last evaluations up to where runs are compared."""
        return self._mean(self.metric.name)

    @cached_property
    def validation(self) -> float | None:
        """The same on the validation set; none where there is no such set."""
        return self._mean(self.metric.name, "validation") if self.record and self.record.validated else None

    @cached_property
    def loss(self) -> float | None:
        """On the test set, likewise."""
        return self._mean(LOSS.name)

    def _mean(self, name: str, part: str | None = None) -> float | None:
        """Over the evaluations in which it is defined."""
        if self.record is None or not self.kept:
            return None
        values = self.record.column(name, part)[max(0, self.kept - self.measure.last) : self.kept]
        defined = [value for value in values if not isnan(value)]
        return sum(defined) / len(defined) if defined else None

    @property
    def best(self) -> float | None:
        """The value on the test set in the best evaluation up to there: on the validation set where there is one."""
        if self.record is None:
            return None
        tuned = self.record.tuned(self.metric.name)[: self.kept]
        best = self.metric.best(tuned)
        value = nan if best is None else self.record.column(self.metric.name)[tuned.index(best)]
        return None if isnan(value) else value

    @property
    def last(self) -> float | None:
        """The value of the last evaluation of the whole run."""
        values = self.record.column(self.metric.name)[-1:] if self.record else []
        return next((value for value in values if not isnan(value)), None)

    @property
    def position(self) -> dict[str, Any]:
        """The last evaluation up to there; empty where there is none."""
        return self.history[self.kept - 1] if self.kept else {}

    @cached_property
    def _reached(self) -> dict[str, Any] | None:
        aim = self.metric.aim(self.measure.target)
        if aim.target is None or self.record is None:
            return None
        reached = map(aim.reached, self.record.tuned(self.metric.name))
        return next((row for row, is_there in zip(self.history, reached, strict=True) if is_there), None)

    @property
    def rounds_to_target(self) -> int | None:
        """Until the first evaluation of the whole run at the target, on the validation set where there is one."""
        return self._reached["round"] if self._reached else None

    @property
    def seconds_to_target(self) -> float | None:
        """Virtual seconds until the target."""
        return self._reached["virtual_seconds"] if self._reached else None

    @property
    def uploads_to_target(self) -> int | None:
        """Uploads that passed the gate until the target."""
        return self._reached["updates"] if self._reached else None

    @property
    def bytes_to_target(self) -> int | None:
        """Bytes up and down until the target."""
        return self._reached["bytes_up"] + self._reached["bytes_down"] if self._reached else None

    @property
    def of_clients(self) -> dict[str, Any] | None:
        """The spread over clients: on their own test rows, or as estimated from a common test set.

        Where runs are compared before this one ended, that of the last evaluation up to there, if it has one
        (`evaluate_clients`).
        """
        name = self.metric.name
        if self.kept < len(self.history):
            row = self.position
            told = row.get("clients") or row.get("clients_estimated") or {}
            found = told.get(name) if isinstance(told, dict) else None
        else:
            found = self.summary.get(f"client_{name}", self.summary.get(f"client_{name}_estimated"))
        return found if isinstance(found, dict) else None

    @property
    def estimated(self) -> bool:
        """Whether that is an estimate."""
        return self.of_clients is not None and f"client_{self.metric.name}" not in self.summary

    @property
    def report(self) -> dict[str, Any]:
        """What the method reports about its last round."""
        rows = list(self.record.rounds()) if self.record else []
        return rows[-1] if rows else {}
