"""Samples dealt out by a partition, whatever their targets are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.config.section import Section, make
from fedkeel.data.partition import AnyPartition, Assignment, Partition
from fedkeel.errors import InputError


class _Dealt(Section):
    partition: AnyPartition


def as_partition(given: Partition | str | dict[str, Any]) -> Partition:
    """A partition that is given by its kind or its settings."""
    return make(_Dealt, {"partition": given}).partition


def deal(partition: Partition, labels: NDArray[np.int64] | None, samples: int, clients: int, seed: int) -> Assignment:
    """Deal so many samples to clients; without class labels, only where labels do not matter."""
    if labels is None and partition.kind not in ("iid", "column"):
        raise InputError(
            f"partition.kind={partition.kind} needs one class label per sample, which these targets are not; use iid, "
            "or give each client its own data"
        )
    return partition.assign(np.zeros(samples, dtype=np.int64) if labels is None else labels, clients, seed)
