"""FedLGA (Li et al., IEEE Trans. Cybernetics 2023): the server completes the updates of devices that ran out of time.

With the Hessian replaced by g g^T and g estimated from the update itself, the paper's Eq. 5 multiplies the update by a
number. Its sign is wrong for devices whose classes differ (`literal`), and the missing epochs' own gradients, of zeroth
order, are absent from Eq. 4 and 5; `practical` takes the size of that term and caps it by linear extrapolation.
`own-path` has both orders, along the way that the device itself was on. The default, `fitted`, is ours: it knows how
updates grow with the work behind them (`growth.py`), up to one number that is fitted to those of devices that finish.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.errors import DivergenceError, FedkeelError
from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedavg import UniformAverage
from fedkeel.methods.growth import bend, growth, kappa, no_record, recorded
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState, Updates

Completion = Literal["fitted", "practical", "literal", "own-path"]
"""How updates are completed."""

RECORD = "record"
"""The name in the server's memory of what the law of growth is fitted to."""
RUNAWAY = 100.0
"""A factor on an update that no convergent run comes near."""


def completion_factor(
    along: Tensor, square: Tensor, length: Tensor, missing: Tensor, done: Tensor, reading: Completion = "practical"
) -> Tensor:
    """What an update Delta is multiplied by, given <Delta, Dbar>, |Delta|^2 and S = lr * steps per epoch * epochs done.

    Literal: 1 + (<Delta, Dbar> - |Delta|^2) / S^2, as Algorithm 2 with g = -Delta / S comes to. Practical: the same
    with the added part's size, at most missing / done. Own path: s further along -g, the gradient is g - s g g^T g;
    from 0 to T = S missing / done, that adds up to -g (T - T^2 |g|^2 / 2), or to nothing where it would lead back.
    """
    stretch = missing / done
    if reading == "own-path":
        added = stretch * (1 - stretch * square / (2 * length)).clamp(min=0)
    else:
        added = (along - square) / length**2
    if reading == "practical":
        added = torch.minimum(added.abs(), stretch)
    return torch.where(missing > 0, 1 + added, torch.ones_like(added))


def completion_errors(delta: Tensor, full: Tensor, factors: Tensor) -> dict[str, Tensor]:
    """Eq. 3 for updates [m, D] and what they would have been [m, D]: |factor Delta - full| / |full|, mean over them.

    Beside it the same for updates that are left as they are, and for the best factor each could have had. Updates whose
    whole training came to nothing do not count; there is no error if none counts.
    """
    delta, full, norm = delta.double(), full.double(), full.double().norm(dim=1)
    best = (delta * full).sum(1) / delta.square().sum(1)
    tried = {"error_completed": factors.double(), "error_untouched": torch.ones_like(best), "error_best_factor": best}
    errors = {name: (each[:, None] * delta - full).norm(dim=1) / norm for name, each in tried.items()}
    known = torch.stack([*errors.values()]).isfinite().all(0)
    return {name: each[known].mean() for name, each in errors.items()} if bool(known.any()) else {}


