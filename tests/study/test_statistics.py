from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedkeel.errors import InputError
from fedkeel.study.statistics import Difference, Interval, Leaders, best, interval, paired, sentence

SCORES = st.floats(-100, 100).map(lambda value: round(value, 4))
MANY = st.lists(SCORES, min_size=2, max_size=8)
NAMES = "abcde"


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(values))


@given(MANY)
def test_an_interval_is_that_of_students_t(values):
    found = interval(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    if np.ptp(values) == 0:
        assert found.low == found.high == found.mean == values[0]
        return
    error = stats.sem(values)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-9)
    assert found.half == pytest.approx((expected[1] - expected[0]) / 2, abs=1e-9)


def test_one_value_has_no_interval():
    assert interval([0.7]) == Interval(0.7, None, None, 1)
    assert interval([0.7]).half is None


def test_equal_values_have_an_interval_of_no_width():
    """Also those whose sum is rounded."""
    assert interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1, 3)


def test_numbers_of_numpy_become_plain_ones():
    found = interval(np.array([0.25, 0.75], dtype=np.float32))
    assert type(found.mean) is float
    assert type(found.low) is float
    assert found.mean == 0.5


@pytest.mark.parametrize("values", [[], [0.5, float("nan")], [float("inf")]])
def test_values_that_have_no_mean_are_told(values):
    with pytest.raises(
        InputError, match=r"^values must (have at least one number; got none|be finite numbers; got .+)$"
    ):
        interval(values)
    if values:
        with pytest.raises(InputError, match=r"^values must be finite numbers; got "):
            paired(by_seed(values), by_seed([0.0] * len(values)))


@given(MANY, st.floats(-50, 50), st.floats(0.01, 50), st.randoms(use_true_random=False))
def test_an_interval_moves_with_its_values(values, shift, scale, random):
    found = interval(values)
    shuffled = random.sample(values, len(values))
    assert interval(shuffled) == found
    moved = interval([shift + scale * value for value in values])
    assert found.low is not None
    assert found.high is not None
    expected = [shift + scale * each for each in (found.mean, found.low, found.high)]
    assert [moved.mean, moved.low, moved.high] == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=8))
def test_a_difference_is_clear_where_the_paired_test_rejects(pairs):
    ours, theirs = zip(*pairs, strict=True)
    found = paired(by_seed(ours), by_seed(theirs))
    assert found is not None
    apart = np.subtract(ours, theirs)
    assert (found.wins, found.ties) == ((apart > 0).sum(), (apart == 0).sum())
    assert found.mean == pytest.approx(apart.mean(), abs=1e-9)
    if np.ptp(apart) < 1e-9:
        assert found.clear == (abs(apart[0]) > 0 and len(pairs) >= 4)
        return
    test = stats.ttest_rel(ours, theirs)
    bounds = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high), abs=1e-9)
    if abs(test.pvalue - 0.05) > 1e-9:
        assert found.clear == (test.pvalue < 0.05)


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=8))
def test_the_other_way_round_is_the_opposite(pairs):
    ours, theirs = (by_seed(each) for each in zip(*pairs, strict=True))
    there, back = paired(ours, theirs), paired(theirs, ours)
    assert there is not None
    assert back is not None
    assert back.mean == -there.mean
    assert back.clear == there.clear
    assert (back.wins, back.ties) == (there.count - there.wins - there.ties, there.ties)


def test_only_seeds_of_both_are_paired():
    found = paired({3: 0.5, 1: 0.7, 9: 0.0}, {1: 0.6, 2: 0.9, 3: 0.2})
    assert found == paired({1: 0.7, 3: 0.5}, {1: 0.6, 3: 0.2})
    assert found is not None
    assert found.count == 2
    assert paired({1: 0.5}, {2: 0.5}) is None
    assert paired({}, {}) is None


def test_one_seed_is_never_clear():
    assert paired({0: 0.9}, {0: 0.1}) == Difference(0.8, None, None, 1, 1, 0)
    assert not Difference(0.8, None, None, 1, 1, 0).clear


def test_equal_differences_are_clear_only_over_many_seeds():
    """Accuracies are whole numbers of test samples, so that a few equal differences come by chance."""
    up = paired({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25})
    assert up == Difference(0.25, None, None, 2, 2, 0)
    assert not up.clear
    four = paired(dict.fromkeys(range(4), 0.75), dict.fromkeys(range(4), 0.5))
    assert four == Difference(0.25, 0.25, 0.25, 4, 4, 0)
    assert four.clear
    level = paired({0: 0.75, 1: 0.5}, {0: 0.75, 1: 0.5})
    assert level == Difference(0.0, 0.0, 0.0, 2, 0, 2)
    assert not level.clear


