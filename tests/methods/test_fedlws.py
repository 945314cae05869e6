"""FedLWS against its equations written out in numpy, layer by layer and round by round."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import Experiment, FederatedData, Result, run
from fedkeel.methods.fedlws import Shrinking
from fedkeel.methods.job import Updates
from fedkeel.methods.server import ServerState
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector

SAMPLES = [2, 5, 9]
LAYERS = [slice(0, 16), slice(16, 26)]  # Linear(3, 4) and Linear(4, 2), weight and bias together


def shrunk(
    old: Vector,
    models: Vector,
    samples: list[int],
    layers: list[slice],
    beta: float = 0.03,
    tau_min: float = 0.01,
    tau_max: float = 0.2,
    divergence: str = "distance",
) -> tuple[Vector, list[float]]:
    """The new weights, and each layer's beta times divergence before it is clipped."""
    mean = np.average(models, axis=0, weights=samples)
    new, raw = mean.copy(), []
    for layer in layers:
        moves = [w[layer] - old[layer] for w in models]
        centre = sum(moves) / len(moves)
        distances = [np.sqrt(np.sum((move - centre) ** 2)) for move in moves]
        powers = [d**2 if divergence == "variance" else d for d in distances]
        raw.append(beta * sum(powers) / len(powers))
        tau = min(max(raw[-1], tau_min), tau_max)
        norm, step = np.sqrt(np.sum(old[layer] ** 2)), np.sqrt(np.sum((mean[layer] - old[layer]) ** 2))
        new[layer] = norm / (norm + tau * step) * mean[layer]
    return new, raw


def aggregated(old: Vector, models: Vector, **settings: Any) -> tuple[Vector, Vector]:
    """By fedkeel's rule: the new weights, and the share of each client."""
    layout = Layout.of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    w, samples, ones = torch.tensor(models), torch.tensor(SAMPLES)[:, None], torch.ones(len(SAMPLES), 1)
    updates = Updates(w, torch.tensor(old).expand(3, -1), samples, ones, ones, ones, {}, layout)
    state, shares = Shrinking(**settings).aggregate(ServerState(torch.tensor(old)), updates)
    return state.w.numpy(), shares.numpy()


def vectors(size: float) -> tuple[Vector, Vector]:
    """Old weights, and models that lie about so far from them; the second layer's move more than the first's."""
    rng = np.random.default_rng(8)
    moves = rng.normal(0, size, (3, 26))
    moves[:, LAYERS[1]] *= 3
    old = rng.normal(size=26)
    return old, old + moves


@pytest.mark.parametrize(
    ("size", "settings", "where"),
    [
        (0.4, {}, "between"),
        (0.01, {}, "below"),
        (9.0, {}, "above"),
        (0.3, {"divergence": "variance"}, "between"),
        (0.02, {"divergence": "variance"}, "below"),
        (4.0, {"divergence": "variance"}, "above"),
        (0.02, {"beta": 0.7, "tau_min": 0.001}, "between"),
        (1.0, {"beta": 0.7, "tau_max": 0.9, "tau_min": 0.4}, "above"),
        (0.4, {"beta": 0.0, "tau_min": 0.15}, "below"),
    ],
)
def test_layers_by_hand(size: float, settings: dict[str, Any], where: str) -> None:
    old, models = vectors(size)
    expected, raw = shrunk(old, models, SAMPLES, LAYERS, **settings)
    low, high = settings.get("tau_min", 0.01), settings.get("tau_max", 0.2)
    for divergence in raw:  # the case shows what it is meant to show
        assert {"below": divergence < low, "between": low < divergence < high, "above": divergence > high}[where]
    got, shares = aggregated(old, models, **settings)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(shares, np.array(SAMPLES) / 16, rtol=1e-12)


def test_every_layer_is_the_sample_weighted_mean_shrunk_by_a_factor_of_its_own() -> None:
    old, models = vectors(0.4)
    got, _ = aggregated(old, models)
    ratio = got / np.average(models, axis=0, weights=SAMPLES)
    gammas = [ratio[layer][0] for layer in LAYERS]
    for gamma, layer in zip(gammas, LAYERS, strict=True):
        np.testing.assert_allclose(ratio[layer], gamma, rtol=1e-12)
        assert 0.5 < gamma < 0.999
    assert abs(gammas[0] - gammas[1]) > 1e-3


