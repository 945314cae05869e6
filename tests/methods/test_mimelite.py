"""MimeLite against its rounds written out in numpy, and the traps that other implementations fall into."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedkeel import Experiment, InputError, RoundEnd, run
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector

BETA = 0.8
ALL = {"lr_decay": 0.7, "weight_decay": 0.2, "clip_norm": 0.25}
WRONG = ["at the trained model", "summed over batches", "plain mean", "batch means", "moves", "new momentum"]


def finished(g: Vector, w: Vector, local: dict[str, Any]) -> Vector:
    """Clipped as PyTorch does it, then decayed."""
    return g * min(1.0, local.get("clip_norm", np.inf) / (np.linalg.norm(g) + 1e-6)) + local.get("weight_decay", 0) * w


def full_gradient(at: Vector, client: int, wrong: str | None) -> Vector:
    """Of the mean loss of all that a client has, as it lies."""
    x, y = federation.clients()[client]
    parts = [
        federation.gradient(at, x[i : i + federation.BATCH], y[i : i + federation.BATCH])
        for i in range(0, len(y), federation.BATCH)
    ]
    if wrong == "summed over batches":
        return np.sum(parts, axis=0)
    return np.mean(parts, axis=0) if wrong == "batch means" else federation.gradient(at, x, y)


def by_hand(
    form: str = "paper", server_lr: float = 1.0, local: dict[str, Any] | None = None, wrong: str | None = None
) -> tuple[Vector, Vector]:
    """(x, m); `wrong` names a mistake to make: see `WRONG`."""
    local = local or {}
    new = 1 - BETA if form == "paper" else 1.0
    x = federation.start()
    m = np.zeros_like(x)
    for round_ in range(1, ROUNDS + 1):
        lr = LR * local.get("lr_decay", 1.0) ** (round_ - 1)
        models, gradients, chosen = [], [], federation.chosen(round_)
        for client in chosen:
            w, used = x.copy(), m
            if wrong == "new momentum":
                used = BETA * m + new * finished(full_gradient(x, client, None), x, local)
            for batch in federation.batches(round_, client):
                direction = new * finished(federation.gradient(w, *batch), w, local) + BETA * used
                w = w - lr * direction
                used = direction if wrong == "moves" else used
            models.append(w)
            at = w if wrong == "at the trained model" else x
            gradients.append(finished(full_gradient(at, client, wrong), at, local))
        shares = [SIZES[client] for client in chosen]
        x = x + server_lr * (np.average(models, axis=0, weights=shares) - x)
        m = BETA * m + new * np.average(gradients, axis=0, weights=None if wrong == "plain mean" else shares)
    return x, m


def check(settings: dict[str, Any], executor: str, model: nn.Module | None = None, **hand: Any) -> None:
    algorithm = {"name": "mimelite", "beta": BETA, **settings}
    result, _ = federation.train(algorithm, executor, model, local=hand.get("local", {}))
    x, m = by_hand(**hand)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.simulation.core.model.state.memory["m"], m, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["paper", "fedjax"])
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, form: str) -> None:
    """The model is a chain of layers: stacks have closed forms for it, and whole steps."""
    settings = {"form": form, "server_lr": 0.7}
    check(settings, executor, nn.Sequential(federation.net()), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, *({key: value} for key, value in ALL.items()), ALL])
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_clipping_decay_and_a_falling_rate_by_hand(executor: str, local: dict[str, float]) -> None:
    """The full gradient too is clipped, as a whole, and then decayed."""
    check({}, executor, local=local)
    if local:
        assert np.abs(by_hand(local=local)[0] - by_hand()[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_the_federation_tells_the_method_from_its_usual_mistakes(wrong: str) -> None:
    result, _ = federation.train({"name": "mimelite", "beta": BETA})
    assert np.abs(federation.weights(result) - by_hand(wrong=wrong)[0]).max() > 1e-4


def test_the_first_momentum_is_the_gradient_of_all_samples_at_the_first_model() -> None:
    """Of everybody's, when everybody takes part; how far the clients went does not matter."""
    result, _ = federation.train(
        {"name": "mimelite", "form": "fedjax"}, rounds=1, per_round=federation.N, local={"lr": 2.0}
    )
    x, y = (np.concatenate(parts) for parts in zip(*federation.clients(), strict=True))
    expected = federation.gradient(federation.start(), x, y)
    np.testing.assert_allclose(result.simulation.core.model.state.memory["m"], expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["paper", "fedjax"])
def test_without_momentum_it_is_fedavg(form: str) -> None:
    average, _ = federation.train("fedavg")
    none, _ = federation.train({"name": "mimelite", "beta": 0, "form": form})
    some, _ = federation.train({"name": "mimelite", "beta": 0.5, "form": form})
    np.testing.assert_allclose(federation.weights(none), federation.weights(average), rtol=0, atol=1e-12)
    assert np.abs(federation.weights(some) - federation.weights(average)).max() > 1e-3


def test_local_momentum_is_refused_before_anything_happens(tmp_path: Path) -> None:
    ends: list[RoundEnd] = []
    experiment = Experiment(algorithm="mimelite", local={"momentum": 0.9}, per_round=2)
    with pytest.raises(InputError, match=r"algorithm: mimelite .*local\.momentum=0\.9 .*; set local\.momentum=0$"):
        run(experiment, tmp_path / "run", data=federation.data(), model=federation.net(), progress=ends.append)
    assert not ends
    assert not (tmp_path / "run").exists()


def test_twice_as_much_travels_as_in_fedavg() -> None:
    average, mimic = (federation.train(name)[0].summary for name in ("fedavg", "mimelite"))
    for key in ("bytes_up", "bytes_down"):
        assert mimic[key] == 2 * average[key]
