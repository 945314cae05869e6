"""Whole numbers in proportion to weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def apportion(total: int, weights: NDArray[np.float64], at_least: int = 0) -> NDArray[np.int64]:
    """Split `total` in proportion to positive `weights`, by largest remainders.

    Every part is its exact quota rounded down or up, ties going to the earlier part. Parts whose quota is
    below `at_least` get that many, and the others share the rest; `total` must be enough for all.
    """
    quota = total * weights / weights.sum()
    low = quota < at_least
    if low.any() and not low.all():
        parts = np.full(len(weights), at_least, dtype=np.int64)
        parts[~low] = apportion(total - at_least * int(low.sum()), weights[~low], at_least)
        return parts
    whole: NDArray[np.int64] = np.floor(quota).astype(np.int64)
    whole[np.argsort(whole - quota, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
