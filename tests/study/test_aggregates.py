from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedkeel.errors import InputError
from fedkeel.study.aggregates import (
    bootstrap,
    performance_profile,
    probability_of_improvement,
    task_mean,
)
from fedkeel.study.statistics import Interval

SCORE = st.floats(-100, 100).map(lambda value: round(value, 2))
RAGGED = st.lists(st.lists(SCORE, min_size=2, max_size=5), min_size=1, max_size=4)
EVEN = st.integers(1, 5).flatmap(
    lambda runs: st.lists(st.lists(SCORE, min_size=runs, max_size=runs), min_size=1, max_size=5)
)
OURS = np.array([[0.61, 0.66, 0.58, 0.70, 0.64], [0.35, 0.41, 0.52, 0.38, 0.44], [0.80, 0.79, 0.83, 0.75, 0.81]])
THEIRS = np.array([[0.60, 0.62, 0.57, 0.64], [0.36, 0.35, 0.30, 0.38], [0.70, 0.79, 0.77, 0.72]])
MANY = 50_000


def interquartile_mean(scores) -> float:
    return bootstrap(scores, resamples=1).mean


def close(found: Interval, value: float, low: float, high: float) -> None:
    """Bounds are steps of a discrete distribution: two bootstraps differ by one of them at most."""
    assert found.mean == pytest.approx(value, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((low, high), abs=7e-4)


def test_aggregates_are_those_of_rliable():
    """What rliable 1.2.0 printed (with arch 7.2.0, pandas 2):

    x, y = OURS.T, THEIRS.T
    np.random.seed(0)
    def told(scores, function):
        told = library.get_interval_estimates({"v": scores}, lambda *a: np.array([function(*a)]), reps=50_000)
        return told[0]["v"].round(6), told[1]["v"].round(4)
    print(told(x, metrics.aggregate_iqm), told(x, metrics.aggregate_mean))
    print(told((x, y), metrics.probability_of_improvement))
    print(library.create_performance_profile({"v": x}, np.array([0.4, 0.6, 0.8]), reps=50_000))
    """
    close(bootstrap(OURS, resamples=MANY), 0.632222, 0.6033, 0.6578)
    close(bootstrap(OURS, task_mean, resamples=MANY), 0.618, 0.5967, 0.6407)
    close(probability_of_improvement(OURS, THEIRS, resamples=MANY), 0.816667, 0.6333, 0.95)
    profile = performance_profile(OURS, [0.4, 0.6, 0.8], resamples=MANY)
    close(profile[0], 0.866667, 0.7333, 1.0)
    close(profile[1], 0.6, 0.4667, 0.6667)
    close(profile[2], 0.133333, 0.0, 0.2667)


@given(EVEN)
def test_the_interquartile_mean_is_a_trimmed_mean_of_all_runs(rows):
    assert interquartile_mean(rows) == pytest.approx(stats.trim_mean(np.ravel(rows), 0.25), abs=1e-9)
    assert interquartile_mean(np.array(rows)) == interquartile_mean(rows)


@pytest.mark.parametrize("tasks", [1, 3, 5, 7])
def test_outliers_at_either_end_do_not_count(tasks):
    """Not even by the rounding of their weights, which are no powers of two."""
    rows = [[-1e300, 1.0, 2.0, 1e300]] * tasks
    assert interquartile_mean(rows) == pytest.approx(1.5)
    assert interquartile_mean([[1e300, 2.0, 3.0, -1e300, 4.0, 5.0, 6.0, -1e300], [1e300, 3.5, 3.5, 3.5]]) == 3.75


def trimmed_by_copies(rows: list[list[float]]) -> float:
    """Runs are copied until every task has equally many, then the same share is cut: fractions become whole runs."""
    runs = sum(len(row) for row in rows)
    copies = int(np.lcm.reduce([len(row) for row in rows])) * runs
    values = np.sort(np.concatenate([np.repeat(row, copies // len(row)) for row in rows]))
    cut = len(values) * (runs // 4) // runs
    return float(np.mean(values[cut : len(values) - cut]))


@given(RAGGED)
def test_every_task_weighs_the_same_however_many_runs_it_has(rows):
    assert interquartile_mean(rows) == pytest.approx(trimmed_by_copies(rows), abs=1e-8)
    assert bootstrap(rows, task_mean).mean == pytest.approx(np.mean([np.mean(row) for row in rows]), abs=1e-9)
    share = np.mean([np.mean(np.array(row) > 0) for row in rows])
    assert performance_profile(rows, [0.0])[0].mean == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("statistic", [None, task_mean], ids=["interquartile", "mean"])
def test_resamples_stay_within_tasks(statistic):
    """All 3³ · 2² resamples of two tasks, of unequally many runs, one by one."""
    rows = [[1.0, 2.5, 7.0], [100.0, 130.0]]
    every = [[list(one), list(two)] for one in product(rows[0], repeat=3) for two in product(rows[1], repeat=2)]
    if statistic is None:
        values, found = [interquartile_mean(each) for each in every], bootstrap(rows, resamples=MANY)
    else:
        values = [np.mean([np.mean(task) for task in each]) for each in every]
        found = bootstrap(rows, statistic, resamples=MANY)
    near = [np.quantile(values, [share - 0.003, share + 0.003]) for share in (0.025, 0.975)]
    assert near[0][0] - 1e-9 <= found.low <= near[0][1] + 1e-9
    assert near[1][0] - 1e-9 <= found.high <= near[1][1] + 1e-9
    assert found.count == 5


@given(RAGGED, st.lists(SCORE, min_size=1, max_size=4))
def test_a_profile_counts_the_runs_above(rows, thresholds):
    rows = [row[:2] for row in rows]
    found = performance_profile(rows, thresholds, resamples=50)
    assert [each.mean for each in found] == pytest.approx([np.mean(np.array(rows) > each) for each in thresholds])
    for each in found:
        assert each.low is not None
        assert each.high is not None
        assert 0 <= each.low <= each.high <= 1
        assert each.count == 2 * len(rows)


def test_a_run_at_the_threshold_is_not_above_it():
    assert [each.mean for each in performance_profile([[0.5, 0.6]], [0.4, 0.5, 0.6])] == [1.0, 0.5, 0.0]


@given(RAGGED, st.data())
def test_improvement_is_the_mann_whitney_statistic(ours, data):
    few = st.sampled_from([value for row in ours for value in row] + [0.0])
    theirs = [data.draw(st.lists(few, min_size=1, max_size=4)) for _ in ours]
    shares = [
        stats.mannwhitneyu(mine, yours, method="asymptotic").statistic / len(mine) / len(yours)
        if len({*mine, *yours}) > 1
        else 0.5
        for mine, yours in zip(ours, theirs, strict=True)
    ]
    found = probability_of_improvement(ours, theirs, resamples=10)
    assert found.mean == pytest.approx(np.mean(shares))
    assert probability_of_improvement(theirs, ours, resamples=10).mean == pytest.approx(1 - found.mean)
    assert found.count == sum(map(len, [*ours, *theirs]))


def test_both_sides_are_drawn_independently():
    """Drawn alike, equal runs would only ever give one half."""
    found = probability_of_improvement([[1.0, 2.0]], [[1.0, 2.0]])
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)


def test_a_task_with_one_run_leaves_no_interval():
    rows = [[0.5], [0.25, 0.75]]
    assert bootstrap(rows) == Interval(0.5, None, None, 3)
    assert bootstrap([[0.5]]) == Interval(0.5, None, None, 1)
    assert performance_profile(rows, [0.4]) == [Interval(0.75, None, None, 3)]
    assert probability_of_improvement(rows, [[0.0, 0.1], [0.0, 0.1]]) == Interval(1.0, None, None, 7)
    assert probability_of_improvement([[0.0, 0.1], [0.0, 0.1]], rows) == Interval(0.0, None, None, 7)


@given(RAGGED, st.floats(-9, 9), st.floats(0.1, 9), st.randoms(use_true_random=False))
def test_an_aggregate_moves_with_its_scores(rows, shift, scale, random):
    found = bootstrap(rows, resamples=60)
    assert found.low is not None
    assert found.high is not None
    assert bootstrap([random.sample(row, len(row)) for row in rows], resamples=60) == found
    moved = bootstrap([[shift + scale * value for value in row] for row in rows], resamples=60)
    expected = [shift + scale * each for each in (found.mean, found.low, found.high)]
    assert [moved.mean, moved.low, moved.high] == pytest.approx(expected, abs=1e-6)


@given(RAGGED, st.floats(-9, 9), st.randoms(use_true_random=False))
def test_improvement_depends_on_order_alone(rows, shift, random):
    """A common rising function of all scores, here the cube of rounded ones, changes nothing."""
    theirs = [[round(value + shift) for value in random.sample(row, len(row))] for row in rows]
    ours = [[round(value) for value in row] for row in rows]
    cubed = [[[value**3 for value in row] for row in side] for side in (ours, theirs)]
    assert probability_of_improvement(*cubed, resamples=40) == probability_of_improvement(ours, theirs, resamples=40)


def test_the_seed_decides_what_is_drawn():
    assert bootstrap(OURS, seed=3, resamples=99) == bootstrap(OURS, seed=3, resamples=99)
    assert len({bootstrap(OURS, seed=seed, resamples=99) for seed in range(9)}) > 1
    assert len({probability_of_improvement(OURS, THEIRS, seed=seed, resamples=99) for seed in range(9)}) > 1
    profiles = {tuple(performance_profile(OURS, [0.4, 0.62], seed=seed, resamples=20)) for seed in range(9)}
    assert len(profiles) > 1


@pytest.mark.parametrize(
    "scores",
    [[], [[0.5], []], [[0.5, float("nan")]], [[float("inf"), 0.1]], [0.5, 0.6], [[[0.5]]]],
    ids=["no task", "no run", "nan", "infinite", "flat", "deep"],
)
def test_scores_of_another_form_are_told(scores):
    for work in (bootstrap, interquartile_mean):
        with pytest.raises(InputError, match=r"^scores(: task \d)? must have .*; got "):
            work(scores)
    with pytest.raises(InputError, match=r"^scores(: task \d)? must have .*; got "):
        performance_profile(scores, [0.1])
    with pytest.raises(InputError, match=r"^scores(: task \d)? must have .*; got "):
        probability_of_improvement(OURS, scores)


def test_other_tasks_are_not_compared():
    with pytest.raises(InputError, match=r"^scores must have the same tasks on both sides; got 3 tasks against 2$"):
        probability_of_improvement(OURS, THEIRS[:2])


def test_no_resamples_are_told():
    with pytest.raises(InputError, match=r"^resamples must be at least 1; got 0$"):
        bootstrap(OURS, resamples=0)
