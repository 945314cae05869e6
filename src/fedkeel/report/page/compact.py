"""Numbers as a page needs them: few digits, few points, and null for what there is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, TypeVar

import numpy as np

DIGITS = 5
"""Significant ones: a screen shows fewer."""
EXACT = 10
"""The same of numbers that are rounded on the page as they are elsewhere."""

T = TypeVar("T")


def number(value: float | None, digits: int = DIGITS) -> float | int | None:
    """With few digits; whole numbers stay whole, and what is not finite is null."""
    if value is None or not isfinite(value):
        return None
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def numbers(values: Iterable[float | None]) -> list[float | int | None]:
    """Each with few digits."""
    return [number(value) for value in values]


def places(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly from the first to the last."""
    return [int(place) for place in np.linspace(0, count - 1, min(count, most)).round()] if count else []


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly from the first to the last."""
    return [values[place] for place in places(len(values), most)]


def plain(value: Any, digits: int = DIGITS) -> Any:
    """A dataclass's dictionary or the like, with few digits everywhere and without tuples and arrays."""
    if isinstance(value, dict):
        return {str(key): plain(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each, digits) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item(), digits)
    return number(value, digits) if isinstance(value, float) else value
