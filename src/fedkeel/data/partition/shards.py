"""Slices of the samples sorted by label."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedkeel.data.partition.apportion import apportion
from fedkeel.data.partition.base import Slots, check_enough
from fedkeel.data.partition.pool import Pool


class Shards(Slots):
    """Samples sorted by label, cut into shards, a few for each client at random (McMahan et al., 2017).

    The "pathological" partition. A shard may run over the border of two classes, and a client's shards may be
    of the same class. Client sizes are proportional to the weights up to rounding, at least one sample a
    shard, and a client's shards differ by at most one sample: with `size_ratio` 1 so do all shards and all
    clients.
    """

    kind: Literal["shards"] = "shards"
    shards_per_client: int = Field(default=2, ge=1)
    """The number of shards that each client gets; the fewer, the fewer classes a client has."""

    def _check_size(self, samples: int, clients: int) -> None:
        super()._check_size(samples, clients)
        check_enough("partition.shards_per_client", self.shards_per_client, samples, clients)

    def _slots(
        self, labels: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        pool = Pool.of(labels, draw)
        sizes = self._shard_sizes(len(labels), weights)
        dealt = draw.permutation(sizes.size)
        return pool.place(np.repeat(dealt // self.shards_per_client, sizes.ravel()[dealt]))

    def _shard_sizes(self, samples: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        """[slots, shards_per_client]."""
        sizes = apportion(samples, weights, at_least=self.shards_per_client)[:, None]
        extra = np.arange(self.shards_per_client) < sizes % self.shards_per_client
        return sizes // self.shards_per_client + extra