def test_rounding_is_a_tie():
    found = paired({0: 0.1 + 0.2, 1: 0.3}, {0: 0.3, 1: 0.1 + 0.2})
    assert found == Difference(0.0, 0.0, 0.0, 2, 0, 2)


def leaders_by_brute_force(table: dict[str, list[float]]) -> set[str]:
    """The best by Holm's adjusted p-values from their definition; or, with "", who is not clearly below the highest."""
    top = max(table, key=lambda name: np.mean(table[name]))
    others = [name for name in table if name != top]
    p = {name: stats.ttest_rel(table[top], table[name]).pvalue for name in others}
    order = sorted(others, key=lambda name: p[name])
    adjusted = {
        name: max((len(order) - before) * p[order[before]] for before in range(rank + 1))
        for rank, name in enumerate(order)
    }
    if all(each < 0.05 for each in adjusted.values()):
        return {top}
    return {top, ""} | {name for name in others if p[name] >= 0.05}


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(3, 6))
def test_leaders_are_those_of_holms_adjusted_p_values(seed, variants, seeds):
    generator = np.random.default_rng(seed)
    center = generator.normal(scale=2, size=(variants, 1))
    table = dict(zip(NAMES, (center + generator.normal(size=(variants, seeds))).tolist(), strict=False))
    expected = leaders_by_brute_force(table)
    found = best({name: by_seed(values) for name, values in table.items()})
    if len(expected) == 1:
        assert found == Leaders(expected.pop(), ())
    else:
        assert found.best is None
        assert list(found.level) == sorted(expected - {""}, key=lambda name: -np.mean(table[name]))


def test_several_comparisons_are_corrected_for():
    """Each rival alone is clearly below; among three of them none is."""
    apart = np.array([1.0, 1.4, 0.6, 2.2, 0.1])
    top = by_seed(np.zeros(5))
    rivals = {name: by_seed(-np.roll(apart, place)) for place, name in enumerate(NAMES[:3])}
    assert 0.05 / 3 < stats.ttest_1samp(apart, 0).pvalue < 0.05
    for rival in rivals.values():
        assert best({"top": top, "rival": rival}) == Leaders("top", ())
    assert best({"top": top, **rivals}) == Leaders(None, ("top",))


def test_an_equal_variant_makes_no_test_easier():
    """It is the last of Holm's procedure, not the first."""
    apart = np.array([1.0, 1.4, 0.6, 2.2, 0.1])
    top, rival = by_seed(np.zeros(5)), by_seed(-apart)
    assert 0.05 / 2 < stats.ttest_1samp(apart, 0).pvalue < 0.05
    assert best({"top": top, "twin": top, "rival": rival}) == Leaders(None, ("top", "twin"))


def test_rivals_that_are_clearly_below_are_not_level():
    far = by_seed([-9.0, -9.1, -8.9, -9.2])
    near = by_seed([0.1, -0.2, 0.1, -0.1])
    assert best({"far": far, "near": near, "top": by_seed([0.0] * 4)}) == Leaders(None, ("top", "near"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Leaders(None, ())),
        ({"a": {}}, Leaders(None, ())),
        ({"a": {0: 1.0, 1: 2.0}}, Leaders(None, ("a",))),
        ({"a": {0: 1.0, 1: 2.0}, "b": {}}, Leaders(None, ("a",))),
        ({"a": {0: 0.1}, "b": {0: 0.9}}, Leaders(None, ("b", "a"))),
        ({"a": {0: 0.5, 1: 0.75}, "b": {0: 0.5, 1: 0.75}}, Leaders(None, ("a", "b"))),
        ({"a": {0: 0.5, 1: 0.75}, "b": {0: 0.25, 1: 0.5}}, Leaders(None, ("a", "b"))),
        ({"a": dict.fromkeys(range(4), 0.5), "b": dict.fromkeys(range(4), 0.25)}, Leaders("a", ())),
        ({"a": {0: 0.5, 1: 0.75}, "b": {2: 0.25, 3: 0.5}}, Leaders(None, ("a", "b"))),
    ],
    ids=[
        "nothing",
        "no values",
        "alone",
        "others have none",
        "one seed",
        "equal",
        "constant in two",
        "constant in four",
        "other seeds",
    ],
)
def test_leaders_at_the_edges(values, expected):
    assert best(values) == expected


