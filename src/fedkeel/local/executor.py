"""What every executor can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedkeel.data.federated import Held
from fedkeel.wire.orders import Order, Trained


@dataclass(frozen=True)
class Score:
    """A model's result on a set of test samples."""

    loss: float
    metrics: Mapping[str, float]
    """By name; the first is the one by which models are compared. NaN where one is not defined."""

    @property
    def first(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


class Executor(Protocol):
    """Trains clients and tests models; which executor runs never changes what is drawn."""

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        """What became of these orders, in their order; with `limit`, after so many steps."""
        ...

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None, on: Held = "test") -> Score:
        """Test `w` on the test or validation set, or on those samples of it."""
        ...

    def predict(self, w: Tensor, buffers: Tensor, on: Held = "test") -> Tensor:
        """The outputs of `w` for the whole test or validation set."""
        ...

    def report(self) -> dict[str, Any]:
        """What a summary says of its work."""
        ...

    def close(self) -> None:
        """Let go of everything that outlives a call; what is asked afterwards starts anew."""
        ...
