"""mine against its own equations, written out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedkeel import Experiment, FederatedData, run

MU, BETA, LR, EPOCHS, ROUNDS = 0.5, 0.8, 0.1, 3, 4


def clients() -> list[tuple[Any, Any]]:
    """Three clients of unequal size: samples x [n, 3] and labels y [n]."""
    rng = np.random.default_rng(0)
    return [(rng.integers(-2, 3, (n, 3)).astype(float), rng.integers(0, 2, n)) for n in (4, 6, 9)]


def gradient(w: Any, x: Any, y: Any) -> Any:
    """Of the mean cross-entropy of softmax(x W^T), W = w [2, 3], in closed form."""
    p = np.exp(x @ w.T)
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ x / len(y)


def trained(w: Any, x: Any, y: Any) -> Any:
    """A client's weights after its epochs of one step each on all its samples."""
    local = w.copy()
    for _ in range(EPOCHS):
        local -= LR * (gradient(local, x, y) + MU * (local - w))
    return local


def test_rounds_by_hand() -> None:
    """The same rounds in fedkeel and in numpy end at the same weights."""
    model = torch.nn.Linear(3, 2, bias=False)
    w = model.weight.detach().double().numpy().copy()
    v = np.zeros_like(w)
    sizes = np.array([len(y) for _, y in clients()])
    for _ in range(ROUNDS):
        updates = [trained(w, x, y) - w for x, y in clients()]
        v = BETA * v + np.average(updates, axis=0, weights=sizes)
        w = w + v

    experiment = Experiment(
        algorithm={"name": "mine:mine", "mu": MU, "beta": BETA},
        rounds=ROUNDS,
        local={"epochs": EPOCHS, "batch_size": "full", "lr": LR},
        dtype="float64",
        executor="serial",
    )
    result = run(experiment, data=FederatedData.from_clients(clients(), test=clients()[0]), model=model)
    np.testing.assert_allclose(next(result.model.parameters()).detach().numpy(), w, rtol=0, atol=1e-12)
