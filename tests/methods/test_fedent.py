"""FedEnt's one-dimensional problem against dense grids and finite differences."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedkeel.methods import fedent
from tests.helpers.federation import Vector

Problem = tuple[float, float, float, float, float, float]  # a, q, h, share, phi2, beta


def best_rate(a: float, q: float, h: float, share: float, phi2: float, beta: float, top: float) -> float:
    """Of one client."""
    rates = fedent.entropy_learning_rates(a, np.array([q]), np.array([h]), np.array([share]), phi2, beta, top)
    return float(rates[0])


def cost(eta: Any, a: float, q: float, h: float, share: float, phi2: float, beta: float) -> Any:
    p = np.maximum(share * (a - 2 * eta * q + eta * eta * h) / phi2, 0)
    return beta * np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0) + (1 - beta) * eta * eta


def dense(top: float, points: int = 200_001) -> Vector:
    """[0, top], and finer and finer towards 0."""
    return np.union1d(np.linspace(0, top, points), top * np.geomspace(1e-12, 1, points // 50))


def excess(problem: Problem, top: float) -> tuple[float, float]:
    """(The rate, how much more it costs than the best of a dense grid, in parts of the whole range of costs)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate = best_rate(*problem, top)
    costs = cost(dense(top), *problem)
    rounding = 1e-14 * np.abs(costs).max()
    return rate, float(max(cost(rate, *problem) - costs.min() - rounding, 0) / np.ptp(costs))


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: float(10**exponent))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, float]:
    a = draw(powers(-3, 3))
    h = a * draw(powers(-6, 5))
    q = draw(st.floats(-1, 1)) * float(np.sqrt(a * h))
    beta = draw(st.one_of(st.floats(0.01, 0.999), st.just(0.99)))
    return (a, q, h, draw(powers(-3, 0)), a * draw(powers(-2, 2)), beta), draw(powers(-2, 1))


@pytest.mark.slow
@given(problems())
@example(((1.0, 0.0, 0.0, 0.01, 1.0, 0.99), 1.0))
@example(((1.0, 0.0, 4.0, 0.3, 1.0, 0.99), 1.0))
@example(((1.0, 3e5, 1e12, 0.1, 1.0, 0.5), 10.0))
@example(((1.0, -3e5, 1e12, 0.1, 1.0, 0.5), 10.0))
@example(((1.0, 1e-9, 1e-18, 0.5, 1.0, 0.99), 10.0))
@example(((1.0, 2.0, 4.0, 1.0, 1.0, 0.99), 1.0))  # the weight gets to 0
@example(((1.0, 0.9, 1.0, 1.0, 1.0, 0.5), 1e-6))
@settings(max_examples=60)
def test_no_rate_of_a_dense_grid_costs_less(given: tuple[Problem, float]) -> None:
    """Where the answer is 0, within the square of half a cell of the 64 that the search has: see the next test."""
    problem, top = given
    rate, more = excess(problem, top)
    assert 0 <= rate <= top
    assert more <= 1e-9


@pytest.mark.parametrize(
    ("problem", "top", "best"),
    [
        ((1.0, -0.002, 0.01, 0.01, 1.0, 0.99), 1.0, 0.0074),
        ((14.0, -1.68, 0.39, 0.015, 390.0, 0.99), 5.5, 0.043),
        ((0.0011, -0.0024, 0.0137, 0.126, 0.1035, 0.617), 4.2, 0.031),
        ((0.0019, 1.5e-6, 3e-9, 0.6, 0.0015, 0.3575), 0.031, 0.00023),
        ((1.0, 0.8587956661868453, 2.978073846935624, 0.040663838899674, 1.0, 0.9135492777071579), 3.0, 1.2),
        ((1.0, 0.7572171919632739, 2.352870759974502, 0.09843794493168417, 1.0, 0.9221428968577794), 3.0, 1.12),
    ],
)
def test_a_minimum_is_found_though_zero_is_better_than_all_around_it(problem: Problem, top: float, best: float) -> None:
    """Close to 0, or as deep as 0 is: between the points of a coarse grid."""
    rate, more = excess(problem, top)
    assert rate == pytest.approx(best, rel=0.1)
    assert more <= 1e-9


@pytest.mark.parametrize(
    ("problem", "top", "minima"),
    [
        ((1.0, 0.707, 0.741, 0.062, 0.125, 0.984), 2.8, 2),
        ((1.0, 1.831, 5.03, 0.347, 0.749, 0.79), 0.95, 2),
        ((1.0, 14.878, 250.529, 0.582, 1.332, 0.116), 1.17, 2),
        ((1.83**2, 0.915, 25.0, 0.01, 1.83**2, 0.99), 1.0, 0),
    ],
)
def test_of_two_minima_the_deeper_one_is_taken(problem: Problem, top: float, minima: int) -> None:
    """Inner minima; the last problem has one at either end, and the further one is deeper."""
    grid = np.linspace(0, top, 200_001)
    costs = cost(grid, *problem)
    inner = 1 + np.flatnonzero((costs[1:-1] < costs[:-2]) & (costs[1:-1] < costs[2:]))
    assert len(inner) == minima
    assert minima or (costs[0] < costs[1] and costs[-1] < costs[-2])
    assert best_rate(*problem, top) == pytest.approx(grid[costs.argmin()], abs=2e-5 * top)


