"""Clients' own models on their own shares of the test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.federated import FederatedData
from fedkeel.local.orders import Executor, Order, Score

AT_ONCE = 64
"""Clients that are fine-tuned together: their models lie in memory side by side."""

Model = tuple[Tensor, Tensor]
"""Weights [D] and buffers [B]."""
Test = Callable[[Tensor, Tensor, Tensor], Score]
"""Of weights and buffers on samples of the test set."""


def client_scores(
    clients: Sequence[int], models: Iterator[Model | None], test: Test, data: FederatedData, seed: int
) -> list[Score | None]:
    """Each client's model on its own share; nothing for a client without one or the other."""
    scores: list[Score | None] = []
    for client, model in zip(clients, models, strict=True):
        share = data.test_share(client, seed)
        scores.append(test(*model, share) if model is not None and len(share) else None)
    return scores


def local_accuracy(models: Sequence[Model], executor: Executor) -> dict[str, float]:
    """Of participants' models as they came back, on the whole test set: mean, standard deviation, lowest, highest."""
    scores = [executor.evaluate(*model).accuracy for model in models]
    return {"mean": float(np.mean(scores)), "std": float(np.std(scores)), "lowest": min(scores), "highest": max(scores)}


def accuracies(scores: Sequence[Score | None]) -> NDArray[np.float64]:
    """NaN for a client that could not be tested."""
    return np.array([np.nan if score is None else score.accuracy for score in scores])


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


def spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    """Mean, standard deviation, and the mean of the worst tenth; nothing if no client could be tested."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return None
    worst = known[: max(1, len(known) // 10)]
    return {"mean": float(known.mean()), "std": float(known.std()), "worst_decile": float(worst.mean())}


def mean_score(scores: Sequence[Score | None]) -> Score:
    """Over the clients that could be tested, each counting alike; there is at least one."""
    known = [score for score in scores if score is not None]
    return Score(float(np.mean([score.accuracy for score in known])), float(np.mean([score.loss for score in known])))
