from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.partition.apportion import apportion

WEIGHTS = st.lists(st.sampled_from([0.1, 1.0, 1.5, 3.0, 1e6]), min_size=1, max_size=20).map(np.array)


@pytest.mark.slow
@given(st.integers(0, 10**7), WEIGHTS)
def test_parts_are_quotas_rounded_down_or_up(total, weights):
    parts = apportion(total, weights)
    assert parts.sum() == total
    assert np.abs(parts - total * weights / weights.sum()).max() < 1


@pytest.mark.slow
@given(st.integers(0, 1000), WEIGHTS, st.integers(0, 5))
def test_no_part_is_below_the_least_and_the_rest_stay_in_proportion(spare, weights, at_least):
    total = at_least * len(weights) + spare
    parts = apportion(total, weights, at_least)
    assert parts.sum() == total
    assert parts.min() >= at_least
    assert (np.diff(parts[np.argsort(weights, kind="stable")]) >= -1).all()
    above = parts > at_least + 1
    if above.any():
        per_weight = parts[above] / weights[above]
        assert (np.abs(per_weight - per_weight.mean()) <= 2 / weights[above].min()).all()


def test_the_largest_remainders_are_rounded_up():
    assert apportion(10, np.array([1.0, 2.0, 4.0])).tolist() == [1, 3, 6]


def test_the_light_get_the_least_and_the_heavy_share_the_rest():
    assert apportion(20, np.array([1.0, 100.0, 1.0, 100.0]), 2).tolist() == [2, 8, 2, 8]