class GradientApproximation(UniformAverage):
    """w <- w + server_lr * mean(Delta_hat) over all clients, with Delta_hat = Delta for those who finished.

    Goes with any client rule that stands alone; momentum and learning rates that change count as in `Updates.length`.
    """

    reading: Completion = "fitted"
    """How the updates of stragglers are completed: by a fitted law of growth (`fitted`), by the paper's equations with
    the added part capped (`practical`), by the equations as printed (`literal`), or by a step along the device's own
    path (`own-path`)."""
    diagnose: bool = False
    """Also train what stragglers missed, and report the error of Eq. 3. The run itself does not change."""

    @property
    def reports(self) -> tuple[str, ...]:
        """E_i, and what the law of growth needs."""
        return ("epochs", "loss") if self.reading == "fitted" else ("epochs",)

    @property
    def looks_ahead(self) -> bool:
        return self.diagnose

    @property
    def needs_sgd(self) -> str:
        return "its server computes gradients from how far clients moved"

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The weight of an update is its share times the factor that completes it."""
        asked = updates.asked or int(updates.epochs.max())
        done = updates.epochs[:, 0].to(updates.w).double()
        late = done < asked
        record = state.memory.get(RECORD)
        kept = {} if record is None else {RECORD: record}
        if not bool(late.any()):
            after, shares = super().aggregate(state, updates)
            return replace(after, memory=kept | self._noted(torch.ones_like(done), done, asked)), shares
        delta, shares = updates.delta, updates.shares(self.weighting)
        square, length = delta.square().sum(1).double(), updates.length[:, 0].double()
        noted: dict[str, Tensor] = {}
        if self.reading == "fitted":
            bends, stretch = bend(square, length, _losses(updates)), _whole_length(updates, asked) / length
            record = recorded(no_record(square) if record is None else record, square, bends, length, stretch, late)
            noted = {RECORD: record, "kappa": kappa(record)}
            factors = torch.where(late, growth(noted["kappa"] * bends, length, stretch), torch.ones_like(square))
        else:
            along = (delta @ self._mean_full(delta, shares, done, asked)).double()
            way = (asked - done, done)
            if self.reading == "own-path":  # with momentum, more than epochs say
                way = (_whole_length(updates, asked) - length, length)
            factors = completion_factor(along, square, length, *way, self.reading)
        factors = torch.where(length > 0, factors, torch.ones_like(factors))  # at a rate of 0, nobody moves
        if self.reading == "literal":
            _refuse_runaway(factors)
        weights = shares * factors.to(shares)
        w = state.w + self.server_lr * (weights @ delta)
        noted |= self._noted(factors, done, asked)
        if updates.completed is not None:
            noted |= completion_errors(delta[late], (updates.completed - updates.start)[late], factors[late])
        return replace(state, w=w, memory=noted), weights

    def _mean_full(self, delta: Tensor, shares: Tensor, done: Tensor, asked: int) -> Tensor:
        """[D], Dbar: the mean update of those who finished, or everybody's, stretched to the epochs asked for."""
        finished = shares * (done == asked)
        if not bool(finished.any()):
            return (shares * (asked / done).to(shares)) @ delta
        return finished / finished.sum() @ delta

    def _noted(self, factors: Tensor, done: Tensor, asked: int) -> dict[str, Tensor]:
        late = done < asked
        mean = factors[late].mean() if bool(late.any()) else torch.ones((), dtype=factors.dtype)
        noted = {"stragglers": late.sum(), "mean_factor": mean}
        if self.reading == "practical":
            noted["capped"] = (late & torch.isclose(factors, asked / done)).sum()
        return noted

    def report(self, state: ServerState) -> dict[str, Tensor]:
        """How many clients ran out of time, by what their updates were multiplied, and the error of that."""
        return {name: number for name, number in state.memory.items() if name != RECORD}


def _losses(updates: Updates) -> Tensor:
    if updates.loss is None:
        raise FedkeelError("FedLGA's fitted reading needs each client's mean loss; give Updates a loss")
    return updates.loss[:, 0].double()


def _whole_length(updates: Updates, asked: int) -> Tensor:
    """[m], how long paths would be after all epochs, at the last epoch's learning rate."""
    epochs, steps = updates.epochs, updates.steps
    rates = updates.lr.gather(1, torch.arange(asked).minimum(epochs - 1).to(updates.lr.device))
    whole = torch.full_like(epochs, asked)
    return updates.length_of(rates, whole, steps // epochs.to(steps) * asked)[:, 0].double()


def _refuse_runaway(factors: Tensor) -> None:
    worst = float(factors.abs().max())
    if not worst <= RUNAWAY:
        raise DivergenceError(
            f"FedLGA ran away: an update would be multiplied by {float(factors[factors.abs().argmax()]):.3g}. The "
            "literal reading reverses stragglers whose gradients differ from the others'; set algorithm.reading to "
            "fitted, practical or own-path"
        )


fedlga = method(
    "fedlga",
    client=ClientRule,
    server=GradientApproximation,
    about="completes the updates of devices that ran out of time",
    cite="Li et al., IEEE Trans. Cybernetics 2023",
)
