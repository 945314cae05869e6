"""How much local work is. A job consists of units: epochs or, with `local.steps`, mini-batches.

Mini-batches are those of epochs, one after the other: a client that has seen all its samples begins anew. With
`local.drop_last`, an epoch ends before a last mini-batch that would be shorter than the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkeel.data.federated import FederatedData
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.client import ClientRule

Numbers = NDArray[np.int64]


def steps(sizes: Numbers, units: ArrayLike, local: LocalSettings) -> tuple[Numbers, Numbers]:
    """(The largest mini-batch of each client, how many steps its job of so many units takes)."""
    count = np.array(units, dtype=np.int64)
    return _largest(sizes, local), count if local.by_step else count * steps_in_epoch(sizes, local)


def steps_in_epoch(sizes: Numbers, local: LocalSettings) -> Numbers:
    """Mini-batches of an epoch of each client."""
    batch = _largest(sizes, local).clip(1)
    count: Numbers = sizes // batch if local.drop_last else -(-sizes // batch)
    return count


def samples_in_epoch(sizes: Numbers, local: LocalSettings) -> Numbers:
    """How many samples of each client an epoch leads through: all, or those of whole mini-batches."""
    return steps_in_epoch(sizes, local) * _largest(sizes, local) if local.drop_last else sizes


def seen(sizes: Numbers, units: ArrayLike, local: LocalSettings) -> Numbers:
    """How many samples clients with so many go through in so many units, each as often as it comes."""
    an_epoch = samples_in_epoch(sizes, local)
    if not local.by_step:
        return np.multiply(an_epoch, units, dtype=np.int64)
    epochs, rest = np.divmod(units, steps_in_epoch(sizes, local).clip(1))
    samples: Numbers = epochs * an_epoch + rest * _largest(sizes, local).clip(1)
    return samples


def whole_jobs(sizes: Numbers, local: LocalSettings) -> tuple[Numbers, int]:
    """(Samples of each client, how often its job goes through them); those of mini-batches are counted one by one."""
    return (seen(sizes, local.units, local), 1) if local.by_step else (samples_in_epoch(sizes, local), local.units)


def survey_samples(sizes: Numbers, survey: ClientRule, local: LocalSettings) -> Numbers:
    """How many samples clients with so many go through to answer a survey."""
    batch, _ = steps(sizes, 1, local)
    whole = seen(sizes, local.units, local)
    return whole if survey.limit is None else sizes if survey.whole else np.minimum(batch * survey.limit, whole)


def units_an_epoch(sizes: Numbers, local: LocalSettings) -> NDArray[np.float64]:
    """1; of mini-batches the quotient of samples, which is no whole number where the last one is smaller."""
    return samples_in_epoch(sizes, local) / _largest(sizes, local) if local.by_step else np.ones(len(sizes))


def epochs_in(units: int, an_epoch: Any) -> Any:
    """How often so many units lead through all samples, given `units_an_epoch`, of one client or many."""
    epochs, rest = np.divmod(units, np.ceil(an_epoch))
    return epochs + rest / an_epoch


def batch_sizes(data: FederatedData, local: LocalSettings) -> list[int]:
    """Every size of mini-batch that occurs in an epoch, ascending."""
    sizes = data.sizes[data.sizes > 0]
    largest = _largest(sizes, local)
    rest = samples_in_epoch(sizes, local) % largest
    return [int(size) for size in np.unique([largest, np.where(rest, rest, largest)])]


def _largest(sizes: Numbers, local: LocalSettings) -> Numbers:
    return sizes if local.batch_size == "full" else np.minimum(sizes, local.batch_size)
