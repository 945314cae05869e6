"""What travels, what it weighs, and the types of settings that several methods have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.config.section import Share as Share

Message = Mapping[str, Tensor]
"""Named tensors that travel, or that a client keeps; what travels is charged byte for byte."""


@dataclass(frozen=True)
class Sends:
    """How much goes up from a client under one name, beside its weights."""

    numbers: int
    nbytes: int | None = None
    """Of each number, where it is a count or the like; else numbers are of the weights' type."""
    each_class: bool = False
    """Whether it is so much for each class that the client's labels hold."""
    summed: bool = False
    """Whether only the sum over clients is wanted (`Job.sums`)."""
    recorded: bool = False
    """Whether it is only written down with the arrival: it is not charged."""
    exact: bool = False
    """Whether it stays as it is on its way, such as a count in the weights' type."""

    @property
    def goes_through(self) -> bool:
        """Whether the wire's transforms may change it."""
        return self.nbytes is None and not (self.exact or self.summed or self.recorded)


Weighting = Literal["samples", "uniform"]
"""Of clients in a mean: by their numbers of samples, or all alike."""

ScheduleOver = Literal["rounds", "steps"]
"""What a schedule of learning rates runs over: the rounds of a run, or the steps of a job."""

Chance = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""Of a running mean: the share of the past."""
Weight = Annotated[float, Field(gt=0, lt=1)]
"""Of one term against another, neither of which vanishes."""
Multiple = Annotated[float, Field(ge=1)]
"""Of the base learning rate."""
Reading = Literal["practical", "literal"]
"""A paper's equations: corrected, or as printed."""
GradientBatches = Literal[1, "full"]
"""What a gradient is taken of: the current mini-batch, or all the client's data."""
Rest = Literal["drop", "flush"]
"""What becomes of a buffer that is not full when the run ends: it is forgotten, or one last step."""

_GRID = 2.0**36
_AT_ONCE = 1 << 20
"""Numbers that are summed together: more would not stay in a cache."""


def nbytes(message: Message) -> int:
    """What a message weighs on the wire."""
    return sum(t.numel() * t.element_size() for t in message.values()) if message else 0


def mean_shares(samples: Tensor, draws: Tensor | None, weighting: Weighting) -> Tensor:
    """[m], float64, the clients' shares in a mean, given their samples [m, 1].

    Who was drawn with replacement was drawn in proportion to its samples, and counts as often as it was drawn [m].
    """
    counts = samples[:, 0].double() if draws is None else draws.double()
    if draws is None and weighting == "uniform":
        counts = torch.ones_like(counts)
    return counts / counts.sum()


def exact_sum(vectors: Tensor) -> Tensor:
    """The sum [...] over the first axis, in float64 and the same to the bit in whatever order it is made.

    Every addend is rounded to a multiple of 2^-36, so that sums below 2^17 are exact; larger ones depend on the order.
    """
    total = vectors.new_zeros(vectors.shape[1:], dtype=torch.float64)
    for some in torch.split(vectors, max(1, _AT_ONCE // max(1, total.numel()))):
        total += some.to(torch.float64, copy=True).mul_(_GRID).round_().sum(0)
    return total.div_(_GRID)
