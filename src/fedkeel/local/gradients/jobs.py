"""Local training of whole jobs: what a gradient that can do it is told, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.methods.course import Course


@dataclass(frozen=True)
class Jobs:
    """Local training of k clients: whole jobs, or what is left of an epoch."""

    start: Tensor
    """[k, D]"""
    x: Tensor
    """[n, ...], all samples there are."""
    y: Tensor
    """[n]"""
    order: NDArray[np.int64]
    """[k, passes, most samples], which of them a client sees in which order."""
    samples: NDArray[np.int64]
    """[k], of a pass."""
    steps: NDArray[np.int64]
    """[k], mini-batches, no more than `order` has."""
    batch: NDArray[np.int64]
    """[k], the size of a mini-batch."""
    rates: Tensor
    """[k, E], learning rates."""
    each: NDArray[np.int64]
    """[k], steps after which the next one counts."""
    course: Course
    mask: Tensor | None
    """[D] of zeros and ones."""
    decay: float
    clip: float
    """The largest norm of a gradient, or 0."""
    momentum: float
    last: Tensor | None = None
    """[k, D]; with a trail, where its `last` is put as the last step leaves it."""
    past: Tensor | None = None
    """The same for its `past`."""


@dataclass(frozen=True)
class Outcomes:
    """What k jobs came to, beside their weights."""

    loss: NDArray[np.float64]
    """[k], summed over the samples seen."""
    seen: NDArray[np.int64]
    finite: NDArray[np.bool_]


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """Those of all clients."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.loss, part.seen, part.finite) for part in parts), strict=True)
    return Outcomes(*map(np.concatenate, columns))
