"""What clients were asked to do, and what came back to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.methods.course import Course, Trail
from fedkeel.methods.path import Curve, path_length
from fedkeel.methods.types import Message, Weighting, exact_sum, mean_shares
from fedkeel.params import Layout

Number = TypeVar("Number", int, Tensor)


@dataclass(frozen=True)
class Fresh(Generic[Number]):
    """A global model that comes in the middle of a job."""

    w: Tensor
    """[..., D]"""
    buffers: Tensor
    """[..., B], its batch-norm statistics."""
    version: Number
    """Its number, from 0; [k, 1] in a stack."""


@dataclass(frozen=True)
class Sums:
    """What goes up as a sum over clients and has no client axis.

    The one thing that a rule changes in place: a copy of all rows in every epoch would cost more than the epoch's sum.
    """

    totals: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, names: tuple[str, ...], rows: int, like: Tensor) -> Sums:
        """[rows, D] of zeros under each name, for vectors such as `like` [k, D]."""
        return cls({name: like.new_zeros(rows, like.shape[-1], dtype=torch.float64) for name in names})

    def add(self, name: str, row: int, vectors: Tensor) -> None:
        """Vectors [k, D] of k clients to a row, the same to the bit in whatever order."""
        self.totals[name][row] += exact_sum(vectors)


@dataclass(frozen=True)
class Job:
    """What a stack of k clients was asked to do."""

    round: Tensor
    """[k, 1], the round in which the server dispatched it."""
    start: Tensor
    """[k, D], the weights that training starts from: the global model as sent, unless `begin` says otherwise."""
    buffers: Tensor
    """[k, B], the batch-norm statistics that it starts with."""
    epochs: Tensor
    """[k, 1], local epochs to train. Where the experiment counts mini-batches (`local.steps`), these are mini-batches,
    here and in everything that rules are told about epochs."""
    steps: Tensor
    """[k, 1], mini-batches in these epochs."""
    lr: Tensor
    """[k, E], the learning rate of each local epoch; E is the most epochs of any client in the stack."""
    momentum: float
    samples: Tensor
    """[k, 1], the size of the client's training data."""
    layout: Layout
    received: Message
    """What the server sent along (`ServerRule.send`)."""
    kept: Message
    """The client's own state: `ClientRule.initial`, then what its last job kept."""
    version: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.int64))
    """[k, 1], the number of the global model that it starts from, from 0."""
    slot: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.int64))
    """[k, 1], after how many epochs a fresh global model comes; 0: none comes."""
    fresh: Fresh[Tensor] | None = None
    """That model; rows where `slot` is 0 mean nothing."""
    course: Course = field(default_factory=Course)
    """What the direction is made of beside the gradient; set in `begin`. Its trail moves on with every step."""
    carry: Message = field(default_factory=dict)
    """What a rule carries from step to step: set in `begin`, replaced in `advance`."""
    sums: Sums = field(default_factory=Sums)
    """Set in `begin`."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    curve: Curve | None = None
    """What the learning rate of each step is multiplied by, where the experiment's schedule runs over steps."""

    @property
    def length(self) -> Tensor:
        """[k, 1], how far a constant direction of length one would lead: learning rates times steps, with momentum.

        (start - w) / length is the mean direction for any number of steps; a pull is part of that direction.
        """
        return path_length(self.lr, self.epochs, self.steps, self.momentum, 0.0, self.nesterov, self.curve)

    def factor(self, step: int | NDArray[np.int64]) -> Tensor:
        """[k, 1], what the curve says of a step, counted from 0; of many steps [k, steps]."""
        assert self.curve is not None
        return torch.from_numpy(self.curve(step, (self.steps // self.epochs).cpu().numpy())).to(self.lr)

    def pick(self, rows: slice | Tensor) -> Job:
        """Some clients of the stack; a slice of them as views."""
        return replace(self, **{each.name: _pick(getattr(self, each.name), rows) for each in fields(self)})


def _pick(value: Any, rows: slice | Tensor) -> Any:
    """The rows of every tensor in it; other values have no client axis."""
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {name: _pick(each, rows) for name, each in value.items()}
    if isinstance(value, Course | Fresh | Trail):
        return replace(value, **{each.name: _pick(getattr(value, each.name), rows) for each in fields(value)})
    return value


class Withheld:
    """In the place of weights that stayed where they were trained: whoever looks at them is told so."""

    def _tell(self, *_: object) -> Any:
        raise FedkeelError(
            "the server rule looks at the weights of single clients, which reduce does not bring back, though it says "
            "needs_only_mean; use updates.mean or updates.mean_delta in place of updates.w and updates.delta, or "
            "remove needs_only_mean"
        )

    __getattr__ = __getitem__ = __len__ = __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __neg__ = _tell

    @classmethod
    def __torch_function__(cls, *_: object) -> Any:
        return cls()._tell()


@dataclass(frozen=True)
class FormedMean:
    """The mean of the clients' weights, and how they count in it."""

    w: Tensor
    """[D], float64."""
    weighting: Weighting

    def asked(self, weighting: Weighting) -> Tensor:
        """The mean, if it is the one that was asked for."""
        if weighting != self.weighting:
            raise FedkeelError(
                f"the server rule says needs_only_mean={self.weighting!r}, and asks for the mean with {weighting!r}; "
                "name the same weighting in both"
            )
        return self.w


@dataclass(frozen=True)
class Updates:
    """What arrived from m clients, stacked: every tensor has a leading axis m.

    Their memory is reused when nothing refers to it any more, so a rule clones the rows that it keeps.
    """

    w: Tensor
    """[m, D], the weights that came back; `Withheld` where only their mean did (`ServerRule.needs_only_mean`)."""
    start: Tensor
    """[m, D], the global model each started from."""
    samples: Tensor
    """[m, 1]"""
    epochs: Tensor
    """[m, 1], local epochs really done."""
    steps: Tensor
    """[m, 1], local SGD steps really done."""
    lr: Tensor
    """[m, E], the learning rates used, before the curve; those after a client's last epoch mean nothing."""
    messages: Message
    layout: Layout
    sums: Message = field(default_factory=dict)
    """`Sums.totals`, added up over all clients."""
    asked: int | None = None
    """Local epochs that every client was asked for; None: as many as the busiest client did."""
    draws: Tensor | None = None
    """[m], how often each was drawn, where clients are drawn with replacement."""
    momentum: float = 0.0
    """The momentum of local training."""
    pull: float = 0.0
    """`ClientRule.pull`"""
    slot: Tensor | None = None
    """[m, 1], as `Job.slot`, where clients may get fresh models."""
    fresh: Fresh[Tensor] | None = None
    """As `Job.fresh`."""
    loss: Tensor | None = None
    """[m, 1], float64, each client's mean loss while it trained."""
    completed: Tensor | None = None
    """[m, D], the weights that each would have sent after all that it was asked for; only a simulated world knows them,
    and only where the rule looks at them (`ServerRule.looks_ahead`)."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    curve: Curve | None = None
    """As `Job.curve`."""
    formed: FormedMean | None = None
    """The mean of the weights, if it was formed where clients trained."""

    def mean(self, weighting: Weighting) -> Tensor:
        """[D], of the weights that came back."""
        if self.formed is None:
            return self.shares(weighting) @ self.w
        return self.formed.asked(weighting).to(self.start.dtype)

    def mean_delta(self, weighting: Weighting) -> Tensor:
        """[D], of new minus old; all must have started from the same model."""
        if self.formed is None:
            return self.shares(weighting) @ self.delta
        return (self.formed.asked(weighting) - self.start[0]).to(self.start.dtype)

    @property
    def delta(self) -> Tensor:
        """[m, D], new minus old."""
        return self.w - self.start

    @property
    def length(self) -> Tensor:
        """[m, 1], as `Job.length`, but of the gradients alone: a pull shortens the path."""
        return self.length_of(self.lr, self.epochs, self.steps)

    def length_of(self, lr: Tensor, epochs: Tensor, steps: Tensor) -> Tensor:
        """[m, 1], the same of other rates, epochs and steps."""
        return path_length(lr, epochs, steps, self.momentum, self.pull, self.nesterov, self.curve)

    def shares(self, weighting: Weighting = "samples") -> Tensor:
        """[m], each client's share in a mean over those that arrived."""
        return mean_shares(self.samples, self.draws, weighting).to(self.start.dtype)
