"""The mini-batches of one client or of a stack of them: who sees which samples in which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.data.federated import FederatedData
from fedkeel.experiment import LocalSettings


@dataclass(frozen=True)
class Batch:
    """One mini-batch of each of the first k clients; the others are done."""

    epochs: NDArray[np.int64]
    """[k], the epoch each is in, from 0."""
    places: NDArray[np.int64]
    """[k], which mini-batch of its epoch it is, from 0."""
    sizes: NDArray[np.int64]
    """[k], samples of each; where they differ, the shorter ones are filled up to the longest, b."""
    x: Tensor
    """[k, b, ...]"""
    y: Tensor
    """[k, b]"""

    @property
    def ragged(self) -> bool:
        """Whether some client's mini-batch is filled up."""
        return bool((self.sizes != self.sizes[0]).any())


class Batches:
    """Every client walks through its own epochs at its own pace: no client waits for another's epoch to end.

    The clients must come in descending order of steps, so that those still at work are always the first ones.
    Draws come from streams named by (seed, round, client, epoch): a client sees the same mini-batches alone
    as in any stack.
    """

    def __init__(
        self,
        data: FederatedData,
        local: LocalSettings,
        seed: int,
        rounds: Sequence[int],
        clients: Sequence[int],
        epochs: Sequence[int],
    ) -> None:
        self._data = data
        self._seed = seed
        self._rounds, self._clients = np.array(rounds), np.array(clients)
        self._sizes = data.sizes[self._clients]
        self._batch, self.steps = steps(self._sizes, np.array(epochs), local.batch_size)
        if (np.diff(self.steps) > 0).any():
            raise ValueError("the clients of a stack must come in descending order of steps")
        self._order = np.empty((len(self._clients), int(self._sizes.max())), dtype=np.int64)
        self._augment: dict[int, torch.Generator] = {}

    def __iter__(self) -> Iterator[Batch]:
        an_epoch = -(-self._sizes // self._batch)
        for step in range(self.steps[0]):
            active = int((self.steps > step).sum())
            epochs, places = np.divmod(step, an_epoch[:active])
            begin = np.flatnonzero(places == 0)
            if len(begin):
                self._shuffle(begin, epochs[begin])
            first = places * self._batch[:active]
            sizes = np.minimum(self._batch[:active], self._sizes[:active] - first)
            columns = np.minimum(first[:, None] + np.arange(sizes.max()), self._sizes[:active, None] - 1)
            samples = torch.from_numpy(np.take_along_axis(self._order[:active], columns, axis=1))
            x, y = self._data.train_batch(samples, [self._augment[i] for i in range(active)] if self._augment else None)
            yield Batch(epochs, places, sizes, x, y)

    def _shuffle(self, rows: NDArray[np.int64], epochs: NDArray[np.int64]) -> None:
        """New orders for clients that begin an epoch."""
        where = self._rounds[rows], self._clients[rows], epochs
        sizes = self._sizes[rows]
        order = streams.permutations(streams.keys(self._seed, "batches", *where), sizes)
        assignment = self._data.assignment
        own = assignment.offsets[self._clients[rows], None] + np.minimum(order, sizes[:, None] - 1)
        self._order[rows, : own.shape[1]] = assignment.indices[own]
        if self._data.augment:
            for row, key in zip(rows.tolist(), streams.keys(self._seed, "augment", *where).tolist(), strict=True):
                self._augment[row] = torch.Generator().manual_seed(key >> 1)


def steps(
    sizes: NDArray[np.int64], epochs: NDArray[np.int64], batch_size: int | str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(The largest mini-batch of each client, how many steps its job takes)."""
    batch = sizes if batch_size == "full" else np.minimum(sizes, int(batch_size))
    return batch, -(-sizes // batch) * epochs
