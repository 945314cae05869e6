"""How uneven the labels of the clients are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition import Assignment
from fedkeel.errors import InputError


def label_counts(labels: NDArray[np.int64], assignment: Assignment, classes: int) -> NDArray[np.int64]:
    """[clients, classes], samples of each label on each client."""
    held = labels[assignment.indices]
    if len(held) and (held.min() < 0 or held.max() >= classes):
        raise InputError(f"labels: {held.min()} to {held.max()} is not accepted; accepted: 0 to {classes - 1}")
    clients = np.repeat(np.arange(len(assignment)), assignment.sizes)
    counts = np.bincount(clients * classes + held, minlength=len(assignment) * classes)
    return counts.reshape(len(assignment), classes)


def mean_wasserstein(counts: NDArray[np.int64]) -> float:
    """Mean over clients of the Wasserstein-1 distance between their labels and all labels, from 0 to 1.

    The ground metric is 0 between equal labels and 1 between different ones, labels having no order; the
    distance is then the total variation, half the L1 distance (FedAgg, journal version, Fig. 4c). `counts` is
    [clients, classes]; empty clients are left out.
    """
    sizes = counts.sum(axis=1)
    if not sizes.any():
        raise InputError("counts: no samples at all is not accepted; accepted: at least one client with samples")
    held = counts[sizes > 0]
    mixes = held / sizes[sizes > 0, None]
    overall = counts.sum(axis=0) / sizes.sum()
    return float(np.abs(mixes - overall).sum(axis=1).mean() / 2)
