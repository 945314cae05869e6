"""FedAsync against its formulas in numpy, one arrival after the other."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import Experiment, InputError, RoundEnd
from fedkeel.methods import Oracle, ServerState, find
from fedkeel.methods.fedasync import NearStart
from fedkeel.methods.staleness import Function, StalenessMixed, mix, staleness_factor
from tests.helpers import federation
from tests.helpers.arrivals import arrival, layout_of, make_job, timeline, vector, view
from tests.helpers.federation import EVERY_EXECUTOR, LR, Vector


@pytest.mark.parametrize(
    ("function", "a", "expected"),
    [
        ("constant", 0.5, [1, 1, 1, 1, 1]),
        ("polynomial", 0.5, [1, 2**-0.5, 0.5, 7**-0.5, 0.25]),
        ("polynomial", 1.0, [1, 1 / 2, 1 / 4, 1 / 7, 1 / 16]),
        ("hinge", 10.0, [1, 1, 1, 1 / 21, 1 / 111]),
        ("hinge", 0.1, [1, 1, 1, 1 / 1.2, 1 / 2.1]),
    ],
)
def test_the_factor_by_hand(function: Function, a: float, expected: list[float]) -> None:
    got = [staleness_factor(staleness, function, a, 4) for staleness in (0, 1, 3, 6, 15)]
    np.testing.assert_allclose(got, expected, rtol=1e-15)


@given(st.sampled_from(["constant", "polynomial", "hinge"]), st.integers(0, 10**6), st.floats(0, 50), st.floats(0, 50))
def test_the_factor_never_grows_and_stays_in_its_interval(
    function: Function, staleness: int, a: float, b: float
) -> None:
    """Without the one in its denominator, a hinge with a small a would exceed 1 behind b."""
    now, later = (staleness_factor(s, function, a, b) for s in (staleness, staleness + 1))
    assert 0 <= later <= now <= 1


@pytest.mark.parametrize(("function", "a"), [("constant", 7.0), ("polynomial", 0.5), ("hinge", 10.0)])
def test_every_function_has_its_own_default_steepness(function: Function, a: float) -> None:
    for staleness in (0, 3, 4, 5, 20):
        assert StalenessMixed(function=function).factor(staleness) == staleness_factor(staleness, function, a, 4)
        assert StalenessMixed(function=function, a=0.3, b=2).factor(staleness) == (
            staleness_factor(staleness, function, 0.3, 2)
        )


@pytest.mark.parametrize("function", ["constant", "polynomial", "hinge"])
def test_many_arrivals_by_hand_and_alpha_stays(function: Function) -> None:
    rng = np.random.default_rng(0)
    rule, x = StalenessMixed(function=function, alpha=0.7, a=0.4, b=2), rng.normal(size=5)
    state = rule.init(vector(x), layout_of(5), torch.ones(3))
    for version in range(300):
        staleness, w = int(rng.integers(0, min(version, 8) + 1)), rng.normal(size=5)
        state, receipt = rule.receive(state, arrival(w, rng.normal(size=5)), view(version, version - staleness))
        hinge = 1.0 if staleness <= 2 else 1 / (0.4 * (staleness - 2) + 1)
        alpha = 0.7 * {"constant": 1.0, "polynomial": (1 + staleness) ** -0.4, "hinge": hinge}[function]
        x = (1 - alpha) * x + alpha * w
        assert receipt.weight == pytest.approx(alpha, rel=1e-14)
        assert (receipt.published, receipt.accepted) == (True, True)
        np.testing.assert_allclose(state.w, x, rtol=0, atol=1e-12)
    assert rule.receive(state, arrival(x, x), view(300))[1].weight == 0.7


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_leaves_both_models_alone(weight: float, dtype: torch.dtype) -> None:
    w, arrived = torch.randn(2, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = w.clone(), arrived.clone()
    got = mix(w, arrived, weight)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, (1 - weight) * w.numpy() + weight * arrived.numpy(), rtol=0, atol=1e-6)
    assert torch.equal(w, before[0])
    assert torch.equal(arrived, before[1])


def test_what_is_too_stale_changes_nothing() -> None:
    """The bound is on t - tau + 1, so that a bound of 3 lets a staleness of 2 pass."""
    rule, state = StalenessMixed(staleness_bound=3), ServerState(vector([1.0, 2.0]))
    update = arrival([3.0, 4.0], [0.0, 0.0])
    after, receipt = rule.receive(state, update, view(7, 5))
    assert (receipt.accepted, receipt.published, receipt.weight) == (True, True, pytest.approx(0.6 * 3**-0.5))
    assert not torch.equal(after.w, state.w)
    after, receipt = rule.receive(state, update, view(7, 4))
    assert after is state
    assert (receipt.accepted, receipt.published, receipt.weight) == (False, False, 0.0)
    assert StalenessMixed().receive(state, update, view(10**6, 0))[1].accepted


def test_the_settings_and_what_is_refused() -> None:
    method = find("fedasync")
    assert method.defaults == {
        "mu": 0.005, "alpha": 0.6, "function": "polynomial", "a": None, "b": 4.0, "staleness_bound": None,
    }  # fmt: skip
    bad: list[dict[str, Any]] = [
        {"alpha": 0},
        {"alpha": 1.5},
        {"function": "linear"},
        {"a": -1},
        {"staleness_bound": 0},
    ]
    for settings in bad:
        (name,) = settings
        with pytest.raises(InputError, match=rf"^algorithm\.{name}\b.*; ."):
            Experiment(algorithm={"name": "fedasync", **settings})
    assert (method.client.pair, method.server.pair, method.server.pace) == (None, None, "periodic")
    assert NearStart().mu == NearStart().pull == 0.005


SCHEDULE = {"trigger_seconds": 4.0, "busy_share": 0.7}
"""Four of the federation's six clients may be at work."""


