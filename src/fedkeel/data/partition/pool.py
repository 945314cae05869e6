"""All samples before they are dealt out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pool:
    """All samples, class after class, in random order inside a class."""

    order: NDArray[np.int64]
    """[samples], sample numbers."""
    stock: NDArray[np.int64]
    """[classes], samples of each class that has any."""

    @classmethod
    def of(cls, labels: NDArray[np.int64], draw: np.random.Generator) -> Pool:
        """Group the samples by label."""
        _, classes, stock = np.unique(labels, return_inverse=True, return_counts=True)
        shuffled = draw.permutation(len(labels))
        # Numpy sorts integers of up to 16 bits in linear time.
        narrow = classes.astype(np.min_scalar_type(len(stock)))
        return cls(shuffled[np.argsort(narrow[shuffled], kind="stable")], stock)

    def place(self, owners: NDArray[np.int64]) -> NDArray[np.int64]:
        """Owners in the pool's order, put into the order of the labels."""
        placed = np.empty_like(owners)
        placed[self.order] = owners
        return placed
