"""How sure a comparison across seeds is: intervals, paired differences, and who leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isclose, isfinite, log10, sqrt
from statistics import mean, stdev

from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

from fedkeel.errors import InputError, label, shown
from fedkeel.record.measured import decimals
from fedkeel.task.metrics import Better

CONFIDENCE = 0.95
ROUNDING = 1e-12
"""Two values that differ by less, relative to the larger one, are a tie."""


SURE, EQUAL = 4, 1e-9
"""With fewer seeds, differences that are all equal, up to rounding, say nothing about their spread: accuracies are
whole numbers of test samples, and equal differences occur by chance."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval (Student's t); one value has none, then low and high are None.

    The aggregates over many tasks use it too: `mean` is then the aggregate, and the interval comes from a bootstrap.
    """

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half(self) -> float | None:
        """Half of the interval's width, the number after ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """The difference of a variant to another one, seed by seed: ours minus theirs."""

    mean: float
    low: float | None
    high: float | None
    count: int
    wins: int
    """Seeds in which ours is better."""
    ties: int
    better: Better = "higher"
    """Which values are better."""

    @property
    def gain(self) -> float:
        """How much better ours is in the mean."""
        return self.mean if self.better == "higher" else -self.mean

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero; with one seed it never does."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Leaders:
    """Which variant leads: it is `best` only where its paired difference to every other variant is clear.

    Otherwise `level` lists the variant with the best mean and those that cannot be told apart from it, from the best
    mean to the worst. With a `best`, `level` is empty; a single variant is level.
    """

    best: str | None
    level: tuple[str, ...]


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one value. Equal values have an interval of no width."""
    numbers = [float(value) for value in values]
    if not numbers:
        raise InputError("values must have at least one number; got none")
    _check_finite(numbers)
    middle, count = float(mean(numbers)), len(numbers)
    if count == 1:
        return Interval(middle, None, None, 1)
    half = _quantile(count) * float(stdev(numbers)) / sqrt(count)
    return Interval(middle, middle - half, middle + half, count)


def _check_finite(numbers: Sequence[float]) -> None:
    strange = next((number for number in numbers if not isfinite(number)), None)
    if strange is not None:
        raise InputError(f"values must be finite numbers; got {shown(strange)}")


def _quantile(count: int) -> float:
    """The quantile of Student's t: standard errors on either side of the mean of `count` values."""
    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float], better: Better = "higher") -> Difference | None:
    """Over the seeds that both have; None if there are none. Fewer than four equal differences have no interval."""
    both = [seed for seed in ours if seed in theirs]
    if not both:
        return None
    _check_finite([*(ours[seed] for seed in both), *(theirs[seed] for seed in both)])
    apart = [_subtract(float(ours[seed]), float(theirs[seed])) for seed in both]
    found = interval(apart)
    if any(apart) and len(apart) < SURE and max(apart) - min(apart) < EQUAL * abs(apart[0]):
        found = Interval(found.mean, None, None, found.count)
    wins = sum(each > 0 if better == "higher" else each < 0 for each in apart)
    ties = sum(each == 0 for each in apart)
    return Difference(found.mean, found.low, found.high, found.count, wins, ties, better)


def _subtract(ours: float, theirs: float) -> float:
    """Zero where only rounding tells them apart."""
    return 0.0 if isclose(ours, theirs, rel_tol=ROUNDING) else ours - theirs


def best(values: Mapping[str, Mapping[int, float]], better: Better = "higher") -> Leaders:
    """Which variant leads, given a value for each seed of each variant.

    The best mean is tested against every other variant by a paired t-test. It is best if all are rejected, with
    Holm's correction for their number. Otherwise, those are level whose paired difference to it is not clear by
    itself. A variant that shares fewer than two seeds with the best mean cannot be told apart from it. Variants
    without values are left out.
    """
    means = {name: interval(list(seeds.values())).mean for name, seeds in values.items() if seeds}
    if not means:
        return Leaders(None, ())
    top, *others = sorted(means, key=lambda name: -means[name] if better == "higher" else means[name])
    differences = [paired(values[top], values[name], better) for name in others]
    below = [each is not None and each.clear and each.gain > 0 for each in differences]
    if below and all(below) and all(_holm([_p_value(each) for each in differences])):
        return Leaders(top, ())
    return Leaders(None, (top, *(name for name, lost in zip(others, below, strict=True) if not lost)))


def _p_value(difference: Difference | None) -> float:
    """Two-sided, of the paired t-test; 1 where there are too few seeds for one."""
    if difference is None or difference.low is None or difference.high is None or difference.mean == 0:
        return 1.0
    error = (difference.high - difference.low) / 2 / _quantile(difference.count)
    return float(2 * stdtr(difference.count - 1, -abs(difference.mean) / error)) if error > 0 else 0.0


def _holm(p_values: Sequence[float]) -> list[bool]:
    """Which hypotheses are rejected: the smallest p-value first, until one is too large."""
    rejected = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        if p_values[place] >= (1 - CONFIDENCE) / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected


def sentence(
    name: str, against: str, difference: Difference, unit: str = "points", scale: float = 100.0, fine: bool = False
) -> str:
    """A difference in words; an empty name leaves the subject out, as for a table's cell.

    The numbers are multiplied by `scale`, which is positive and turns shares into percentage points. With `fine`, they
    have as many digits as their interval allows, whatever their size.
    """
    told = _verdict(label(against), difference, unit, scale, fine)
    if not name:
        return told
    return f"{label(name)}: {told}" if told[0] in "+-" else f"{label(name)} is {told}"


def _verdict(against: str, difference: Difference, unit: str, scale: float, fine: bool) -> str:
    """The sentence without its subject: begins with a word, or with a sign where one seed allows no verdict."""
    count, ties = difference.count, difference.ties
    if ties == count:
        seeds = "one seed: no interval, so this may be noise" if count == 1 else f"{count} of {count} seeds"
        return f"equal to {against} in {seeds}"
    middle = difference.mean * scale
    if difference.low is None or difference.high is None:
        apart = _amount(middle, decimals(middle, None) if fine else _decimals(middle), unit)
        seeds = "one seed" if count == 1 else f"each of {count} seeds"
        return f"{apart} against {against} in {seeds}: no interval, so this may be noise"
    low, high = difference.low * scale, difference.high * scale
    digits = _decimals(min(abs(low), abs(high))) if difference.clear else 1
    if fine:
        digits = decimals(middle, (high - low) / 2)
    told = f"{_amount(middle, digits, unit)}, interval {_number(low, digits)} to {_number(high, digits)}"
    equal = f" and equal in {ties}" if ties else ""
    if not difference.clear:
        return f"not clearly different from {against}: {told}, better in {difference.wins} of {count} seeds{equal}"
    word, seeds_won = ("better", difference.wins) if difference.gain > 0 else ("worse", count - difference.wins - ties)
    return f"{word} than {against} in {seeds_won} of {count} seeds{equal}, {told}"


def _decimals(value: float) -> int:
    """One, or as many as it takes to tell the value from zero."""
    return max(1, ceil(-log10(abs(value)))) if value else 1


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # a zero added turns -0.0 into 0.0


def _amount(value: float, digits: int, unit: str) -> str:
    sign = "+" if round(value, digits) > 0 else ""
    return f"{sign}{_number(value, digits)} {unit}".rstrip()
