"""The mini-batches of a stack of clients: who sees which samples in which step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from math import prod

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.data.federated import FederatedData
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import samples_in_epoch, steps, steps_in_epoch

NUMBERED = 256
"""Samples of a client that are told by number at once, where nobody needs them side by side."""
PROXY = 64
"""Samples of others on which a client may try a model."""
GATHERED_BYTES = 1 << 20
"""Of samples that are fetched at once: several small mini-batches, but no more than a cache holds."""


@dataclass
class Samples:
    """Those of a mini-batch: by number among all there are, until somebody needs them side by side."""

    data: tuple[Tensor, Tensor]
    """All samples and targets: x [n, ...] and y [n, ...]; without `which`, x [k, b, ...] and y [k, b, ...]."""
    which: Tensor | None = None
    """[k, b]"""
    weight: Tensor | None = None
    """[k, b], what each sample counts in the loss, where they do not all count alike."""

    @cached_property
    def fetched(self) -> tuple[Tensor, Tensor]:
        """x [k, b, ...] and y [k, b]."""
        x, y = self.data
        if self.which is None:
            return x, y
        flat, shape = self.which.flatten(), self.which.shape
        return tuple(each.index_select(0, flat).view(*shape, *each.shape[1:]) for each in (x, y))  # type: ignore[return-value]

    @property
    def shape(self) -> torch.Size:
        """(k, b)"""
        return (self.data[1] if self.which is None else self.which).shape[:2]

    def split(self, size: int) -> list[Samples]:
        """Mini-batches of so many, and a last one of what is left."""
        cut = partial(torch.split, split_size_or_sections=size, dim=1)
        weights = repeat(None) if self.weight is None else cut(self.weight)
        if self.which is not None:
            return [Samples(self.data, part, weight) for part, weight in zip(cut(self.which), weights, strict=False)]
        return [Samples((x, y), None, weight) for x, y, weight in zip(*map(cut, self.data), weights, strict=False)]

    def pick(self, rows: Tensor) -> Samples:
        """Those of some clients."""
        x, y = self.data
        weight = None if self.weight is None else self.weight[rows]
        if self.which is None:
            return Samples((x[rows], y[rows]), None, weight)
        return Samples(self.data, self.which[rows], weight)


@dataclass(slots=True)
class Batch:
    """Samples of the first k clients, of which gradients are taken; the others are done."""

    samples: Samples
    sizes: NDArray[np.int64]
    """[k], samples of each; the shorter ones are filled up to the longest, b."""
    weights: Tensor
    """[k, b], what each sample counts: one over the mini-batch's size, or over the client's; 0 where it fills up."""
    share: float = 1.0
    """What the first client's weights add up to."""
    epochs: int | NDArray[np.int64] = 0
    """The epoch, from 0, or that of each client [k]; the mini-batch where these are counted (`local.steps`)."""
    places: int | NDArray[np.int64] = 0
    """Which mini-batch of its epoch it is, from 0, or that of each client [k]."""
    masks: int = 0
    """The seed of dropout, where a client is alone."""
    fresh: bool = False
    """Whether its next gradient is the first of a training step, whose loss counts."""

    def pick(self, rows: Tensor) -> Batch:
        """Those of some clients, for a look that leaves no trace."""
        if len(rows) == len(self.sizes):
            return replace(self, fresh=False)
        samples, weights, places = self.samples.pick(rows), self.weights[rows], rows.cpu().numpy()
        return replace(self, samples=samples, weights=weights, sizes=self.sizes[places], fresh=False)

    @property
    def x(self) -> Tensor:
        """[k, b, ...]"""
        return self.samples.fetched[0]

    @property
    def y(self) -> Tensor:
        """[k, b, ...]"""
        return self.samples.fetched[1]

    @property
    def importance(self) -> Tensor | None:
        """[k, b], what each sample counts in the loss; nothing where they all count alike."""
        return self.samples.weight

    @property
    def factors(self) -> Tensor:
        """[k, b], by which the losses of samples are added up."""
        return self.weights if self.importance is None else self.weights * self.importance

    def counted(self, losses: Tensor) -> Tensor:
        """[k, b], each sample's loss as it counts."""
        return losses if self.importance is None else losses * self.importance

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.weights.device


