"""FedCM and MoFedSAM against their rounds written out in numpy."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector

ALPHA = 0.3
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "falling rate": {"local": {"lr_decay": 0.5}},
    "momentum": {"local": {"momentum": 0.9}},
    "weight decay": {"local": {"weight_decay": 0.3}},
    "clipping": {"local": {"clip_norm": 0.2}},
    "server rate": {"server_lr": 0.6},
    "samples": {"weighting": "samples"},
    "all": {
        "local": {"lr_decay": 0.7, "momentum": 0.6, "weight_decay": 0.1, "clip_norm": 0.3},
        "server_lr": 0.8,
        "weighting": "samples",
    },
}


def by_hand(
    alpha: float = ALPHA,
    rho: float = 0.0,
    rounds: int = ROUNDS,
    server_lr: float = 1.0,
    weighting: str = "uniform",
    local: dict[str, Any] | None = None,
) -> tuple[Vector, Vector]:
    """(x, Delta), where Delta is the mean of the clients' mean directions; with rho, gradients are FedSAM's.

    With momentum a direction counts in its own step and, ever less, in all that follow.
    """
    local = local or {}
    momentum = local.get("momentum", 0.0)
    x = federation.start()
    delta = np.zeros_like(x)
    for round_ in range(1, rounds + 1):
        lr = LR * local.get("lr_decay", 1.0) ** (round_ - 1)
        models, means, chosen = [], [], federation.chosen(round_)
        for client in chosen:
            w, v, seen = x.copy(), np.zeros_like(x), []
            for batch in federation.batches(round_, client):
                g = federation.gradient(w, *batch)
                if rho:
                    g = federation.gradient(w + rho * g / (np.linalg.norm(g) + 1e-12), *batch)
                g = g * min(1.0, local.get("clip_norm", np.inf) / (np.linalg.norm(g) + 1e-6))
                g = g + local.get("weight_decay", 0) * w
                seen.append(alpha * g + (1 - alpha) * delta)
                v = momentum * v + seen[-1]
                w = w - lr * v
            counts = [sum(momentum**later for later in range(len(seen) - step)) for step in range(len(seen))]
            means.append(np.average(seen, axis=0, weights=counts))
            if not momentum:  # then it is what the paper says
                np.testing.assert_allclose(means[-1], (x - w) / (lr * len(seen)), rtol=0, atol=1e-12)
            models.append(w)
        shares = [SIZES[client] if weighting == "samples" else 1 for client in chosen]
        x = x + server_lr * (np.average(models, axis=0, weights=shares) - x)
        delta = np.average(means, axis=0, weights=shares)
    return x, delta


def check(algorithm: dict[str, Any], executor: str, model: nn.Module | None = None, **hand: Any) -> None:
    result, _ = federation.train(algorithm, executor, model, local=hand.get("local", {}))
    x, delta = by_hand(**hand)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.simulation.core.model.state.memory["delta"], delta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    """The model is a chain of layers: stacks have closed forms for it, and whole steps."""
    check({"name": "fedcm", "alpha": ALPHA}, executor, nn.Sequential(federation.net()))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize("case", SETTINGS)
def test_settings_by_hand(case: str, executor: str) -> None:
    """Delta is divided by the steps, the rate and the momentum of the round that made it; K_i differs by client."""
    settings = SETTINGS[case]
    server = {key: value for key, value in settings.items() if key != "local"}
    check({"name": "fedcm", "alpha": ALPHA, **server}, executor, **settings)
    if settings:
        assert np.abs(by_hand(**settings)[0] - by_hand()[0]).max() > 1e-3


def test_delta_is_divided_by_the_rate_that_made_it() -> None:
    """After one round at rate LR, whatever the rate of the next one will be."""
    steady, falling = (
        federation.train("fedcm", rounds=1, local={"lr_decay": decay})[0].simulation.core.model.state.memory["delta"]
        for decay in (1.0, 0.1)
    )
    np.testing.assert_array_equal(steady, falling)
    np.testing.assert_allclose(steady, by_hand(0.1, rounds=1)[1], rtol=0, atol=1e-12)


def test_delta_has_the_length_of_a_gradient_however_many_steps_made_it() -> None:
    """At a tiny rate all gradients of a client are those at x; a tenth of them is Delta, and it points uphill."""
    result, ends = federation.train("fedcm", rounds=1, local={"lr": 1e-7, "batch_size": "full", "epochs": 7})
    expected = 0.1 * np.mean(
        [federation.gradient(federation.start(), *federation.clients()[i]) for i in federation.chosen(1)], axis=0
    )
    assert {arrival.steps for arrival in ends[0].arrivals} == {7}
    assert np.linalg.norm(expected) > 0.005
    np.testing.assert_allclose(result.simulation.core.model.state.memory["delta"], expected, rtol=0, atol=1e-7)


def plain_mean(rate: float, rounds: int) -> Vector:
    """Rounds of plain SGD and a mean in which all clients count alike."""
    x = federation.start()
    for round_ in range(1, rounds + 1):
        models = []
        for client in federation.chosen(round_):
            w = x.copy()
            for batch in federation.batches(round_, client):
                w = w - rate * federation.gradient(w, *batch)
            models.append(w)
        x = np.mean(models, axis=0)
    return x


def test_the_first_round_runs_at_alpha_times_the_learning_rate() -> None:
    result, _ = federation.train({"name": "fedcm", "alpha": ALPHA}, rounds=1)
    np.testing.assert_allclose(federation.weights(result), plain_mean(ALPHA * LR, 1), rtol=0, atol=1e-12)


def test_alpha_one_is_fedavg_in_which_all_clients_count_alike() -> None:
    result, ends = federation.train({"name": "fedcm", "alpha": 1.0})
    np.testing.assert_allclose(federation.weights(result), plain_mean(LR, ROUNDS), rtol=0, atol=1e-12)
    assert all(arrival.weight == pytest.approx(1 / 3) for end in ends for arrival in end.arrivals)
    average, _ = federation.train("fedavg")  # weighted by samples
    assert np.abs(federation.weights(result) - federation.weights(average)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedcm", "mofedsam"])
def test_the_direction_travels_down_and_nothing_more_comes_up(name: str) -> None:
    average, mixed = (federation.train(algorithm)[0].summary for algorithm in ("fedavg", name))
    assert mixed["bytes_up"] == average["bytes_up"]
    assert mixed["bytes_down"] == 2 * average["bytes_down"]


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_mofedsam_by_hand(executor: str) -> None:
    local = {"weight_decay": 0.1, "clip_norm": 0.3}
    check({"name": "mofedsam", "alpha": ALPHA, "rho": 0.5}, executor, rho=0.5, local=local)


@pytest.mark.slow
@pytest.mark.parametrize("half", [{"rho": 0.0}, {"rho": 0.5, "alpha": 1.0}])
def test_both_halves_of_mofedsam_count(half: dict[str, float]) -> None:
    """FedCM alone and FedSAM alone are something else."""
    result, _ = federation.train({"name": "mofedsam", "alpha": ALPHA, "rho": 0.5})
    np.testing.assert_allclose(federation.weights(result), by_hand(rho=0.5)[0], rtol=0, atol=1e-12)
    assert np.abs(federation.weights(result) - by_hand(**half)[0]).max() > 1e-3
