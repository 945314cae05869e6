"""Clients' models on their own test rows, or on what is estimated of them from a common test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.federated import FederatedData, Held
from fedkeel.errors import InputError
from fedkeel.local.evaluation import measured
from fedkeel.local.executor import Executor, Score
from fedkeel.record.measured import canonical
from fedkeel.task.task import Task
from fedkeel.wire.orders import Order

AT_ONCE = 64
"""Clients that are fine-tuned together: their models lie in memory side by side."""

Model = tuple[Tensor, Tensor]
"""Weights [D] and buffers [B]."""
Test = Callable[[Tensor, Tensor, Tensor, Held], Score]
"""Of weights and buffers on samples of the test or validation set."""


def client_scores(
    clients: Sequence[int],
    models: Iterator[Model | None],
    test: Test,
    data: FederatedData,
    seed: int,
    on: Held = "test",
) -> list[Score | None]:
    """Each client's own model on its own test or validation rows; nothing for a client without one or the other."""
    scores: list[Score | None] = []
    for client, model in zip(clients, models, strict=True):
        share = data.test_share(client, seed, on)
        scores.append(test(*model, share, on) if model is not None and len(share) else None)
    return scores


def global_scores(
    clients: Sequence[int], outputs: Tensor, task: Task, data: FederatedData, seed: int
) -> list[Score | None]:
    """The same of a model that all have, from its outputs for the whole test set."""
    shares = (data.test_share(client, seed) for client in clients)
    return [measured(task, outputs[share], data.test.y[share]) if len(share) else None for share in shares]


def local_accuracy(models: Sequence[Model], evaluate: Callable[[Tensor, Tensor], Score]) -> dict[str, float]:
    """Of participants' models as they came back, on the whole test set: mean, standard deviation, lowest, highest."""
    scores = [evaluate(*model).metrics["accuracy"] for model in models]
    return {"mean": float(np.mean(scores)), "std": float(np.std(scores)), "lowest": min(scores), "highest": max(scores)}


def column(scores: Sequence[Score | None], metric: str | None = None) -> NDArray[np.float64]:
    """A metric of each client, by default the first; NaN for a client that could not be tested."""
    known = next((score.metrics for score in scores if score is not None), {})
    metric = None if metric is None else canonical(metric)
    if metric is not None and known and metric not in known and metric != "loss":
        raise InputError(f"metric: {metric!r} was not measured; choose one of {', '.join([*known, 'loss'])}")

    def value(score: Score | None) -> float:
        if score is None:
            return np.nan
        return score.first if metric is None else score.loss if metric == "loss" else score.metrics[metric]

    return np.array([value(score) for score in scores], dtype=np.float64)


def columns(scores: Sequence[Score | None], task: Task) -> dict[str, NDArray[np.float64]]:
    """Every metric of each client."""
    return {name: column(scores, name) for name in task.names}


def finetuned(
    models: Sequence[tuple[int, Model]], executor: Executor, data: FederatedData, round: int, lr: Tensor
) -> Iterator[Model | None]:
    """The models of clients after len(lr) more epochs on their own data, or nothing where that diverged.

    `executor` trains by the rule of fine-tuning; mini-batches are drawn as in `round`. Who has no data stays as it is.
    """
    for first in range(0, len(models), AT_ONCE):
        some = models[first : first + AT_ONCE]
        orders = [
            Order(0, client, round, len(lr), w, buffers, lr, {}, {})
            for client, (w, buffers) in some
            if data.sizes[client]
        ]
        trained = executor.train(orders) if orders else None
        row = 0
        for client, model in some:
            if trained is None or not data.sizes[client]:
                yield model
            else:
                yield (trained.w[row], trained.buffers[row]) if trained.finite[row] else None
                row += 1


def spread(values: NDArray[np.float64], better: str = "higher") -> dict[str, float] | None:
    """Mean, standard deviation, and the mean of the worst tenth; nothing if no client could be tested."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return None
    few = max(1, len(known) // 10)
    worst = known[:few] if better == "higher" else known[-few:]
    return {"mean": float(known.mean()), "std": float(known.std()), "worst_decile": float(worst.mean())}


def spreads(found: Mapping[str, NDArray[np.float64]], task: Task) -> dict[str, dict[str, float]]:
    """Of each metric that any client could be tested by."""
    told = {name: spread(values, task.better(name)) for name, values in found.items()}
    return {name: each for name, each in told.items() if each is not None}


def mean_score(scores: Sequence[Score | None]) -> Score:
    """Over the clients that could be tested, each counting alike; there is at least one."""
    known = [score for score in scores if score is not None]
    metrics = {}
    for name in known[0].metrics:
        values = np.array([score.metrics[name] for score in known])
        defined = values[~np.isnan(values)]
        metrics[name] = float(np.mean(defined)) if len(defined) else float("nan")
    return Score(float(np.mean([score.loss for score in known])), metrics)
