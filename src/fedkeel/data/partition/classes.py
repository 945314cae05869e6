"""A fixed number of classes for each client."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedkeel.data.partition.apportion import apportion
from fedkeel.data.partition.base import Slots
from fedkeel.data.partition.pool import Pool
from fedkeel.errors import InputError


class Classes(Slots):
    """Every client holds samples of exactly P classes, which recur across clients (FedLGA, Li et al., 2023).

    Which classes go together is random; every class has as many holders as any other, up to one, unless it
    has too few samples for that. A class is divided among its holders in proportion to their weights up to
    rounding, at least one sample each. Sizes of clients follow the sizes of their classes, and have the ratio
    ξ on average.
    """

    kind: Literal["classes"] = "classes"
    classes: int = Field(default=2, ge=1)
    """The number of classes that each client holds (P in FedLGA)."""

    def _slots(
        self, labels: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        pool = Pool.of(labels, draw)
        self._check_classes(pool.stock, len(weights))
        held = self._choose(pool.stock, weights, draw)
        return pool.place(_divide(held, pool.stock, weights, draw))

    def _check_classes(self, stock: NDArray[np.int64], clients: int) -> None:
        fewest = -(-len(stock) // clients)
        most = int(np.minimum(stock, clients).sum()) // clients
        if fewest <= self.classes <= most:
            return
        there = f"{clients} clients and {len(stock)} classes of {stock.min()} to {stock.max()} samples"
        if fewest > most:
            raise InputError(f"partition.classes cannot be met with {there}; use fewer clients")
        raise InputError(f"partition.classes must be from {fewest} to {most} with {there}; got {self.classes}")

    def _choose(
        self, stock: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        """[slots, P], the classes of each slot; slots of one weight are spread evenly over the classes."""
        held = np.empty((len(weights), self.classes), dtype=np.int64)
        places = _places(held.size, np.minimum(stock, len(weights)), draw)
        for weight in np.unique(weights):
            slots = np.flatnonzero(weights == weight)
            part = _part(len(slots) * self.classes, places, draw)
            held[slots] = _fill(len(slots), self.classes, part, draw)
            places -= part
        return held


def _places(total: int, most: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
    """[classes], holders of each: `total` dealt as evenly as `most` allows, the odd ones at random."""
    places = np.zeros_like(most)
    while total > 0:
        wanting = draw.permutation(np.flatnonzero(places < most))[:total]
        step = min(total // len(wanting), int((most - places)[wanting].min()))
        places[wanting] += step
        total -= step * len(wanting)
    return places


def _part(total: int, places: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
    """[classes], `total` of the places, in the same proportions."""
    shuffled = draw.permutation(len(places))
    part = np.empty_like(places)
    part[shuffled] = apportion(total, places[shuffled].astype(np.float64))
    return part


def _fill(slots: int, classes: int, places: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
    """[slots, classes], distinct classes for each slot that fill all `places`.

    Always those with the most places left, ties at random: Ryser's construction, which never gets stuck.
    """
    left = places.copy()
    held = np.empty((slots, classes), dtype=np.int64)
    for slot in range(slots):
        held[slot] = np.argsort(draw.random(len(left)) - left)[:classes]
        left[held[slot]] -= 1
    return held


def _divide(
    held: NDArray[np.int64],
    stock: NDArray[np.int64],
    weights: NDArray[np.float64],
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    """[samples], the slot of each sample in the pool's order."""
    holders = np.argsort(held.ravel(), kind="stable") // held.shape[1]
    borders = np.cumsum(np.bincount(held.ravel(), minlength=len(stock)))[:-1]
    owners = []
    for samples, of_class in zip(stock.tolist(), np.split(holders, borders), strict=True):
        shuffled = draw.permutation(of_class)
        owners.append(np.repeat(shuffled, apportion(samples, weights[shuffled], at_least=1)))
    return np.concatenate(owners)
