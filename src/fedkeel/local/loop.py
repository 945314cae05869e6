"""The local training loop: the only one in the house.

The order inside a step is fixed: gradient of the loss, clipping, weight decay (all three in `oracle.grad`),
the rule's direction, momentum, update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.algorithms.rules import ClientRule, Job, Message, Oracle


class TrainingOracle(Oracle, Protocol):
    """An oracle that the loop can walk through a client's mini-batches."""

    def batches(self, epoch: int) -> Iterator[None]:
        """Make one mini-batch of the epoch after the other current."""
        ...


@torch.no_grad()
def train(
    job: Job, rule: ClientRule, oracle: TrainingOracle, momentum: float = 0.0
) -> tuple[Job, Tensor, Message, Message]:
    """Train a client (or a stack): (the job as the rule began it, final weights, message, what is kept).

    Momentum is PyTorch's (v <- m v + d, started at d) and begins anew with every job.
    """
    job = rule.begin(job, oracle)
    w = job.start.clone()
    velocity: Tensor | None = None
    for epoch in range(job.epochs):
        rate = job.lr[..., epoch, None]
        for _ in oracle.batches(epoch):
            direction = rule.step(job, w, oracle)
            if momentum:
                velocity = direction.clone() if velocity is None else velocity.mul_(momentum).add_(direction)
                direction = velocity
            w.sub_(rate * direction)
    message, kept = rule.end(job, w, oracle)
    return job, w, message, kept
