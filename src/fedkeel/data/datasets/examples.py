"""What a loaded data set is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Inputs and their targets, on the CPU.

    `x` is float32 [n, ...] (images [n, C, H, W], scaled as `Scaling` says), or int64 [n, length], token ids with 0 for
    padding. `y` is int64 [n], classes, or [n, length], the classes of tokens; or float32 [n] or [n, k], real numbers.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set; `vocabulary` counts the token ids of a text data set, padding included."""

    name: str
    train: Examples
    test: Examples
    classes: int
    vocabulary: int | None = None
