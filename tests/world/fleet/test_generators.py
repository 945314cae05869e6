"""Speeds made up: exact ends, the shape in between, and who gets which."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from fedkeel.world.fleet.generators import speed_factors
from fedkeel.world.fleet.settings import GENERATORS, FleetSettings

kinds = st.sampled_from(GENERATORS)
ratios = st.floats(1, 1e9)
counts = st.integers(2, 60)


def factors(clients: int, seed: int = 0, **settings: Any) -> NDArray[np.float64]:
    return speed_factors(FleetSettings(**settings), clients, seed)


@given(kinds, ratios, counts, st.integers(2, 9), st.integers(0, 5))
def test_fastest_and_slowest_are_exact(kind: str, ratio: float, clients: int, tiers: int, seed: int) -> None:
    found = factors(clients, seed, profile=kind, speed_ratio=ratio, tiers=tiers)
    assert len(found) == clients
    assert found.min() == 1
    assert found.max() == ratio


@pytest.mark.parametrize("kind", GENERATORS)
def test_one_device_is_the_fastest(kind: str) -> None:
    assert factors(1, profile=kind, speed_ratio=5).tolist() == [1]


@given(ratios, counts)
def test_uniform_is_evenly_spaced(ratio: float, clients: int) -> None:
    found = np.sort(factors(clients, profile="uniform", speed_ratio=ratio))
    expected = [1 + (ratio - 1) * i / (clients - 1) for i in range(clients)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(st.floats(1.001, 1e9), counts)
def test_logarithms_of_lognormal_are_normal_quantiles(ratio: float, clients: int) -> None:
    found = np.log(np.sort(factors(clients, profile="lognormal", speed_ratio=ratio)))
    quantiles = stats.norm.ppf((np.arange(1, clients + 1) - 0.5) / clients)
    # A normal distribution up to place and width: standardised, both are the same.
    expected, got = ((x - x.mean()) / x.std() for x in (quantiles, found))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


@given(ratios, counts, st.integers(2, 9))
def test_tiers_are_geometric_and_of_nearly_equal_size(ratio: float, clients: int, tiers: int) -> None:
    found = np.sort(factors(clients, profile="tiers", speed_ratio=ratio, tiers=tiers))
    number = min(tiers, clients)
    speeds = [ratio ** (tier / (number - 1)) for tier in range(number)]
    nearest = [min(range(number), key=lambda tier: abs(speeds[tier] - factor)) for factor in found]
    np.testing.assert_allclose(found, [speeds[tier] for tier in nearest], rtol=1e-12)
    if ratio > 1.01:
        sizes = np.bincount(nearest, minlength=number)
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("kind", GENERATORS)
def test_who_is_fast_depends_on_the_seed_alone(kind: str) -> None:
    dealt = [factors(50, seed, profile=kind, speed_ratio=5).tolist() for seed in range(3)]
    assert dealt[0] == factors(50, 0, profile=kind, speed_ratio=5).tolist()
    assert dealt[0] != dealt[1] != dealt[2]
    assert sorted(dealt[0]) == sorted(dealt[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", GENERATORS)
def test_every_device_is_slow_as_often_as_any_other(kind: str) -> None:
    slow = np.zeros(6)
    for seed in range(600):
        slow[factors(6, seed, profile=kind, speed_ratio=2, tiers=6).argmax()] += 1
    assert stats.chisquare(slow).pvalue > 1e-3
