"""What travels, what a client keeps, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

Message = Mapping[str, Tensor]
"""Named tensors that travel, or that a client keeps; what travels is charged byte for byte."""

Weighting = Literal["samples", "uniform"]
"""Of clients in a mean: by their numbers of samples, or all alike."""

_GRID = 2.0**40


def nbytes(message: Message) -> int:
    """What a message weighs on the wire."""
    return sum(t.numel() * t.element_size() for t in message.values()) if message else 0


def exact_sum(vectors: Tensor) -> Tensor:
    """The sum [...] over the first axis, in float64 and the same to the bit in whatever order it is made.

    Every addend is rounded to a multiple of 2^-40, so that sums below 2^13 are exact.
    """
    return (vectors.double() * _GRID).round_().sum(0) / _GRID
