"""FedCos against cosines and rounds written out in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedkeel.methods.fedcos import CosineAverage, cosine_weights
from fedkeel.methods.job import Updates
from fedkeel.methods.server import ServerState
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector


def shares(models: Vector, start: Vector) -> Vector:
    """By numpy: the angle's cosine, no less than 0; alike where nobody has one."""
    cosines = []
    for model in models:
        lengths = np.sqrt(np.sum(model**2)) * np.sqrt(np.sum(start**2))
        cosines.append(max(0.0, float(np.sum(model * start) / lengths)) if lengths else 0.0)
    total = sum(cosines)
    return np.array([cosine / total if total else 1 / len(models) for cosine in cosines])


def weights(models: Any, start: Any) -> Vector:
    found: Vector = cosine_weights(torch.tensor(models, dtype=torch.float64), torch.tensor(start).double()).numpy()
    return found


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_weights_are_numpys(seed: int, count: int) -> None:
    """Of models on all sides, some of them zero."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(count, 3)) * rng.integers(0, 3, (count, 1)) * 10 ** rng.uniform(-3, 3, (count, 1))
    start = rng.normal(size=3)
    found = weights(models, start)
    np.testing.assert_allclose(found, shares(models, start), rtol=0, atol=1e-12)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()


@pytest.mark.parametrize(
    ("models", "start", "expected"),
    [
        ([[2, 0], [3, 3]], [1, 0], [2**0.5 / (1 + 2**0.5), 1 / (1 + 2**0.5)]),
        ([[2, 0], [-1, 5], [0, 7]], [1, 0], [1, 0, 0]),
        ([[0, 0], [1, 0]], [3, 0], [0, 1]),
        ([[-1, 0], [-2, 1]], [1, 0], [0.5, 0.5]),
        ([[1, 0], [0, 1], [0, 0]], [0, 0], [1 / 3, 1 / 3, 1 / 3]),
        ([[0, 0], [0, 0]], [1, 0], [0.5, 0.5]),
    ],
)
def test_weights_of_simple_models(models: list[list[float]], start: list[float], expected: list[float]) -> None:
    """Lengths do not count; who points away, across or nowhere has no weight unless all do."""
    np.testing.assert_allclose(weights(models, start), expected, rtol=1e-12)


@given(st.integers(0, 10_000), st.floats(-8, 8), st.floats(-8, 8))
def test_scales_do_not_matter(seed: int, first: float, second: float) -> None:
    rng = np.random.default_rng(seed)
    models, start = rng.normal(size=(4, 3)), rng.normal(size=3)
    scaled = models * np.array([[10**first], [1], [10**second], [1]])
    np.testing.assert_allclose(weights(scaled, start * 10**second), weights(models, start), rtol=1e-9, atol=1e-12)


def by_hand(server_lr: float = 1.0, local: dict[str, Any] | None = None) -> tuple[Vector, list[Vector]]:
    local = local or {}
    x, history = federation.start(), []
    for round_ in range(1, ROUNDS + 1):
        models = []
        for client in federation.chosen(round_):
            w, v = x, np.zeros_like(x)
            for batch in federation.batches(round_, client):
                v = local.get("momentum", 0) * v + federation.gradient(w, *batch)
                w = w - local.get("lr", LR) * local.get("lr_decay", 1) ** (round_ - 1) * v
            models.append(w)
        theta = shares(np.array(models), x)
        x = x + server_lr * (theta @ np.array(models) - x)
        history.append(theta)
    return x, history


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, server_lr: float) -> None:
    result, ends = federation.train(
        {"name": "fedcos", "server_lr": server_lr}, executor, nn.Sequential(federation.net())
    )
    x, history = by_hand(server_lr)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    found = [[arrival.weight for arrival in end.arrivals] for end in ends]
    np.testing.assert_allclose(found, history, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local", [{"lr": 3.0}, {"momentum": 0.7, "lr_decay": 0.8, "lr": 1.0}])
def test_models_that_turn_away_by_hand(local: dict[str, Any]) -> None:
    """At such rates some models come back with a cosine below 0, and are left out."""
    result, _ = federation.train("fedcos", "stack 3", local=local)
    x, history = by_hand(local=local)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-9)
    assert min(theta.min() for theta in history) == 0


def test_sizes_of_clients_do_not_count() -> None:
    _, history = by_hand()
    sizes = np.array([SIZES[client] for client in federation.chosen(1)])
    assert np.abs(history[0] - sizes / sizes.sum()).max() > 0.1
    assert np.abs(federation.weights(federation.train("fedavg")[0]) - by_hand()[0]).max() > 1e-3


def test_who_was_drawn_twice_counts_twice() -> None:
    start, models = np.array([1.0, 0, 0, 0, 0, 0]), np.eye(6)[:3]
    models[:, 0] = [2, 1, 1]
    ones = torch.ones(3, 1)
    updates = Updates(
        torch.tensor(models),
        torch.tensor(start).expand(3, -1),
        ones,
        ones,
        ones,
        ones,
        {},
        Layout.of(federation.net()),
        draws=torch.tensor([2, 1, 3]),
    )
    state, found = CosineAverage(server_lr=0.5).aggregate(ServerState(torch.tensor(start)), updates)
    cosines = np.array([2 * 1, 1 * 0.5**0.5, 3 * 0.5**0.5])
    np.testing.assert_allclose(found, cosines / cosines.sum(), rtol=1e-12)
    np.testing.assert_allclose(state.w, start + 0.5 * (cosines / cosines.sum() @ models - start), rtol=1e-12)


def test_nothing_more_travels_than_in_fedavg() -> None:
    plain, cosine = (federation.train(name)[0].summary for name in ("fedavg", "fedcos"))
    assert [cosine[key] for key in ("bytes_up", "bytes_down")] == [plain[key] for key in ("bytes_up", "bytes_down")]
