"""A tiny federation that tests can follow by hand: softmax regression on unequal clients, in numpy.

Sampling and mini-batches are read from the named streams; everything else is written out in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, Result, RoundEnd, run, streams
from fedkeel.params import FlatModel
from tests.helpers.tiers import slow_but

Vector = NDArray[np.float64]

SEED, PER_ROUND, ROUNDS, EPOCHS, BATCH, LR = 5, 3, 4, 2, 4, 0.1
SIZES = [3, 9, 4, 12, 1, 7]
"""Samples of each client: unequal, so unequal steps; one has a single sample."""
N, FEATURES, CLASSES = len(SIZES), 3, 2

EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial"},
    "stack 1": {"kind": "vectorised", "stack": 1, "channels_last": False},
    "stack 3": {"kind": "vectorised", "stack": 3, "channels_last": False},
    "processes": {"kind": "processes", "stack": 0, "channels_last": False, "workers": 2},
    "processes, stack 2": {"kind": "processes", "stack": 2, "channels_last": False, "workers": 2},
}
EVERY_EXECUTOR = slow_but(EXECUTORS, "serial", "stack 3")
"""Parameters of a test: stacks of one and worker processes are left to the slow tier."""


def clients() -> list[tuple[Vector, NDArray[np.int64]]]:
    """(x [n, 3], y [n]) of each client, exactly as float32 holds them."""
    rng = np.random.default_rng(1)
    drawn = [(rng.normal(size=(n, FEATURES)), rng.integers(0, CLASSES, n)) for n in SIZES]
    return [(x.astype(np.float32).astype(np.float64), y) for x, y in drawn]


def data() -> FederatedData:
    """The same for fedkeel, tested on client 3's samples."""
    return FederatedData.from_clients(clients(), test=clients()[3])


def net(*hidden: int) -> nn.Module:
    """A bias-free linear model, or one with hidden ReLU layers; always the same weights."""
    torch.manual_seed(0)
    widths = [FEATURES, *hidden, CLASSES]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=False), nn.ReLU()]
    return layers[0] if not hidden else nn.Sequential(*layers[:-1])


def start() -> Vector:
    """The weights of `net()`, flat."""
    weight = net().weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().double().numpy().flatten()


def gradient(w: Vector, x: Vector, y: NDArray[np.int64]) -> Vector:
    """Of the mean cross-entropy of softmax(x W^T), W = w [2, 3], in closed form."""
    logits = x @ w.reshape(CLASSES, FEATURES).T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return (p.T @ x / len(y)).flatten()


def chosen(round: int, per_round: int = PER_ROUND) -> list[int]:
    """Who takes part in a round."""
    return sorted(streams.generator(SEED, "sampling", round).choice(N, per_round, replace=False).tolist())


def batches(round: int, client: int, epochs: int = EPOCHS, batch: int = BATCH) -> Iterator[tuple[Vector, Any]]:
    """A client's mini-batches (x, y) of a round, in order."""
    x, y = clients()[client]
    for epoch in range(epochs):
        order = streams.permutations(streams.keys(SEED, "batches", round, client, epoch), len(y))[0]
        for first in range(0, len(y), batch):
            part = order[first : first + batch]
            yield x[part], y[part]


def train(
    algorithm: Any, executor: str = "serial", model: nn.Module | None = None, **settings: Any
) -> tuple[Result, list[RoundEnd]]:
    """fedkeel's run of that federation in float64, and its rounds; `local` settings are merged into its own."""
    ends: list[RoundEnd] = []
    given = settings.pop("local", {})
    local = {**({} if "steps" in given else {"epochs": EPOCHS}), "batch_size": BATCH, "lr": LR, **given}
    experiment = Experiment(
        **{"seed": SEED, "rounds": ROUNDS, "per_round": PER_ROUND, "dtype": "float64", **settings},
        algorithm=algorithm,
        executor=EXECUTORS[executor],
        local=local,
    )
    return run(experiment, data=data(), model=model or net(), progress=ends.append), ends


def weights(result: Result) -> Vector:
    """The final model's, flat."""
    return np.concatenate([p.detach().numpy().flatten() for p in result.model.parameters()])


def models(result: Result) -> Tensor:
    """The global model and every client's own, one below the other."""
    everybody = [result.model, *(result.client_model(client) for client in range(N))]
    return torch.stack([FlatModel(net).w for net in everybody])


def beside_empty_clients(algorithm: dict[str, Any], empty: int) -> Vector:
    """Three rounds with all clients that have data, after so many others were listed that have none."""
    nobody = [(np.zeros((0, FEATURES)), np.zeros(0, dtype=np.int64))] * empty
    data = FederatedData.from_clients([*clients(), *nobody], test=clients()[3])
    local = {"epochs": 2, "batch_size": 4, "lr": LR}
    experiment = Experiment(
        algorithm=algorithm, rounds=3, per_round=N, dtype="float64", local=local, executor=EXECUTORS["serial"]
    )
    return weights(run(experiment, data=data, model=net()))


def normed(dropout: float = 0.0) -> nn.Module:
    """A model with batch normalisation and dropout; always the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4, CLASSES)
    )
