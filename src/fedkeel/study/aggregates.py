"""Aggregates over many tasks, such as the scenes of a comparison (Agarwal et al., NeurIPS 2021).

Scores are one sequence for each task, with one number for each of its runs: [tasks][runs]. Tasks may have different
numbers of runs; every task weighs the same. With equal numbers of runs the aggregates are those of the paper. The order
of a task's runs does not matter.

Intervals come from a bootstrap that draws runs within each task. They say what other seeds would change, not what
other tasks would. With few runs in each task they are somewhat too narrow, as all such intervals are. Where a task
has a single run, its spread is unknown and there is no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkeel import streams
from fedkeel.errors import InputError
from fedkeel.study.statistics import CONFIDENCE, Interval

Floats = NDArray[np.float64]
Scores = Sequence[Sequence[float]] | Sequence[Floats] | Floats
"""[tasks][runs]."""
Tasks = list[Floats]
"""An array [..., runs] for each task; the axes in front are those of resamples, the same for all."""
Statistic = Callable[[Tasks], Floats]
"""From tasks to one number for each resample, [...]."""
RESAMPLES = 2000
NEGLIGIBLE = 1e-12
"""A weight that is only rounding."""


def task_mean(tasks: Tasks) -> Floats:
    """The mean over tasks of the mean over runs."""
    return np.mean([np.mean(task, axis=-1) for task in tasks], axis=0)  # type: ignore[no-any-return]


def middle_mean(tasks: Tasks) -> Floats:
    """The interquartile mean: the mean of all runs without a quarter at either end.

    It depends less on outliers than the mean, and less on single runs than the median.

    As many runs are cut as fit into a quarter. Where tasks have different numbers of runs, the same share of the weight
    is cut, and a run at the edge may count in part.
    """
    values = np.concatenate(tasks, axis=-1)
    weights = np.concatenate([np.full(task.shape[-1], 1 / task.shape[-1] / len(tasks)) for task in tasks])
    order = np.argsort(values, axis=-1)
    weight = weights[order]
    until = np.cumsum(weight, axis=-1)
    runs = values.shape[-1]
    cut = runs // 4 / runs
    kept = np.clip(until, cut, 1 - cut) - np.clip(until - weight, cut, 1 - cut)
    kept[kept < NEGLIGIBLE] = 0.0  # an outlier must not come back through rounding
    middle = np.sum(kept * np.take_along_axis(values, order, axis=-1), axis=-1)
    return middle / np.sum(kept, axis=-1)  # type: ignore[no-any-return]


def bootstrap(
    scores: Scores, statistic: Statistic = middle_mean, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """A statistic of all tasks with its 95 % interval, the percentiles of its values for runs drawn anew."""
    tasks = _tasks(scores)
    again = statistic(_drawn(tasks, seed, 0, resamples)) if _repeated(tasks) else None
    return _interval(statistic(tasks), again, _count(tasks))


def performance_profile(
    scores: Scores, thresholds: Sequence[float] | Floats, seed: int = 0, resamples: int = RESAMPLES
) -> list[Interval]:
    """For each threshold the share of runs that are above it, with its 95 % interval."""
    tasks = _tasks(scores)
    drawn = _drawn(tasks, seed, 0, resamples) if _repeated(tasks) else None
    count = _count(tasks)
    found = []
    for threshold in thresholds:
        again = None if drawn is None else _share_above(drawn, threshold)
        found.append(_interval(_share_above(tasks, threshold), again, count))
    return found


def _share_above(tasks: Tasks, threshold: float) -> Floats:
    return task_mean([np.asarray(task > threshold, dtype=np.float64) for task in tasks])


def probability_of_improvement(ours: Scores, theirs: Scores, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """How probable it is that a run of ours beats one of theirs in the same task, mean over tasks; ties count half.

    For each task this is the Mann-Whitney statistic as a share of all pairs of runs.
    """
    mine, yours = _tasks(ours), _tasks(theirs)
    if len(mine) != len(yours):
        raise InputError(f"scores must have the same tasks on both sides; got {len(mine)} tasks against {len(yours)}")
    again = None
    if _repeated(mine) and _repeated(yours):
        again = _improvement(_drawn(mine, seed, 0, resamples), _drawn(yours, seed, 1, resamples))
    return _interval(_improvement(mine, yours), again, _count(mine) + _count(yours))


def _improvement(mine: Tasks, yours: Tasks) -> Floats:
    shares = []
    for ours, theirs in zip(mine, yours, strict=True):
        ours, theirs = ours[..., :, None], theirs[..., None, :]
        shares.append(np.mean(ours > theirs, axis=(-2, -1)) + np.mean(ours == theirs, axis=(-2, -1)) / 2)
    return np.mean(shares, axis=0)  # type: ignore[no-any-return]


def _tasks(scores: Scores) -> Tasks:
    """Sorted, so that the order of runs plays no part in what is drawn."""
    tasks = [_task(place, task) for place, task in enumerate(scores)]
    if not tasks:
        raise InputError("scores must have at least one task; got none")
    return tasks


def _task(place: int, scores: ArrayLike) -> Floats:
    task = np.asarray(scores, dtype=np.float64)
    if task.ndim != 1 or not len(task):
        raise InputError(
            f"scores: task {place} must have one number for each run; got an array of shape {list(task.shape)}"
        )
    if not np.isfinite(task).all():
        raise InputError(f"scores: task {place} must have finite numbers; got {task[~np.isfinite(task)][0]:g}")
    return np.sort(task)


def _repeated(tasks: Tasks) -> bool:
    return all(len(task) > 1 for task in tasks)


def _count(tasks: Tasks) -> int:
    return sum(len(task) for task in tasks)


def _drawn(tasks: Tasks, seed: int, side: int, resamples: int) -> Tasks:
    """As many runs as each task has, drawn with replacement: [resamples, runs]. Sides draw independently."""
    if resamples < 1:
        raise InputError(f"resamples must be at least 1; got {resamples}")
    drawn = []
    for place, task in enumerate(tasks):
        generator = streams.generator(seed, "bootstrap", side, place)
        drawn.append(task[generator.integers(len(task), size=(resamples, len(task)))])
    return drawn


def _interval(value: Floats, again: Floats | None, count: int) -> Interval:
    """From the statistic itself and from its values for all resamples."""
    if again is None:
        return Interval(float(value), None, None, count)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(again, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high), count)
