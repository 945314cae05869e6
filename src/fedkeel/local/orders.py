"""What goes into an executor and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedkeel.algorithms.rules import Message


@dataclass(frozen=True)
class Order:
    """A job as the server dispatches it to one client: everything that training needs, nothing of the clock."""

    job: int
    """Its number in the run, from 1."""
    client: int
    round: int
    start: Tensor
    buffers: Tensor
    lr: Tensor
    """[epochs]"""
    received: Message
    kept: Message


@dataclass(frozen=True)
class Update:
    """What one client made of its order."""

    order: Order
    w: Tensor
    buffers: Tensor
    message: Message
    kept: Message
    lr: list[float]
    """The learning rate really used in each epoch."""
    samples: int
    steps: int
    loss: float
    """Mean loss of the mini-batches, weighted by their sizes, while training."""


@dataclass(frozen=True)
class Score:
    """A model's result on a set of test samples."""

    accuracy: float
    loss: float


class Executor(Protocol):
    """Trains clients and tests models; which executor runs never changes what is drawn."""

    def train(self, orders: Sequence[Order]) -> list[Update]:
        """The updates of these orders, in their order."""
        ...

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """Test `w` on the test set, or on those samples of it."""
        ...
