"""FedDyn against its rounds written out in numpy with the paper's own quantities, and its traps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import Result
from fedkeel.local.loop import train
from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedavg import Average
from fedkeel.methods.feddyn import DynamicAverage, DynamicRegulariser
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, N, Vector, beside_empty_clients
from tests.helpers.quadratics import Quadratic, job, settled

ALPHA = 0.4
FEDDYN = {"name": "feddyn", "alpha": ALPHA}


@dataclass
class Hand:
    """How a run ends."""

    x: Vector
    mean: Vector
    """Of the participants' models in the last round: what is tested."""
    grad: dict[int, Vector]
    """gradL_i, of those who took part."""
    alpha: dict[int, float]


def by_hand(
    momentum: float = 0.0,
    decay: float = 0.0,
    scale: bool = False,
    linear: float = 1.0,
    quadratic: float = 1.0,
    divide_by: int = N,
    sampled: bool = False,
) -> Hand:
    """Algorithm 1, with h and gradL_i; the last four arguments make what other implementations do instead."""
    x = mean = federation.start()
    h, grad = np.zeros_like(x), {}
    alpha = {i: ALPHA * np.mean(SIZES) / SIZES[i] if scale else ALPHA for i in range(N)}
    for round_ in range(1, ROUNDS + 1):
        models, chosen = [], federation.chosen(round_)
        for client in chosen:
            y, v, old = x.copy(), np.zeros_like(x), grad.get(client, np.zeros_like(x))
            for batch in federation.batches(round_, client):
                g = federation.gradient(y, *batch) + decay * y
                v = momentum * v + g - linear * old + quadratic * alpha[client] * (y - x)
                y = y - LR * v
            grad[client] = old - alpha[client] * (y - x)
            models.append(y)
        h = h - ALPHA / divide_by * np.sum([y - x for y in models], axis=0)
        mean = np.average(models, axis=0, weights=[SIZES[i] for i in chosen] if sampled else None)
        x = mean - h / ALPHA
    return Hand(x, mean, grad, alpha)


def check(result: Result, hand: Hand) -> None:
    np.testing.assert_allclose(federation.weights(result), hand.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.simulation.core.model.state.w, hand.x, rtol=0, atol=1e-12)
    kept = result.simulation.world.desk.kept
    assert kept.keys() == hand.grad.keys()
    for client, message in kept.items():
        np.testing.assert_allclose(-hand.alpha[client] * message["h"], hand.grad[client], rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    """The model is a chain of layers: stacks have closed forms for it, and whole steps."""
    result, _ = federation.train(FEDDYN, executor, nn.Sequential(federation.net()))
    check(result, by_hand())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.2)])
def test_with_momentum_and_weight_decay(momentum: float, decay: float, executor: str) -> None:
    result, _ = federation.train(FEDDYN, executor, local={"momentum": momentum, "weight_decay": decay})
    check(result, by_hand(momentum, decay))


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_scaled_alpha_by_hand(executor: str) -> None:
    """alpha mean(n) / n_i, n over all clients and not over those who take part."""
    result, _ = federation.train({**FEDDYN, "scale_alpha": True}, executor, nn.Sequential(federation.net()))
    check(result, by_hand(scale=True))
    assert np.abs(by_hand(scale=True).mean - by_hand().mean).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [{"linear": 0}, {"quadratic": 0}, {"divide_by": federation.PER_ROUND}, {"sampled": True}]
)
def test_the_federation_tells_the_method_from_its_usual_mistakes(wrong: dict[str, Any]) -> None:
    """No linear term; no quadratic one; a server mean over the participants; averages weighted by samples."""
    result, _ = federation.train(FEDDYN)
    assert np.abs(federation.weights(result) - by_hand(**wrong).mean).max() > 1e-3


