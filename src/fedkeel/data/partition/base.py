"""What all partitions share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedkeel import streams
from fedkeel.config.section import Section
from fedkeel.data.partition.assignment import Assignment
from fedkeel.errors import InputError


class Partition(Section, ABC):
    """Deals every sample to one client, or to none: a pure function of labels, number of clients and seed."""

    kind: str
    """The way in which samples are dealt out, or `module:function` of your own."""

    @abstractmethod
    def assign(self, labels: NDArray[np.int64], clients: int, seed: int) -> Assignment:
        """Deal the samples with these labels to `clients`; raises InputError where that is impossible."""


class Slots(Partition):
    """Samples are dealt to slots, which are then given to clients at random.

    So a client's number says nothing about its data. The same seed makes the same clients large, whatever the kind.
    """

    size_ratio: float = Field(default=1.0, ge=1, le=1e6)
    """How many times as many samples a random half of the clients gets as the other half (ξ in FedLGA)."""
    max_size: int | None = Field(default=None, ge=1)
    """The most samples of a client; the rest of its samples is left out at random."""

    def assign(self, labels: NDArray[np.int64], clients: int, seed: int) -> Assignment:
        """Slot by slot, then shuffled; of clients that got more than `max_size`, a random part."""
        check(labels, clients)
        self._check_size(len(labels), clients)
        draw = streams.generator(seed, "partition")
        client_of_slot = draw.permutation(clients)
        weights = draw.permutation(self._weights(clients))
        slots = self._slots(labels, weights, draw)
        dealt = Assignment.from_owner(client_of_slot[slots], clients)
        return dealt if self.max_size is None else dealt.capped(self.max_size, streams.generator(seed, "surplus"))

    @abstractmethod
    def _slots(
        self, labels: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        """[samples], the slot of each; `weights` [slots] say how their sizes should compare."""

    def _check_size(self, samples: int, clients: int) -> None:
        """Refuse what cannot give every client enough; by default that is one sample."""
        if clients > samples:
            raise InputError(f"clients must be at most {samples}, as there are {samples} samples; got {clients}")

    def _weights(self, clients: int) -> NDArray[np.float64]:
        return np.where(np.arange(clients) < clients // 2, self.size_ratio, 1.0)


def check_enough(field: str, per_client: int, samples: int, clients: int) -> None:
    """Refuse a setting that asks for more samples per client than there are."""
    if per_client * clients > samples:
        raise InputError(
            f"{field} must be at most {samples // clients} with {clients} clients and {samples} samples; "
            f"got {per_client}"
        )


def check(labels: NDArray[np.int64], clients: int) -> None:
    """Refuse labels that are none, and a number of clients that is none."""
    if labels.ndim != 1 or len(labels) == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels must be one whole number per sample, for at least one sample; got {labels.dtype} of shape "
            f"{list(labels.shape)}"
        )
    if clients < 1:
        raise InputError(f"clients must be at least 1; got {clients}")
