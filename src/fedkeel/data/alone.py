"""The rows of one client, as they are on its own site."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.datasets import Examples
from fedkeel.data.holdout import renumbered
from fedkeel.data.partition import Assignment
from fedkeel.data.validity import class_labels


class _Shared(Protocol):
    """The parts of a `FederatedData` that belong to clients."""

    @property
    def train(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def assignment(self) -> Assignment: ...
    @property
    def test_rows(self) -> Assignment | None: ...
    @property
    def validation(self) -> Examples | None: ...
    @property
    def validation_rows(self) -> Assignment | None: ...
    @property
    def weight(self) -> Tensor | None: ...

    def __len__(self) -> int: ...
    def test_share(self, client: int, seed: int, on: Literal["test", "validation"] = ...) -> Tensor: ...


def alone(data: _Shared, client: int, seed: int | None) -> dict[str, Any]:
    """The fields that change. The number of clients stays, and with it the client's number in every random stream."""
    rows = owned(data.assignment[client], client, len(data))
    parts: dict[str, Any] = {"site": client, "assignment": renumbered(rows), "train": _some(data.train, rows)}
    held: dict[Literal["test", "validation"], Examples | None] = {"test": data.test, "validation": data.validation}
    for which, samples in held.items():
        if samples is not None:
            whose = data.test_rows if which == "test" else data.validation_rows
            if whose is None and seed is not None and class_labels(data.train) is not None:
                own = data.test_share(client, seed, which).numpy()
            else:
                own = np.zeros(0, np.int64) if whose is None else whose[client]
            mine = owned(own, client, len(data))
            parts |= {which: _some(samples, mine), f"{which}_rows": renumbered(mine)}
    if data.weight is not None:
        parts["weight"] = data.weight[torch.from_numpy(rows.indices)]
    return parts


def owned(rows: NDArray[np.int64], client: int, clients: int) -> Assignment:
    """These rows are this client's; the others have none."""
    offsets = np.zeros(clients + 1, np.int64)
    offsets[client + 1 :] = len(rows)
    return Assignment(rows, offsets)


def _some(samples: Examples, rows: Assignment) -> Examples:
    which = torch.from_numpy(rows.indices)
    return Examples(samples.x[which], samples.y[which])
