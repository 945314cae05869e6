"""What every executor can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedkeel.wire.orders import Order, Trained


@dataclass(frozen=True)
class Score:
    """A model's result on a set of test samples."""

    accuracy: float
    loss: float


class Executor(Protocol):
    """Trains clients and tests models; which executor runs never changes what is drawn."""

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        """What became of these orders, in their order; with `limit`, after so many steps."""
        ...

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """Test `w` on the test set, or on those samples of it."""
        ...

    def close(self) -> None:
        """Let go of everything that outlives a call; what is asked afterwards starts anew."""
        ...