def alone(h: float, steps: int, slope: float = 0.0) -> Vector:
    """A client's move y - x in two coordinates after so many steps at rate .25 with alpha = .4 and a constant h_i.

    Its loss is 1/2 slope (w - b)^2, b one below x.
    """
    x = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    kept = {"h": torch.tensor([[h, 3 * h]], dtype=torch.float64)}
    given = job(x, torch.tensor([[0.25]], dtype=torch.float64), kept=kept)
    oracle = Quadratic(torch.full_like(x, slope), x - 1, [1])
    return (train(given, DynamicRegulariser(alpha=ALPHA), oracle, limit=steps).w - x)[0].numpy()


def test_the_linear_term_is_in_the_gradient() -> None:
    """Where the loss is flat, the first step at x is -lr alpha h_i = lr gradL_i: the quadratic term is zero there."""
    np.testing.assert_allclose(alone(h=0.5, steps=1), [-0.25 * ALPHA * 0.5, -0.25 * ALPHA * 1.5], rtol=1e-12)


def test_the_quadratic_term_is_in_the_gradient() -> None:
    """With h_i = 0 and the slope 1: y - x is -lr after a step, and then -lr - lr ((1 - lr) - alpha lr)."""
    np.testing.assert_allclose(alone(h=0.0, steps=1, slope=1.0), [-0.25] * 2, rtol=1e-12)
    second = -0.25 - 0.25 * (0.75 - ALPHA * 0.25)
    np.testing.assert_allclose(alone(h=0.0, steps=2, slope=1.0), [second] * 2, rtol=1e-12)


def test_the_mean_of_the_clients_is_tested_and_not_the_servers_own_model() -> None:
    result, _ = federation.train(FEDDYN)
    x, y = federation.clients()[3]

    def loss(w: Vector) -> float:
        logits = x @ w.reshape(2, 3).T
        return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))

    assert result.history[-1].loss == pytest.approx(loss(by_hand().mean), rel=1e-9)
    assert abs(loss(by_hand().x) - loss(by_hand().mean)) > 1e-3


def test_who_is_absent_keeps_its_state() -> None:
    one, two = (federation.train(FEDDYN, rounds=rounds)[0].simulation.world.desk.kept for rounds in (1, 2))
    first, second = federation.chosen(1), federation.chosen(2)
    assert [*one] == first
    assert sorted(two) == sorted({*first, *second})
    for client in first:
        assert torch.equal(one[client]["h"], two[client]["h"]) == (client not in second)


def test_the_clients_count_alike() -> None:
    _, ends = federation.train(FEDDYN)
    assert all(arrival.weight == pytest.approx(1 / 3) for end in ends for arrival in end.arrivals)


@pytest.mark.slow
def test_nothing_more_travels_than_in_fedavg_but_the_scale() -> None:
    jobs = ROUNDS * federation.PER_ROUND
    average, plain, scaled = (
        federation.train(algorithm)[0].summary for algorithm in ("fedavg", FEDDYN, {**FEDDYN, "scale_alpha": True})
    )
    assert average["bytes_up"] == plain["bytes_up"] == scaled["bytes_up"]
    assert average["bytes_down"] == plain["bytes_down"] == scaled["bytes_down"] - 8 * jobs


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
def test_clients_without_data_change_nothing(scale: bool) -> None:
    """They can never take part, so they are none of the N, nor part of the mean size."""
    settings = {**FEDDYN, "scale_alpha": scale}
    alone, beside = (beside_empty_clients(settings, empty) for empty in (0, 6))
    np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_unlike_clients_end_at_the_true_optimum_where_fedavg_does_not() -> None:
    """Fifty steps solve a client's regularised problem all but exactly."""
    found, optimum = settled(DynamicRegulariser(alpha=0.5), DynamicAverage(), 120, epochs=25)
    np.testing.assert_allclose(found, optimum, rtol=0, atol=1e-9)
    drifted, _ = settled(ClientRule(), Average(), 60, epochs=25)
    assert np.abs(drifted - optimum).max() > 0.02
