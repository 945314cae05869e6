"""FedCM (Xu et al., 2021): every client step is mixed with the last round's global direction."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedkeel.methods.client import ClientRule, Course, Job, Message, Oracle
from fedkeel.methods.fedavg import UniformAverage
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState, Updates
from fedkeel.methods.types import Share
from fedkeel.params import Layout


class MixedSGD(ClientRule):
    """w <- w - lr (alpha g + (1 - alpha) Delta); weight decay is part of g, as Delta contains it already."""

    pair = "fedcm"

    alpha: Share = 0.1
    """The share of the client's own gradient in its step; the rest is the server's momentum. In the first round there
    is no momentum yet, so steps are shorter by this factor."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Every gradient is mixed with the same Delta."""
        return replace(job, course=Course(share=self.alpha, offset=(1 - self.alpha) * job.received["delta"]))


class DirectionAverage(UniformAverage):
    """x <- x + server_lr mean D_i; Delta <- -mean D_i / (lr K_i), with the steps and rates that made D_i."""

    pair = "fedcm"

    @property
    def needs_sgd(self) -> str:
        return "its server computes gradients from how far clients moved"

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, {"delta": torch.zeros_like(w)})

    def send(self, state: ServerState, client: int) -> Message:
        return {"delta": state.memory["delta"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """With local momentum, `length` is more than lr K."""
        after, shares = super().aggregate(state, updates)
        return replace(after, memory={"delta": -(shares / updates.length[:, 0]) @ updates.delta}), shares


fedcm = method(
    "fedcm",
    client=MixedSGD,
    server=DirectionAverage,
    about="client steps mixed with the global direction",
    cite="Xu et al., arXiv 2106.10874, 2021",
)
