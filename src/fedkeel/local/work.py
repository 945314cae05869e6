"""How much local work is. A job consists of units: epochs or, with `local.steps`, mini-batches.

Mini-batches are those of epochs, one after the other: a client that has seen all its samples begins anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkeel.data.federated import FederatedData
from fedkeel.local.settings import LocalSettings

Numbers = NDArray[np.int64]


def steps(sizes: Numbers, units: ArrayLike, local: LocalSettings) -> tuple[Numbers, Numbers]:
    """(The largest mini-batch of each client, how many steps its job of so many units takes)."""
    batch = _largest(sizes, local.batch_size)
    return batch, np.array(units) * (1 if local.by_step else -(-sizes // batch))


def seen(sizes: Numbers, units: ArrayLike, local: LocalSettings) -> Numbers:
    """How many samples clients with so many go through in so many units, each as often as it comes."""
    if not local.by_step:
        return np.multiply(sizes, units, dtype=np.int64)
    batch = _largest(sizes, local.batch_size).clip(1)
    epochs, rest = np.divmod(units, (-(-sizes // batch)).clip(1))
    samples: Numbers = epochs * sizes + rest * batch
    return samples


def whole_jobs(sizes: Numbers, local: LocalSettings) -> tuple[Numbers, int]:
    """(Samples of each client, how often its job goes through them); those of mini-batches are counted one by one."""
    return (seen(sizes, local.units, local), 1) if local.by_step else (sizes, local.units)


def units_an_epoch(sizes: Numbers, local: LocalSettings) -> NDArray[np.float64]:
    """1; of mini-batches the quotient of samples, which is no whole number where the last one is smaller."""
    return sizes / _largest(sizes, local.batch_size) if local.by_step else np.ones(len(sizes))


def epochs_in(units: int, an_epoch: Any) -> Any:
    """How often so many units lead through all samples, given `units_an_epoch`, of one client or many."""
    epochs, rest = np.divmod(units, np.ceil(an_epoch))
    return epochs + rest / an_epoch


def batch_sizes(data: FederatedData, batch_size: int | str) -> list[int]:
    """Every size of mini-batch that occurs in an epoch, ascending."""
    sizes = data.sizes[data.sizes > 0]
    largest = _largest(sizes, batch_size)
    return [int(size) for size in np.unique([largest, np.where(sizes % largest, sizes % largest, largest)])]


def _largest(sizes: Numbers, batch_size: int | str) -> Numbers:
    return sizes if batch_size == "full" else np.minimum(sizes, int(batch_size))
