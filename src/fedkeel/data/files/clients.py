"""Whose each row is: clients by the names that a column, files or folders give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

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


LEFT_OUT = -2
"""The number of clients that are left out."""


def grouped(whose: Sequence[str], partition: Column) -> tuple[dict[str, int], tuple[str, ...]]:
    """The number of the client to which rows of each name belong, or LEFT_OUT; and what the clients are called."""
    names, counts = np.unique(np.array(whose, dtype=object), return_counts=True)
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
    few = len(kept) - 1 if merged else LEFT_OUT
    number = dict.fromkeys(names[rare].tolist(), few)
    number |= {name: client for client, name in enumerate(kept) if not (merged and client == few)}
    return number, tuple(kept)
