"""FedLGA (Li et al., IEEE Trans. Cybernetics 2023): the server completes the updates of devices that ran out of time.

With the Hessian replaced by g g^T and g estimated from the update itself, the paper's Eq. 5 multiplies the update by a
number. Its sign is wrong for devices whose classes differ (`literal`), and the missing epochs' own gradients, of zeroth
order, are absent from Eq. 4 and 5; the default takes the size of that term and caps it by linear extrapolation.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedkeel.errors import DivergenceError
from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedavg import UniformAverage
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState, Updates
from fedkeel.methods.types import Reading

RUNAWAY = 100.0
"""A factor on an update that no convergent run comes near to."""


def completion_factor(
    along: Tensor, square: Tensor, length: Tensor, missing: Tensor, done: Tensor, reading: Reading = "practical"
) -> Tensor:
    """What an update Delta is multiplied by, given <Delta, Dbar>, |Delta|^2 and S = lr * steps per epoch * epochs done.

    Literal: 1 + (<Delta, Dbar> - |Delta|^2) / S^2, as Algorithm 2 with g = -Delta / S comes to. Practical: the same
    with the added part's size, at most missing / done.
    """
    added = (along - square) / length**2
    if reading == "practical":
        added = torch.minimum(added.abs(), missing / done)
    return torch.where(missing > 0, 1 + added, torch.ones_like(added))


class GradientApproximation(UniformAverage):
    """w <- w + server_lr * mean(Delta_hat), over all, with Delta_hat = Delta for those who finished.

    Goes with any client rule that stands alone; momentum and learning rates that change count as in `Updates.length`.
    """

    reports = ("epochs",)  # E_i

    reading: Reading = "practical"
    """The added part's size, capped; or as printed, which reverses stragglers and stops when it runs away."""

    @property
    def needs_sgd(self) -> str:
        return "its server reads gradients off the clients' paths"

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The weight of an update is its share times the factor that completes it."""
        asked = float(updates.asked or int(updates.epochs.max()))
        done = updates.epochs[:, 0].to(updates.w).double()
        late = done < asked
        if not bool(late.any()):
            after, shares = super().aggregate(state, updates)
            return replace(after, memory=_noted(torch.ones_like(done), done, asked)), shares
        delta, shares = updates.delta, updates.shares(self.weighting)
        if bool(late.all()):  # everybody's update, stretched to the epochs asked for
            full = (shares * (asked / done).to(shares)) @ delta
        else:
            finished = shares * ~late
            full = finished / finished.sum() @ delta
        along, square = (delta @ full).double(), delta.square().sum(1).double()
        length = updates.length[:, 0].double()
        factors = completion_factor(along, square, length, asked - done, done, self.reading)
        if self.reading == "literal":
            _refuse_runaway(factors)
        weights = shares * factors.to(shares)
        w = state.w + self.server_lr * (weights @ delta)
        return replace(state, w=w, memory=_noted(factors, done, asked)), weights

    def report(self, state: ServerState) -> dict[str, Tensor]:
        """How many ran out of time, and what their updates were multiplied by."""
        return dict(state.memory)


def _noted(factors: Tensor, done: Tensor, asked: float) -> dict[str, Tensor]:
    late = done < asked
    mean = factors[late].mean() if bool(late.any()) else torch.ones((), dtype=factors.dtype)
    capped = late & torch.isclose(factors, asked / done)
    return {"stragglers": late.sum(), "mean_factor": mean, "capped": capped.sum()}


def _refuse_runaway(factors: Tensor) -> None:
    worst = float(factors.abs().max())
    if not worst <= RUNAWAY:
        raise DivergenceError(
            f"FedLGA ran away: an update would be multiplied by {float(factors[factors.abs().argmax()]):.3g}. The "
            "literal reading reverses stragglers whose gradients differ from the others'; accepted: "
            "algorithm.reading=practical"
        )


fedlga = method(
    "fedlga",
    client=ClientRule,
    server=GradientApproximation,
    about="completes the updates of devices that ran out of time",
    cite="Li et al., IEEE Trans. Cybernetics 2023",
)