def test_the_closed_form_is_a_maximum_in_the_worked_case() -> None:
    """|w| = 1.83, |g| = 5, cos = .1, 100 clients, beta = .99."""
    a, q, h, share, beta = 1.83**2, 0.1 * 1.83 * 5, 25.0, 0.01, 0.99
    printed = q / ((1 - beta) * a / (beta * share * (1 + np.log(share))) + h)
    rate = float(fedent.literal_learning_rate(q, h, share, a, beta, share))
    assert rate == pytest.approx(printed, rel=1e-12)
    assert rate == pytest.approx(0.038, abs=5e-4)
    near, width = np.array([rate - 1e-3, rate, rate + 1e-3]), 1e-3
    costs = cost(near, a, q, h, share, a, beta)
    assert (costs[0] - 2 * costs[1] + costs[2]) / width**2 < -1e-3
    assert best_rate(a, q, h, share, a, beta, 1.0) == 1.0


@pytest.mark.parametrize(
    ("q", "p", "expected"), [(-0.5, 0.01, 0.0), (0.5, 1 / np.e, 0.0), (0.5, 0.9, 0.5 / (2 / (3 * 0.2 * 0.8946395) + 4))]
)
def test_the_closed_form_is_never_negative(q: float, p: float, expected: float) -> None:
    """With beta = .75, phi2 = 2 and a share of .2."""
    found = fedent.literal_learning_rate(np.array([q]), np.array([4.0]), np.array([0.2]), 2.0, 0.75, np.array([p]))
    np.testing.assert_allclose(found, [expected], rtol=1e-6, atol=1e-15)


@pytest.mark.slow
@given(problems(), st.floats(0.01, 0.99))
def test_the_slope_is_that_of_the_objective(given: tuple[Problem, float], part: float) -> None:
    problem, top = given
    eta, width = part * top, 1e-5 * part * top
    ends = np.array([eta - width, eta + width])
    np.testing.assert_allclose(fedent.objective(ends, *problem), cost(ends, *problem), rtol=1e-12, atol=1e-14)
    before, after = cost(ends, *problem)
    slopes = [float(fedent.objective_slope(each, *problem)) for each in (eta - width, eta, eta + width)]
    rounding = 1e-14 * (abs(before) + abs(after)) / width
    bound = abs(slopes[2] - slopes[0]) + 1e-6 * abs(slopes[1]) + rounding
    assert abs((after - before) / (2 * width) - slopes[1]) <= bound


def clients(seed: int, count: int) -> tuple[float, Vector, Vector, Vector]:
    """(a, q, h, shares) of random vectors."""
    rng = np.random.default_rng(seed)
    w, g = rng.normal(size=8), rng.normal(size=(count, 8)) * 10 ** rng.uniform(-1, 1)
    samples = rng.integers(1, 50, count)
    return float(w @ w), g @ w, (g**2).sum(1), samples / samples.sum()


def implied(rates: Vector, a: float, q: Vector, h: Vector, shares: Vector) -> float:
    return float(sum(s * (a - 2 * r * qi + r * r * hi) for r, qi, hi, s in zip(rates, q, h, shares, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("reading", ["practical", "literal"])
def test_phi2_is_what_the_rates_make_it(reading: fedent.Reading) -> None:
    converged = 0
    for seed in range(14):
        problem = clients(seed, 3 + seed % 20)
        rates, phi2, sweeps = fedent.self_consistent_rates(*problem, 0.99, 1.0, reading)
        assert 1 <= sweeps <= fedent.SWEEPS
        assert ((rates >= 0) & (rates <= 1)).all()
        if sweeps < fedent.SWEEPS:
            converged += 1
            assert abs(phi2 - implied(rates, *problem)) <= 2e-6 * phi2
    assert converged >= 10


@pytest.mark.parametrize("reading", ["practical", "literal"])
def test_a_model_of_zeros_has_no_rates(reading: fedent.Reading) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zeros, h, shares = np.zeros(3), np.ones(3), np.array([0.2, 0.3, 0.5])
        rates, phi2, sweeps = fedent.self_consistent_rates(0.0, zeros, h, shares, 0.99, 1.0, reading)
    assert rates.tolist() == [0, 0, 0]
    assert (phi2, sweeps) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "q", "h"), [(0.05, 0.3, 0.5), (0.9, 0.05, 0.9), (0.3, -0.4, 0.5), (0.99, 0.5, 4.0)])
def test_equal_clients_get_the_rate_of_a_grid(beta: float, q: float, h: float) -> None:
    """Of all rates, the one that a grid finds best at the phi2 which it makes; 0 in the first two problems."""
    count = 5
    rates, phi2, _ = fedent.self_consistent_rates(
        1.0, np.full(count, q), np.full(count, h), np.full(count, 0.2), beta, 1.0
    )
    grid = dense(1.0)
    best = grid[cost(grid, 1.0, q, h, 0.2, phi2, beta).argmin()]
    np.testing.assert_allclose(rates, best, atol=1e-5)
    assert (best == 0) == (q in (0.3, 0.05))
    assert phi2 == pytest.approx(1 - 2 * best * q + best**2 * h, rel=1e-4)


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_the_entropy_of_weights_is_numpys_and_at_most_that_of_equal_ones(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    models, shares = rng.normal(size=(count, 4)) * rng.integers(0, 3, (count, 1)), rng.uniform(0.1, 1, count)
    models[0] = [1, 2, 3, 4]
    weights = shares * (models**2).sum(1)
    p = weights[weights > 0] / weights.sum()
    found = float(fedent.weights_entropy(torch.tensor(models), torch.tensor(shares)))
    assert found == pytest.approx(-(p * np.log(p)).sum(), abs=1e-12)
    assert found <= np.log(count) + 1e-12
    alike = fedent.weights_entropy(torch.tensor(models[:1]).repeat(count, 1), torch.full((count,), 1 / count))
    assert float(alike) == pytest.approx(np.log(count), abs=1e-12)
