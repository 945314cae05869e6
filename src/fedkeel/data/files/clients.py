"""Whose each row is: clients by the names that a column, files or folders give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition import Column
from fedkeel.errors import InputError

MERGED = "others"
"""What clients with too few rows are called together."""


def natural(name: str) -> tuple[tuple[int, float, str], ...]:
    """The order in which people count: 2 before 10, ward 2 before ward 10."""
    try:
        return ((0, float(name), ""),)
    except ValueError:
        parts = re.split(r"(\d+)", name)
        return tuple((1, float(part), "") if part.isdecimal() else (2, 0.0, part) for part in parts)


def grouped(whose: Sequence[str], partition: Column) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """[rows], the client of each row, or -1 for rows that are left out; and the clients' names."""
    names, place, counts = np.unique(np.array(whose, dtype=object), return_inverse=True, return_counts=True)
    rare = counts < partition.min_samples
    kept = sorted(names[~rare].tolist(), key=natural)
    merged = partition.rare == "merge" and rare.any()
    if merged:
        kept.append(MERGED if MERGED not in kept else f"{MERGED} (merged)")
    if not kept:
        raise InputError(
            f"partition.min_samples must be at most {counts.max()}, the rows of the largest client; "
            f"got {partition.min_samples}"
        )
    number = {name: client for client, name in enumerate(kept)}
    client = np.array([number.get(name, -1) for name in names.tolist()], np.int64)
    client[rare] = len(kept) - 1 if merged else -1
    return client[place.reshape(-1)], tuple(kept)
