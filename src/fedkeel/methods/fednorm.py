"""FedNorm as FedEnt compares with it (Eq. 52): the distance to the global model in the place of the entropy.

As printed, w_i and w are the same at the start of a round and the rate is 0 (`literal`); the default takes the next
global model, predicted by the last global move.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedavg import Average
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState
from fedkeel.methods.types import Message
from fedkeel.params import Layout

Weight = Annotated[float, Field(gt=0, lt=1)]


def norm_learning_rate(dot: Tensor, square: Tensor, beta: float) -> Tensor:
    """The minimiser of (1 - beta) eta^2 + beta |w - eta g - phi|^2, given <g, w - phi> and |g|^2."""
    return beta * dot / ((1 - beta) + beta * square)


class SmoothedRate(ClientRule):
    """Trains at a rate of its own: eta <- gamma eta_before + (1 - gamma) eta_star (FedEnt's Eq. 31), from eta = e0.

    `local.lr_decay` lowers a client's first rate and the cap, not what is smoothed.
    """

    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.99
    smoothing: Literal["participation", "round"] = "participation"
    """What t counts in Eq. 31: a client's own rounds; or all, so that gamma is raised to the rounds since its last."""
    cap: Annotated[float, Field(ge=1)] | None = 10.0
    """Of the rate really used, as a multiple of the base rate; what is smoothed goes on without it."""

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        """No rate yet."""
        return {"rate": w.new_zeros(1), "round": torch.zeros(1, dtype=torch.int64, device=w.device)}

    def smoothed(self, job: Job, star: Tensor) -> Job:
        """The job at its smoothed rate, which it carries, in all epochs."""
        base = job.lr[:, :1]
        before = torch.where(job.kept["round"] > 0, job.kept["rate"], base)
        times = job.round - job.kept["round"] if self.smoothing == "round" else torch.ones_like(job.round)
        gamma = (self.gamma ** times.double()).to(base)
        rate = gamma * before + (1 - gamma) * star
        used = rate if self.cap is None else torch.minimum(rate, self.cap * base)
        return replace(job, lr=used.expand(job.lr.shape), carry={"rate": rate})

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Keeps the smoothed rate."""
        return {}, {"rate": job.carry["rate"], "round": job.round}


class NormRate(SmoothedRate):
    """eta_star = beta <g, w - phi> / ((1 - beta) + beta |g|^2) in [0, eta_max], with phi = w + the last global move."""

    pair = "fednorm"
    watches_epochs = True

    reading: Literal["practical", "literal"] = "practical"
    beta: Weight = 0.99
    eta_max: PositiveFloat = 1.0

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """The rate is set in the first step, of whose mini-batch the gradient is."""
        return replace(job, carry={"rate": torch.zeros_like(job.lr[:, :1])})

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        """All clients begin their first epoch in the first step."""
        g = oracle.grad(w)
        if bool((oracle.begins == 0).any()):
            star = torch.zeros_like(job.lr[:, :1])
            if self.reading == "practical":
                dot, square = -(g * job.received["move"]).sum(-1, keepdim=True), g.square().sum(-1, keepdim=True)
                star = norm_learning_rate(dot, square, self.beta).clamp(0, self.eta_max)
            job = self.smoothed(job, star)
        return job.course.direction(g, w), job


class MovingAverage(Average):
    """FedAvg's mean; sends the last global move."""

    pair = "fednorm"

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """No move yet."""
        return ServerState(w, {"move": torch.zeros_like(w)})

    def send(self, state: ServerState, client: int) -> Message:
        """w - the one before."""
        return {"move": state.memory["move"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """FedAvg's."""
        after, shares = super().aggregate(state, updates)
        return replace(after, memory={"move": after.w - state.w}), shares


fednorm = method(
    "fednorm",
    client=NormRate,
    server=MovingAverage,
    about="a learning rate per client from its distance to the next global model",
    cite="Eq. 52 of Zheng et al., 2023",
)
