"""What the gradients of a stack of clients are asked for, whatever computes them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedkeel.local.batches import Batch
from fedkeel.local.gradients.jobs import Jobs, Outcomes
from fedkeel.methods.oracle import Penalty

Penalised = tuple[Penalty, tuple[Tensor, ...]] | None
"""A penalty on the features that the heads see, and what it is given beside them, [k, b, ...]."""


class Gradient:
    """Gradients of k clients at once, at weights `w` [k, D]; as it stands, of models without chance or memory."""

    alone: ClassVar[bool] = False
    """Whether it takes one client at a time, k = 1."""
    descends: ClassVar[bool] = False
    """Whether it can make a whole step cheaper than a gradient."""
    reads_by_number: ClassVar[bool] = False
    """Whether it reads samples where they lie, given their numbers."""
    trains_whole_jobs: ClassVar[bool] = False
    """Whether it can `train` jobs of plain SGD with a course, or epochs of them, in one go."""

    threads = 1
    """Those that it shares its clients among."""
    buffers: Tensor = torch.zeros(0, 0, dtype=torch.float64)
    """[k, B], the batch-norm statistics as they are now."""

    def restore(self, buffers: Tensor) -> None:
        """Go on with these statistics."""
        self.buffers = buffers

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        """(Losses [k, b], gradient [k, D] of the sum over each client's samples of loss times weight).

        With a penalty, the gradient is that of loss and penalty. Statistics move only with a mini-batch that is fresh.
        """
        raise NotImplementedError

    def descend(self, w: Tensor, batch: Batch, rate: Tensor, out: Tensor, before: Tensor) -> Tensor:
        """out <- before - rate [k, 1] * gradient, where it `descends`; returns the losses [k, b]."""
        raise NotImplementedError

    def at_once(self, samples: int) -> int:
        """How many jobs of so many samples should be trained in one call."""
        raise NotImplementedError

    def train(self, jobs: Jobs, out: Tensor) -> Outcomes:
        """All steps of these jobs, where it `trains_whole_jobs`; the weights are put into `out` [k, D]."""
        raise NotImplementedError

    def features(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        """[k, b, F], what the heads see, in evaluation mode with these statistics."""
        raise NotImplementedError

    def mean(self, losses: Tensor, batch: Batch) -> Tensor:
        """[k, 1], each client's mean of the losses [k, b]."""
        return (losses * batch.weights).sum(1, keepdim=True)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """[k, 1], the mean losses at `w`; statistics stay as they are."""
        return self.mean(self(w, batch)[0], batch)
