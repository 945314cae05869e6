"""Data whose samples are told apart by number, and who sees which of them."""

import numpy as np
import pytest

from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batches


def numbered(sizes: list[int]) -> FederatedData:
    """Sample number n is the vector [n]."""
    x = np.arange(sum(sizes), dtype=np.float32)[:, None]
    parts = np.split(x, np.cumsum(sizes)[:-1])
    return FederatedData.from_clients([(p, np.zeros(len(p), int)) for p in parts], test=(x[:1], [0]))


def walk(batches: Batches) -> list[list[tuple[int, list[float]]]]:
    """For each client the (epoch, samples) of its mini-batches."""
    seen: list[list[tuple[int, list[float]]]] = [[] for _ in batches.steps]
    for batch in batches:
        for row, size in enumerate(batch.sizes):
            epoch = batch.epochs if isinstance(batch.epochs, int) else int(batch.epochs[row])
            seen[row].append((epoch, batch.x[row, :size, 0].tolist()))
            assert len(set(batch.x[row].flatten().tolist())) <= size + 1, "filled up with one sample of its own"
            assert batch.weights[row].tolist() == pytest.approx([1 / size] * size + [0.0] * (batch.y.shape[1] - size))
    return seen