class Batches:
    """Every client walks through its own epochs at its own pace: no client waits for another's epoch to end.

    To be walked through, they must come in descending order of steps, so that those still at work are always the first.
    Draws come from streams named by (seed, wave, client, epoch): a client sees the same mini-batches alone
    as in any stack.
    """

    def __init__(
        self,
        data: FederatedData,
        local: LocalSettings,
        seed: int,
        waves: ArrayLike,
        clients: ArrayLike,
        epochs: ArrayLike,
        dtype: torch.dtype = torch.float32,
        by_number: bool = False,
    ) -> None:
        """`dtype` is that of the weights; `by_number`: whether samples may stay where they lie."""
        self._data = data
        self._by_number = by_number
        self._dtype = dtype
        self._seed = seed
        self._waves, self._clients = np.array(waves), np.array(clients)
        self._sizes: NDArray[np.int64] = data.sizes[self._clients]
        self.epochs: NDArray[np.int64] = np.array(epochs)
        self.by_step = local.by_step
        """Whether what is called an epoch here is a mini-batch, but for the passes through all samples."""
        self.batch, self.steps = steps(self._sizes, self.epochs, local)
        self.a_pass: NDArray[np.int64] = steps_in_epoch(self._sizes, local)
        """[C], steps that lead a client through all its samples, but for those that `local.drop_last` leaves out."""
        self.used: NDArray[np.int64] = samples_in_epoch(self._sizes, local)
        """[C], samples of such a pass."""
        self._own = data.assignment.offsets[self._clients, None]
        self._augment: dict[int, torch.Generator] = {}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[C], samples of each client."""
        return self._sizes

    @property
    def classes(self) -> int:
        """How many classes the data has."""
        return self._data.classes

    @property
    def as_they_lie(self) -> tuple[Tensor, Tensor] | None:
        """All samples and labels there are, where mini-batches are made of them unchanged."""
        x, y = self._data.train.x, self._data.train.y
        changed = self._data.augment or self._data.resize or x.dtype != self._dtype
        return None if changed or x.is_cuda or not x.is_contiguous() else (x, y)

    def order(self, rows: slice, passes: NDArray[np.int64], first: int = 0) -> NDArray[np.int64]:
        """[k, most passes, most samples], which samples these clients see in so many passes [C], in which order."""
        some, count = np.arange(len(self._clients))[rows], passes[rows]
        drawn = np.arange(count.max()) < count[:, None]
        row, place = drawn.nonzero()
        samples = self._shuffled(some[row], first + place)
        if drawn.all():
            return samples.reshape(*drawn.shape, -1)
        order = np.zeros((*drawn.shape, samples.shape[1]), dtype=np.int64)
        order[drawn] = samples
        return order

    def first(self, order: NDArray[np.int64], epoch: int) -> Batch:
        """The first mini-batches of an epoch in which the first clients see their samples in this order [k, n]."""
        sizes = self.batch[: len(order)]
        samples = torch.from_numpy(order[:, : int(sizes.max())])
        weights = self._weights(sizes, sizes, samples.shape[1])
        return Batch(self._samples(samples), sizes, weights, epochs=epoch, fresh=True)

    def __iter__(self) -> Iterator[Batch]:
        if (np.diff(self.steps) > 0).any():
            raise ValueError("the clients of a stack must come in descending order of steps")
        alike = (self._sizes == self._sizes[0]).all() and (self.steps == self.steps[0]).all()
        return self._side_by_side() if alike else self._each_at_its_pace()

    def _side_by_side(self) -> Iterator[Batch]:
        """All clients have as many samples and epochs: their mini-batches are of one size and begin together."""
        everybody = np.arange(len(self._clients))
        size = int(self.batch[0])
        one = size * len(everybody) * prod(self._data.shape) * self._data.train.x.element_size()
        some = size * max(1, GATHERED_BYTES // one) if self._numbered is None else int(self._sizes[0])
        sizes, weights = np.full(0, 0), torch.empty(0, 0)
        count, a_pass = int(self.steps[0]), int(self.a_pass[0])
        for number in range(-(-count // a_pass)):
            masks = self._masks("dropout", number)
            order = torch.from_numpy(self._shuffled(everybody, np.full(len(everybody), number)))
            place, before = 0, number * a_pass
            for which in torch.split(order[:, : min(count - before, a_pass) * size], some, dim=1):
                for samples in self._samples(which).split(size):
                    if weights.shape != samples.shape:
                        sizes = np.full(len(everybody), samples.shape[1])
                        weights = self._weights(sizes, sizes, samples.shape[1])
                    unit, within = (before + place, 0) if self.by_step else (number, place)
                    yield Batch(samples, sizes, weights, 1.0, unit, within, masks ^ place, fresh=True)
                    place += 1

    def _each_at_its_pace(self) -> Iterator[Batch]:
        order = np.empty((len(self._clients), int(self._sizes.max())), dtype=np.int64)
        ragged, weights = False, torch.empty(0, 0)
        for step in range(self.steps[0]):
            active = int((self.steps > step).sum())
            passes, places = np.divmod(step, self.a_pass[:active])
            begin = np.flatnonzero(places == 0)
            if len(begin):
                fresh = self._shuffled(begin, passes[begin])
                order[begin, : fresh.shape[1]] = fresh
            first = places * self.batch[:active]
            sizes = np.minimum(self.batch[:active], self._sizes[:active] - first)
            columns = np.minimum(first[:, None] + np.arange(sizes.max()), self._sizes[:active, None] - 1)
            which = torch.from_numpy(np.take_along_axis(order[:active], columns, axis=1))
            before, ragged = ragged, bool((sizes != sizes[0]).any())
            if ragged or before or weights.shape != which.shape:
                weights = self._weights(sizes, sizes, which.shape[1])
            unit, place = (step, 0) if self.by_step else (passes, places)
            yield Batch(self._samples(which), sizes, weights, 1.0, unit, place, fresh=True)

    def begun(self, limit: int | None) -> NDArray[np.int64]:
        """[C], how many of its epochs each client begins in so many steps."""
        return self.epochs if limit is None else np.minimum(self.epochs, -(-limit // (self.steps // self.epochs)))

    def whole(self, rows: NDArray[np.int64], large: bool = False) -> Iterator[Batch]:
        """All samples of these clients of the stack, as they lie, a mini-batch at a time; who has no more gets size 0.

        The weights of all of them together make the mean of a client's samples. `large`: mini-batches that are told by
        number may be larger than in training.
        """
        sizes, own, each = self._sizes[rows], self._own[rows], int(self.batch[rows].max())
        each = max(each, NUMBERED) if large and self._numbered is not None else each
        for number, first in enumerate(range(0, int(sizes.max()), each)):
            places = np.minimum(first + np.arange(min(each, int(sizes.max()) - first)), sizes[:, None] - 1)
            which = torch.from_numpy(self._data.assignment.indices[own + places])
            samples, some = self._samples(which, augment=False), (sizes - first).clip(0, each)
            weights, masks = self._weights(some, sizes, which.shape[1]), self._masks("full gradient") ^ number
            yield Batch(samples, some, weights, float(some[0] / sizes[0]), masks=masks)

    def proxy(self, rows: NDArray[np.int64], masks: int = 0) -> Batch:
        """A fixed sample of what others have, for each of these clients."""
        indices = self._data.assignment.indices
        drawn = streams.generator(self._seed, "proxy").choice(indices, min(4 * PROXY, len(indices)), replace=False)
        chosen = []
        for row in rows.tolist():
            first = int(self._own[row, 0])
            others = drawn[~np.isin(drawn, indices[first : first + self._sizes[row]])]
            chosen.append(np.resize(others if len(others) else drawn, PROXY))
        samples = self._samples(torch.from_numpy(np.stack(chosen)), augment=False)
        sizes = np.full(len(chosen), PROXY)
        return Batch(samples, sizes, self._weights(sizes, sizes, PROXY), masks=masks)

    def _masks(self, purpose: str, *where: int) -> int:
        """A seed for the dropout of a client that is alone: in a stack, there is none."""
        if len(self._clients) > 1:
            return 0
        return streams.key(self._seed, purpose, int(self._waves[0]), int(self._clients[0]), *where) >> 1

    def _weights(self, sizes: NDArray[np.int64], of: NDArray[np.int64], b: int) -> Tensor:
        """[k, b], 1 / of for the first `sizes` samples of each client, 0 for the rest."""
        device = self._data.train.x.device
        real = torch.arange(b, device=device) < torch.from_numpy(sizes).to(device)[:, None]
        return torch.where(real, 1 / torch.from_numpy(of).to(device)[:, None].double(), 0.0).to(self._dtype)

    @cached_property
    def _numbered(self) -> tuple[Tensor, Tensor] | None:
        """All samples and labels, where mini-batches are told by number."""
        return self.as_they_lie if self._by_number else None

    def _samples(self, which: Tensor, augment: bool = True) -> Samples:
        """By number [k, b]; augmentation is one draw a sample, so it does not matter how many at once."""
        if self._numbered is not None:
            return Samples(self._numbered, which, self._weight(which))
        draws = [self._augment[row] for row in range(len(which))] if augment and self._augment else None
        return Samples(self._data.train_batch(which, draws), None, self._weight(which))

    def _weight(self, which: Tensor) -> Tensor | None:
        """[k, b], what these samples count in the loss."""
        weight = self._data.weight
        return None if weight is None else weight[which.to(weight.device)]

    def _shuffled(self, rows: NDArray[np.int64], passes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples of clients that begin a pass, in a new order; rows of the shorter ones are filled up."""
        where = self._waves[rows], self._clients[rows], passes
        sizes = self._sizes[rows]
        order = streams.permutations(streams.keys(self._seed, "batches", *where), sizes)
        if self._data.augment:
            for row, key in zip(rows.tolist(), streams.keys(self._seed, "augment", *where).tolist(), strict=True):
                self._augment[row] = torch.Generator().manual_seed(key >> 1)
        samples: NDArray[np.int64] = self._data.assignment.indices[
            self._own[rows] + np.minimum(order, sizes[:, None] - 1)
        ]
        return samples