@pytest.mark.parametrize("moved", [1.0, 0.0])
def test_a_layer_of_zeros_is_the_mean_as_it_is(moved: float) -> None:
    """Neither NaN nor frozen, whether it moved or not: it has no norm that shrinking could keep."""
    old, models = vectors(0.4)
    old[LAYERS[1]] = 0
    models[:, LAYERS[1]] *= moved
    expected, _ = shrunk(old, models, SAMPLES, LAYERS[:1])  # the other layer shrinks as ever
    np.testing.assert_allclose(aggregated(old, models)[0], expected, rtol=1e-12)


def test_a_model_that_starts_at_zero_learns() -> None:
    model = federation.net()
    nn.init.zeros_(next(model.parameters()))
    result, _ = federation.train("fedlws", model=model)
    assert np.isfinite(federation.weights(result)).all()
    assert np.abs(federation.weights(result)).max() > 0.01


def by_hand(mu: float = 0.0, **settings: Any) -> tuple[Vector, list[float]]:
    """Final weights, and every round's beta times divergence."""
    x, raws = federation.start(), []
    for round_ in range(1, ROUNDS + 1):
        models = []
        for client in federation.chosen(round_):
            w = x.copy()
            for batch in federation.batches(round_, client):
                w = w - LR * (federation.gradient(w, *batch) + mu * (w - x))
            models.append(w)
        sizes = [SIZES[client] for client in federation.chosen(round_)]
        x, raw = shrunk(x, np.array(models), sizes, [slice(0, len(x))], **settings)
        raws += raw
    return x, raws


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    result, _ = federation.train({"name": "fedlws", "beta": 0.4}, executor)
    expected, raw = by_hand(beta=0.4)
    assert all(0.01 < divergence < 0.2 for divergence in raw)
    np.testing.assert_allclose(federation.weights(result), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_defaults_variance_and_another_client_rule() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"divergence": "variance", "beta": 1.0, "tau_min": 0.0}, {}),
        ({}, {"client": "fedprox", "mu": 0.7}),
    ]
    outcomes = [federation.weights(federation.train("fedavg")[0])]
    for settings, client in cases:
        result, _ = federation.train({"name": "fedlws", **settings, **client})
        expected, _ = by_hand(client.get("mu", 0.0), **settings)
        np.testing.assert_allclose(federation.weights(result), expected, rtol=0, atol=1e-12)
        assert all(np.abs(expected - other).max() > 1e-4 for other in outcomes)
        outcomes.append(expected)


def normed(algorithm: Any) -> tuple[Result, Vector, Vector]:
    """One round with batch norm on clients of 4, 6 and 8 samples: result, weights before and after it."""
    rng = np.random.default_rng(2)
    clients = [(rng.normal(i, 1 + i, (n, 3)), rng.integers(0, 2, n)) for i, n in enumerate([4, 6, 8])]
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    before = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    local = {"epochs": 2, "batch_size": 2, "lr": LR}
    experiment = Experiment(
        algorithm=algorithm, rounds=1, per_round=3, dtype="float64", local=local, executor={"kind": "serial"}
    )
    result = run(experiment, data=FederatedData.from_clients(clients, test=clients[0]), model=model)
    return result, before, federation.weights(result)


def test_buffers_neither_shrink_nor_enter_a_norm() -> None:
    """With one tau for all layers, FedAvg's mean of the same updates tells each layer's factor."""
    average, old, mean = normed("fedavg")
    shrinking, _, got = normed({"name": "fedlws", "beta": 0, "tau_min": 0.2})
    buffers = dict(average.model.named_buffers())
    assert set(buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for name, buffer in shrinking.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert (buffers["1.running_mean"].abs() > 1e-3).all()  # so that shrinking would show
    assert average.summary["bytes_up"] == shrinking.summary["bytes_up"]
    assert average.summary["bytes_down"] == shrinking.summary["bytes_down"]
    for layer in (slice(0, 16), slice(16, 24), slice(24, 34)):  # linear, batch norm, linear
        norm, step = np.linalg.norm(old[layer]), np.linalg.norm(mean[layer] - old[layer])
        np.testing.assert_allclose(got[layer], norm / (norm + 0.2 * step) * mean[layer], rtol=1e-11)
        assert step > 1e-3