def test_a_mean_that_owes_its_height_to_its_seeds_is_no_leader():
    """Over the seeds of both, the other one is clearly better."""
    lucky = {0: 0.5, 1: 0.25, 2: 99.0}
    assert best({"lucky": lucky, "steady": {0: 0.75, 1: 0.5}}) == Leaders(None, ("lucky", "steady"))


@given(st.lists(st.lists(SCORES, min_size=3, max_size=3), min_size=2, max_size=4), st.permutations(range(3)))
def test_the_order_of_seeds_plays_no_part(rows, order):
    there = {name: by_seed(row) for name, row in zip(NAMES, rows, strict=False)}
    back = {name: {seed: row[seed] for seed in order} for name, row in there.items()}
    assert best(there) == best(back)
    assert all(paired(there[one], there[two]) == paired(back[one], back[two]) for one, two in combinations(there, 2))


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (
            Difference(0.021, 0.012, 0.03, 3, 3, 0),
            "better than FedAvg in 3 of 3 seeds, +2.1 points, interval 1.2 to 3.0",
        ),
        (
            Difference(-0.021, -0.03, -0.012, 4, 0, 1),
            "worse than FedAvg in 3 of 4 seeds and equal in 1, -2.1 points, interval -3.0 to -1.2",
        ),
        (
            Difference(0.003, -0.009, 0.015, 3, 2, 0),
            "not clearly different from FedAvg: +0.3 points, interval -0.9 to 1.5, better in 2 of 3 seeds",
        ),
        (
            Difference(-0.003, -0.015, 0.009, 3, 1, 1),
            "not clearly different from FedAvg: -0.3 points, interval -1.5 to 0.9, better in 1 of 3 seeds and equal "
            "in 1",
        ),
        (
            Difference(-0.00002, -0.01, 0.01, 3, 1, 0),
            "not clearly different from FedAvg: 0.0 points, interval -1.0 to 1.0, better in 1 of 3 seeds",
        ),
        (
            Difference(0.0, -0.01, 0.01, 2, 1, 0),
            "not clearly different from FedAvg: 0.0 points, interval -1.0 to 1.0, better in 1 of 2 seeds",
        ),
        (
            Difference(0.002, 0.0003, 0.0037, 5, 5, 0),
            "better than FedAvg in 5 of 5 seeds, +0.20 points, interval 0.03 to 0.37",
        ),
        (Difference(0.0, 0.0, 0.0, 3, 0, 3), "equal to FedAvg in 3 of 3 seeds"),
        (
            Difference(0.021, None, None, 1, 1, 0),
            "+2.1 points against FedAvg in one seed: no interval, so this may be noise",
        ),
        (
            Difference(-0.0002, None, None, 1, 0, 0),
            "-0.02 points against FedAvg in one seed: no interval, so this may be noise",
        ),
        (
            Difference(0.0, None, None, 1, 0, 1),
            "equal to FedAvg in one seed: no interval, so this may be noise",
        ),
    ],
)
def test_a_difference_in_words(difference, expected):
    assert sentence("", "FedAvg", difference) == expected
    subject = "FedAgg: " if expected[0] in "+-" else "FedAgg is "
    assert sentence("FedAgg", "FedAvg", difference) == subject + expected


def test_other_units_in_words():
    difference = Difference(-12_345.0, -13_000.0, -11_000.0, 2, 0, 0)
    told = "worse than b in 2 of 2 seeds, -12,345.0 s, interval -13,000.0 to -11,000.0"
    assert sentence("", "b", difference, unit="s", scale=1.0) == told
    assert sentence("", "b", difference, unit="", scale=1.0) == told.replace(" s,", ",")


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=6))
def test_words_agree_with_numbers(pairs):
    ours, theirs = (by_seed(each) for each in zip(*pairs, strict=True))
    difference = paired(ours, theirs)
    assert difference is not None
    told = sentence("", "b", difference, scale=1.0)
    assert told.startswith(("better", "worse")) == difference.clear
    assert told.startswith("better") == (difference.clear and difference.mean > 0)
    assert "-0.0 " not in told
    assert ("no interval" in told) == (difference.low is None)


def test_the_slow_part_of_scipy_stays_out():
    program = "import sys, fedkeel.study.aggregates; print('scipy.stats' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "False"