def by_hand(alpha: float, a: float, mu: float, bound: int | None = None) -> tuple[Vector, list[tuple[int, int, float]]]:
    """(The model, each arrival's client, staleness and weight)."""
    x, version = federation.start(), 0
    jobs: dict[int, tuple[int, Vector]] = {}
    told = []
    for event in timeline(most=4, every=4.0):
        if event.what == "sent":
            jobs[event.client] = version, x
            continue
        began, start = jobs[event.client]
        w = start
        for batch in federation.batches(event.wave, event.client):
            w = w - LR * (federation.gradient(w, *batch) + mu * (w - start))
        weight = alpha * (1 + version - began) ** -a if bound is None or version - began + 1 <= bound else 0.0
        told.append((event.client, version - began, weight))
        x, version = (1 - weight) * x + weight * w, version + (weight > 0)
    return x, told


def told_by(ends: list[RoundEnd]) -> list[tuple[int, int, float]]:
    return [(each.client, each.staleness, each.weight) for end in ends for each in end.arrivals]


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_a_run_by_hand(executor: str) -> None:
    settings = {"name": "fedasync", "alpha": 0.8, "a": 0.7, "mu": 0.3}
    result, ends = federation.train(settings, executor, schedule=SCHEDULE)
    x, told = by_hand(0.8, 0.7, 0.3)
    assert max(staleness for _, staleness, _ in told) > 2
    assert [each[:2] for each in told_by(ends)] == [each[:2] for each in told]
    np.testing.assert_allclose([each[2] for each in told_by(ends)], [each[2] for each in told], rtol=1e-12)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)


def test_a_run_with_discarded_updates_by_hand() -> None:
    settings = {"name": "fedasync", "mu": 0.3, "staleness_bound": 2}
    result, ends = federation.train(settings, schedule=SCHEDULE)
    x, told = by_hand(0.6, 0.5, 0.3, bound=2)
    assert 0 < sum(weight == 0 for *_, weight in told) < len(told)
    np.testing.assert_allclose([each[2] for each in told_by(ends)], [each[2] for each in told], rtol=1e-12)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    assert [each.accepted for end in ends for each in end.arrivals] == [weight > 0 for *_, weight in told]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_without_a_pull_clients_are_plain_to_the_bit(executor: str) -> None:
    job, oracle = make_job(torch.ones(3)), cast(Oracle, None)
    assert NearStart(mu=0).begin(job, oracle) is job
    assert not NearStart().begin(job, oracle).course.plain
    runs = [{"mu": 0}, {"client": "fedavg"}, {}]
    none, plain, some = (
        federation.weights(federation.train({"name": "fedasync", **each}, executor)[0]) for each in runs
    )
    assert np.array_equal(none, plain)
    assert np.abs(some - plain).max() > 1e-6
