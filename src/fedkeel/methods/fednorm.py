"""FedNorm as FedEnt compares with it (Eq. 52): the distance to the global model in place of the entropy.

As printed, w_i and w are the same at the start of a round and the rate is 0 (`literal`); the default takes the next
global model, predicted by the last global move.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import Job, Message, Oracle
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState, Updates
from fedkeel.methods.smoothed import SmoothedRate
from fedkeel.methods.types import Reading, Weight, Weighting
from fedkeel.params import Layout


def norm_learning_rate(dot: Tensor, square: Tensor, beta: float) -> Tensor:
    """The minimiser of (1 - beta) eta^2 + beta |w - eta g - phi|^2, given <g, w - phi> and |g|^2."""
    return beta * dot / ((1 - beta) + beta * square)


class NormRate(SmoothedRate):
    """eta_star = beta <g, w - phi> / ((1 - beta) + beta |g|^2) in [0, eta_max], with phi = w + the last global move."""

    pair = "fednorm"
    watches_epochs = True

    reading: Reading = "practical"
    """`practical` measures the distance to the next global model, predicted by the last global move. `literal` measures
    the distance to the current one as printed, with which all rates are 0."""
    beta: Weight = 0.99
    """The weight of the distance to the global model against the size of the learning rate."""
    eta_max: PositiveFloat = 1.0
    """The largest learning rate that the objective may choose, before smoothing."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """The rate is set in the first step, from the gradient of its mini-batch."""
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

    @property
    def needs_only_mean(self) -> Weighting:
        return self.weighting

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, {"move": torch.zeros_like(w)})

    def send(self, state: ServerState, client: int) -> Message:
        return {"move": state.memory["move"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        after, shares = super().aggregate(state, updates)
        return replace(after, memory={"move": after.w - state.w}), shares


fednorm = method(
    "fednorm",
    client=NormRate,
    server=MovingAverage,
    about="a learning rate per client from its distance to the next global model",
    cite="Eq. 52 of Zheng et al., 2023",
)
