"""What a loaded data set is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Inputs and their labels, on the CPU.

    `x` is float32 [n, C, H, W], scaled (`Scaling`), or int64 [n, length], token ids with 0 for padding;
    `y` is int64 [n].
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
