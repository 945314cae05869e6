"""The mini-batches of one client or of a stack of them: who sees which samples in which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.data.federated import FederatedData
from fedkeel.local.settings import LocalSettings

PROXY = 64
"""Samples of others on which a client may try a model."""
GATHERED_BYTES = 1 << 20
"""Of samples that are fetched at once: several small mini-batches, but no more than a cache holds."""


@dataclass(slots=True)
class Batch:
    """One mini-batch of each of the first k clients; the others are done."""

    epochs: int | NDArray[np.int64]
    """The epoch, from 0, or that of each client [k]."""
    places: int | NDArray[np.int64]
    """Which mini-batch of its epoch it is, from 0, or that of each client [k]."""
    sizes: NDArray[np.int64]
    """[k], samples of each."""
    ragged: bool
    """Whether they differ: the shorter ones are then filled up to the longest, b."""
    x: Tensor
    """[k, b, ...]"""
    y: Tensor
    """[k, b]"""


class Batches:
    """Every client walks through its own epochs at its own pace: no client waits for another's epoch to end.

    The clients must come in descending order of steps, so that those still at work are always the first ones.
    Draws come from streams named by (seed, wave, client, epoch): a client sees the same mini-batches alone
    as in any stack.
    """

    def __init__(
        self,
        data: FederatedData,
        local: LocalSettings,
        seed: int,
        waves: Sequence[int],
        clients: Sequence[int],
        epochs: Sequence[int],
    ) -> None:
        self._data = data
        self._seed = seed
        self._waves, self._clients = np.array(waves), np.array(clients)
        self._sizes: NDArray[np.int64] = data.sizes[self._clients]
        self._batch, self.steps = steps(self._sizes, np.array(epochs), local.batch_size)
        if (np.diff(self.steps) > 0).any():
            raise ValueError("the clients of a stack must come in descending order of steps")
        self._own = data.assignment.offsets[self._clients, None]
        self._augment: dict[int, torch.Generator] = {}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[C], samples of each client."""
        return self._sizes

    @property
    def classes(self) -> int:
        """Of the data."""
        return self._data.classes

    def __iter__(self) -> Iterator[Batch]:
        alike = (self._sizes == self._sizes[0]).all() and (self.steps == self.steps[0]).all()
        return self._side_by_side() if alike else self._each_at_its_pace()

    def _side_by_side(self) -> Iterator[Batch]:
        """All clients have as many samples and epochs: their mini-batches are of one size and begin together."""
        everybody = np.arange(len(self._clients))
        size = int(self._batch[0])
        one = size * len(everybody) * prod(self._data.shape) * self._data.train.x.element_size()
        some = size * max(1, GATHERED_BYTES // one)
        for epoch in range(int(self.steps[0]) // -(-int(self._sizes[0]) // size)):
            order = torch.from_numpy(self._shuffled(everybody, np.full(len(everybody), epoch)))
            place = 0
            for samples in torch.split(order, some, dim=1):
                fetched = self._fetch(samples)
                for x, y in zip(*(torch.split(part, size, dim=1) for part in fetched), strict=True):
                    yield Batch(epoch, place, np.full(len(everybody), y.shape[1]), False, x, y)
                    place += 1

    def _each_at_its_pace(self) -> Iterator[Batch]:
        order = np.empty((len(self._clients), int(self._sizes.max())), dtype=np.int64)
        an_epoch = -(-self._sizes // self._batch)
        for step in range(self.steps[0]):
            active = int((self.steps > step).sum())
            epochs, places = np.divmod(step, an_epoch[:active])
            begin = np.flatnonzero(places == 0)
            if len(begin):
                fresh = self._shuffled(begin, epochs[begin])
                order[begin, : fresh.shape[1]] = fresh
            first = places * self._batch[:active]
            sizes = np.minimum(self._batch[:active], self._sizes[:active] - first)
            columns = np.minimum(first[:, None] + np.arange(sizes.max()), self._sizes[:active, None] - 1)
            samples = torch.from_numpy(np.take_along_axis(order[:active], columns, axis=1))
            yield Batch(epochs, places, sizes, bool((sizes != sizes[0]).any()), *self._fetch(samples))

    def whole(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """All samples of these clients of the stack, as they lie, a mini-batch at a time: (sizes [k], x, y).

        Who has no more gets size 0; what fills the rows up belongs to nobody.
        """
        sizes, own, each = self._sizes[rows], self._own[rows], int(self._batch[rows].max())
        for first in range(0, int(sizes.max()), each):
            places = np.minimum(first + np.arange(min(each, int(sizes.max()) - first)), sizes[:, None] - 1)
            samples = torch.from_numpy(self._data.assignment.indices[own + places])
            yield (sizes - first).clip(0, each), *self._data.train_batch(samples)

    def proxy(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """A fixed sample of what others have, for each of these clients: x [k, PROXY, ...], y [k, PROXY]."""
        indices = self._data.assignment.indices
        drawn = streams.generator(self._seed, "proxy").choice(indices, min(4 * PROXY, len(indices)), replace=False)
        chosen = []
        for row in rows.tolist():
            first = int(self._own[row, 0])
            others = drawn[~np.isin(drawn, indices[first : first + self._sizes[row]])]
            chosen.append(np.resize(others if len(others) else drawn, PROXY))
        return self._data.train_batch(torch.from_numpy(np.stack(chosen)))

    def _fetch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Samples by number [k, ...]; augmentation is one draw a sample, so it does not matter how many at once."""
        augment = [self._augment[row] for row in range(len(samples))] if self._augment else None
        return self._data.train_batch(samples, augment)

    def _shuffled(self, rows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples of clients that begin an epoch, in a new order; rows of the shorter ones are filled up."""
        where = self._waves[rows], self._clients[rows], epochs
        sizes = self._sizes[rows]
        order = streams.permutations(streams.keys(self._seed, "batches", *where), sizes)
        if self._data.augment:
            for row, key in zip(rows.tolist(), streams.keys(self._seed, "augment", *where).tolist(), strict=True):
                self._augment[row] = torch.Generator().manual_seed(key >> 1)
        samples: NDArray[np.int64] = self._data.assignment.indices[
            self._own[rows] + np.minimum(order, sizes[:, None] - 1)
        ]
        return samples


def steps(
    sizes: NDArray[np.int64], epochs: NDArray[np.int64], batch_size: int | str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(The largest mini-batch of each client, how many steps its job takes)."""
    batch = sizes if batch_size == "full" else np.minimum(sizes, int(batch_size))
    return batch, -(-sizes // batch) * epochs


def batch_sizes(data: FederatedData, batch_size: int | str) -> list[int]:
    """Every size of mini-batch that occurs, ascending."""
    sizes = data.sizes[data.sizes > 0]
    largest, _ = steps(sizes, np.ones_like(sizes), batch_size)
    return [int(size) for size in np.unique([largest, np.where(sizes % largest, sizes % largest, largest)])]
