"""A metric as readers of run folders know it: its name and what it means, without the user's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, isnan, log10
from typing import Any

from fedkeel.config.usercode import is_own, short
from fedkeel.errors import InputError, shown
from fedkeel.task import metrics
from fedkeel.task.aim import Aim, check_share
from fedkeel.task.metrics import KNOWN, Better

METRICS = "metrics"
"""The key of `run.json` and `summary.json` that says by what a run is judged."""
MOST_DECIMALS = 8
LONG, HUGE = 1e3, 1e7
"""From the first on, a number is written without decimals; from the second on, with an exponent."""


@dataclass(frozen=True)
class Measured:
    """A number that says how good a model is."""

    name: str
    better: Better = "higher"
    share: bool = True
    """Whether it lies between 0 and 1, so that it is written in percent."""

    @property
    def words(self) -> str:
        """The name as it is written in a sentence."""
        return self.name.replace("_", " ")

    @property
    def scale(self) -> float:
        """By what values are multiplied where people read them."""
        return 100.0 if self.share else 1.0

    @property
    def unit(self) -> str:
        """Of a difference of two values, in words."""
        return "points" if self.share else ""

    @property
    def percent(self) -> str:
        """What stands behind the name in the head of a column."""
        return ", %" if self.share else ""

    @property
    def sign(self) -> float:
        """Values times this are better the higher they are."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def error(self) -> bool:
        """Whether it is better the lower it is, and has no upper bound."""
        return self.better == "lower" and not self.share

    def aim(self, target: float | None) -> Aim:
        """To reach a target by it."""
        return Aim(self.name, self.better, target)

    def best(self, values: Iterable[float]) -> float | None:
        """The best of those that are defined."""
        defined = [value for value in values if not isnan(value)]
        return (max if self.better == "higher" else min)(defined, default=None)

    def told(self, value: float) -> str:
        """A value as a person reads it: `93.21%` for a share, `2.104` or `51941` for others."""
        return f"{value:.2%}" if self.share else brief(value)

    def check_target(self, target: float | None) -> None:
        """Refuse a target that can never mean anything."""
        if target is None:
            return
        if not isfinite(target):
            raise InputError(f"target must be a finite number; got {target:g}")
        if self.share:
            check_share(self.name, target)


ACCURACY = Measured("accuracy")
LOSS = Measured("loss", "lower", share=False)


def brief(value: float) -> str:
    """Four significant digits, and all of those before the point: `2.104`, `51941`; from ten million on `2.698e+09`."""
    return f"{value:.0f}" if LONG <= abs(value) < HUGE else f"{value:.4g}"


def decimals(mean: float, half: float | None) -> int:
    """Of a number in a table: to two digits of half its interval, or else to four digits of its own."""
    size = half if half else abs(mean)
    if not size or not isfinite(size):
        return 2
    return max(0, min(MOST_DECIMALS, (1 if half else 3) - floor(log10(size))))


def declared(names: object) -> tuple[Measured, ...]:
    """By the names in an experiment; of a function of the user's it is not known here which way is better."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        return ()
    found = [each for each in names if isinstance(each, str)]
    return tuple(Measured(short(each), share=False) if is_own(each) else known(each) for each in found)


def known(name: str) -> Measured:
    """One of fedkeel's metrics; other names are taken for functions of the user's."""
    metric = KNOWN.get(name)
    if metric is None:
        return LOSS if name == LOSS.name else Measured(name, share=False)
    return Measured(metric.name, metric.better, metric.share)


def canonical(name: str) -> str:
    """The name that fedkeel has for a metric; of `module:name`, the name."""
    return metrics.canonical(short(name))


def told(judged: Iterable[Any]) -> list[dict[str, Any]]:
    """What run.json says of a task's metrics."""
    return [{"name": each.name, "better": each.better, "share": each.share} for each in judged]


def read(rows: Sequence[Mapping[str, Any]]) -> tuple[Measured, ...]:
    """From what run.json says."""
    found = tuple(Measured(row["name"], row["better"], row["share"]) for row in rows)
    wrong = next((each for each in found if not _sound(each)), None)
    if wrong is not None or not found:
        raise ValueError(f"{METRICS}: {shown(wrong)} is no metric")
    return found


def _sound(metric: Measured) -> bool:
    named = isinstance(metric.name, str) and bool(metric.name) and metric.name.isprintable()
    return named and metric.better in ("higher", "lower") and isinstance(metric.share, bool)
