"""What travels, what it weighs, and the types of settings that several methods have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.config.section import Share as Share
from fedkeel.errors import FedkeelError

Message = Mapping[str, Tensor]
"""Named tensors that travel, or that a client keeps; what travels is charged byte for byte."""


@dataclass(frozen=True)
class Sends:
    """How much goes up from a client under one name, beside its weights."""

    numbers: int
    nbytes: int | None = None
    """Bytes of each number, where it is a count or the like; otherwise numbers have the weights' type."""
    each_class: bool = False
    """Whether this is the amount for each class that occurs in the client's labels."""
    summed: bool = False
    """Whether only the sum over clients is needed (`Job.sums`)."""
    recorded: bool = False
    """Whether it is only written down with the arrival; then it is not charged."""
    exact: bool = False
    """Whether the wire must not change it, such as a count in the weights' type."""

    @property
    def goes_through(self) -> bool:
        """Whether the wire's transforms may change it."""
        return self.nbytes is None and not (self.exact or self.summed or self.recorded)


Weighting = Literal["samples", "uniform"]
"""How clients count in a mean: in proportion to their samples, or all the same."""

ScheduleOver = Literal["rounds", "steps"]
"""What a schedule of learning rates runs over: the rounds of a run, or the steps of a job."""

Chance = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share of the past in a running mean."""
Weight = Annotated[float, Field(gt=0, lt=1)]
"""The weight of one term against another; neither may vanish."""
Multiple = Annotated[float, Field(ge=1)]
"""A multiple of the base learning rate."""
Reading = Literal["practical", "literal"]
"""A paper's equations: corrected, or as printed."""
GradientBatches = Literal[1, "full"]
"""What a gradient is computed from: the current mini-batch, or all the client's data."""
Rest = Literal["drop", "flush"]
"""What happens to a partly filled buffer when the run ends: it is dropped, or used for one last step."""

_GRID = 2.0**36
_AT_ONCE = 1 << 20
"""Numbers that are summed together: more would not stay in a cache."""


def lower_cap(cap: float | None) -> str:
    """What to try when training diverges at rates that a method chooses, up to `cap` times the base rate."""
    if cap is None:
        return "or set algorithm.cap, without which the method's learning rates have no upper limit"
    return f"or lower algorithm.cap={cap:g}, as the method's learning rates go up to {cap:g} times local.lr"


def nbytes(message: Message) -> int:
    """What a message weighs on the wire."""
    return sum(t.numel() * t.element_size() for t in message.values()) if message else 0


def mean_shares(samples: Tensor, draws: Tensor | None, weighting: Weighting) -> Tensor:
    """[m], float64, the clients' shares in a mean, given their samples [m, 1].

    Clients drawn with replacement were drawn in proportion to their samples, so each counts as often as it was drawn
    [m].
    """
    if weighting not in ("samples", "uniform"):
        raise FedkeelError(f"the server rule asks for the weighting {weighting!r}; use 'samples' or 'uniform'")
    counts = samples[:, 0].double() if draws is None else draws.double()
    if draws is None and weighting == "uniform":
        counts = torch.ones_like(counts)
    return counts / counts.sum()


def exact_sum(vectors: Tensor) -> Tensor:
    """The sum [...] over the first axis, in float64 and the same to the bit in any order of addition.

    Every addend is rounded to a multiple of 2^-36, so that sums below 2^17 are exact; larger ones depend on the order.
    """
    total = vectors.new_zeros(vectors.shape[1:], dtype=torch.float64)
    for some in torch.split(vectors, max(1, _AT_ONCE // max(1, total.numel()))):
        total += some.to(torch.float64, copy=True).mul_(_GRID).round_().sum(0)
    return total.div_(_GRID)
