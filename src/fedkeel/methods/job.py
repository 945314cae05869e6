"""What a client was asked to do, and what came back to the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedkeel.methods.course import Course
from fedkeel.methods.path import path_length
from fedkeel.methods.types import Message, Weighting, mean_shares
from fedkeel.params import Layout


@dataclass(frozen=True)
class Job:
    """What a client, or a stack of clients, was asked to do."""

    round: Tensor
    """[..., 1], the round in which the server dispatched it."""
    start: Tensor
    """[..., D], the weights that training starts from: the global model as sent, unless `begin` says otherwise."""
    buffers: Tensor
    """[..., B], the batch-norm statistics that it starts with."""
    epochs: Tensor
    """[..., 1], local epochs to train."""
    steps: Tensor
    """[..., 1], mini-batches in these epochs."""
    lr: Tensor
    """[..., E], the learning rate of each local epoch; E is the most epochs of any client in the stack."""
    momentum: float
    samples: Tensor
    """[..., 1], the size of the client's training data."""
    layout: Layout
    received: Message
    """What the server sent along (`ServerRule.send`)."""
    kept: Message
    """The client's own state: `ClientRule.initial`, then what its last job kept."""
    version: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    """[..., 1], the number of the global model that it starts from, from 0."""
    slot: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    """[..., 1], after how many epochs a fresh global model comes; 0: none does."""
    fresh: Tensor | None = None
    """[..., D], that model; what stands where `slot` is 0 means nothing."""
    fresh_buffers: Tensor | None = None
    """[..., B], its batch-norm statistics."""
    fresh_version: Tensor | None = None
    """[..., 1], its number."""
    course: Course = field(default_factory=Course)
    """What the direction is made of beside the gradient; set in `begin`."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Scratch that a rule carries from step to step."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """What goes up as a sum over clients and has no client axis: set in `begin`, added to by `exact_sum`."""

    @property
    def length(self) -> Tensor:
        """[..., 1], how far a constant direction of length one would have led: learning rate times steps, and momentum.

        (start - w) / length is the mean direction, whatever the number of steps; a pull is part of that direction.
        """
        return path_length(self.lr, self.epochs, self.steps, self.momentum)

    def pick(self, rows: slice | Tensor) -> Job:
        """Some clients of a stack; the first so many as views."""
        return replace(
            self,
            round=self.round[rows],
            version=self.version[rows],
            start=self.start[rows],
            buffers=self.buffers[rows],
            epochs=self.epochs[rows],
            steps=self.steps[rows],
            lr=self.lr[rows],
            samples=self.samples[rows],
            received=_pick(self.received, rows),
            kept=_pick(self.kept, rows),
            slot=self.slot[rows],
            fresh=None if self.fresh is None else self.fresh[rows],
            fresh_buffers=None if self.fresh_buffers is None else self.fresh_buffers[rows],
            fresh_version=None if self.fresh_version is None else self.fresh_version[rows],
            course=self.course.pick(rows),
            carry=_pick(self.carry, rows),
        )


def _pick(message: Message, rows: slice | Tensor) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in message.items()}


@dataclass(frozen=True)
class Updates:
    """What arrived from m clients, stacked: every tensor has a leading axis m.

    They lie in memory that is used again when nobody refers to it any more: a rule clones the rows that it keeps.
    """

    w: Tensor
    """[m, D], the weights that came back."""
    start: Tensor
    """[m, D], the global model each started from."""
    samples: Tensor
    """[m, 1]"""
    epochs: Tensor
    """[m, 1], local epochs really done."""
    steps: Tensor
    """[m, 1], local SGD steps really done."""
    lr: Tensor
    """[m, E], the learning rates used; those behind a client's last epoch say nothing."""
    messages: Message
    layout: Layout
    sums: Message = field(default_factory=dict)
    """`Job.sums`, added up over all clients."""
    asked: int | None = None
    """Local epochs that everybody was asked for, if not what the busiest did."""
    draws: Tensor | None = None
    """[m], how often each was drawn, where clients are drawn with replacement."""
    momentum: float = 0.0
    """Of local training."""
    pull: float = 0.0
    """`ClientRule.pull`"""
    slot: Tensor | None = None
    """[m, 1], as `Job.slot`, where clients may get fresh models."""
    fresh: Tensor | None = None
    """[m, D], as `Job.fresh`."""

    @property
    def delta(self) -> Tensor:
        """[m, D], new minus old."""
        return self.w - self.start

    @property
    def length(self) -> Tensor:
        """[m, 1], as `Job.length`, but of the gradients alone: a pull shortens the path."""
        return path_length(self.lr, self.epochs, self.steps, self.momentum, self.pull)

    def shares(self, weighting: Weighting = "samples") -> Tensor:
        """[m], each client's share in a mean over those that arrived."""
        return mean_shares(self.samples, self.draws, weighting).to(self.w.dtype)
