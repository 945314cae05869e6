"""FedAvg (McMahan et al., AISTATS 2017): the mean of what the clients trained."""

from __future__ import annotations

from dataclasses import replace

from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates, Weighting


class Average(ServerRule):
    """w <- w + server_lr * sum_i p_i (w_i - w), over the clients that arrived."""

    server_lr: PositiveFloat = 1.0
    """The step size of the server along the mean update. With 1 it is FedAvg as published."""
    weighting: Weighting = "samples"
    """How clients count in the mean: by their numbers of samples (`samples`) or all equally (`uniform`)."""

    @property
    def needs_only_mean(self) -> Weighting:
        return self.weighting

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        shares = updates.shares(self.weighting)
        mean = updates.mean(self.weighting)
        w = mean if self.server_lr == 1 else state.w + self.server_lr * (mean - state.w)
        return replace(state, w=w), shares


class UniformAverage(Average):
    """The same, but all clients count the same by default."""

    weighting: Weighting = "uniform"


fedavg = method(
    "fedavg",
    client=ClientRule,
    server=Average,
    about="sample-weighted mean of the clients' models",
    cite="McMahan et al., AISTATS 2017",
)
