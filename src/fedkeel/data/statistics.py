"""How uneven the labels of the clients are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition import Assignment
from fedkeel.errors import InputError

MOST_CLIENTS, MOST_CLASSES = 100, 100
"""That a description counts one by one."""
CHUNK = 1_000_000
"""Counts, one for each client and class, that are made at a time: of a million clients, all would take much memory."""


def label_counts(labels: NDArray[np.int64], assignment: Assignment, classes: int) -> NDArray[np.int64]:
    """[clients, classes], samples of each label on each client."""
    held = labels[assignment.indices]
    if len(held) and (held.min() < 0 or held.max() >= classes):
        raise InputError(f"labels must be from 0 to {classes - 1}; got {held.min()} to {held.max()}")
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
        raise InputError("counts must have at least one client with samples; got none")
    held = counts[sizes > 0]
    return float(_distances(held, counts.sum(axis=0) / sizes.sum()).mean())


def _distances(counts: NDArray[np.int64], overall: NDArray[np.float64]) -> NDArray[np.float64]:
    """Total variation between each client's mix of labels and that of all; no client is empty."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    found: NDArray[np.float64] = np.abs(mixes - overall).sum(axis=1) / 2
    return found


def describe_sizes(sizes: NDArray[np.int64]) -> dict[str, Any]:
    """How many samples clients hold, [N], where there are no classes to count."""
    return {
        "clients": len(sizes),
        "least": int(sizes.min()),
        "median": float(np.median(sizes)),
        "most": int(sizes.max()),
    }


def describe_labels(labels: NDArray[np.int64], assignment: Assignment, classes: int) -> dict[str, Any]:
    """Who holds which labels, in plain values: counts of the first clients, and sizes and distances over all."""
    sizes = assignment.sizes
    held = np.bincount(labels[assignment.indices], minlength=classes)
    distance = 0.0
    some = max(1, CHUNK // classes)
    for first in range(0, len(assignment), some):
        counts = label_counts(labels, assignment.some(first, first + some), classes)
        distance += float(_distances(counts[counts.any(axis=1)], held / held.sum()).sum())
    shown = label_counts(labels, assignment.some(0, MOST_CLIENTS), classes)
    return {
        **describe_sizes(sizes),
        "classes": classes,
        "distance": distance / int((sizes > 0).sum()),
        "counts": shown[:, :MOST_CLASSES].tolist(),
    }
