"""Numbers as a page needs them: few digits, few points, and null for what there is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, TypeVar

import numpy as np

DIGITS = 5
"""Significant ones: a screen shows fewer."""

T = TypeVar("T")


def number(value: float | None) -> float | int | None:
    """With few digits; whole numbers stay whole, and what is not finite is null."""
    if value is None or not isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def numbers(values: Iterable[float | None]) -> list[float | int | None]:
    """Each with few digits."""
    return [number(value) for value in values]


def places(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly from the first to the last."""
    return [int(place) for place in np.linspace(0, count - 1, min(count, most)).round()] if count else []


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly from the first to the last."""
    return [values[place] for place in places(len(values), most)]


def plain(value: Any) -> Any:
    """A dataclass's dictionary or the like, with few digits everywhere and without tuples and arrays."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return number(value) if isinstance(value, float) else value
