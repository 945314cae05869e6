"""FedDyn (Acar et al., ICLR 2021): a dynamic regulariser makes the clients' optima agree with the global one."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Course, Job, Message, Oracle
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates
from fedkeel.params import Layout


class DynamicRegulariser(ClientRule):
    """Minimises f_i(w) - <gradL_i, w> + alpha/2 ||w - x||^2, with gradL_i = -alpha h_i and h_i the sum of its moves."""

    pair = "feddyn"

    alpha: PositiveFloat = 0.01
    """The weight of the dynamic regulariser. The paper tunes it in {0.001, 0.01, 0.1}."""

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"h": torch.zeros_like(w)}

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Both terms together are a pull alpha (w - x + h_i)."""
        alpha = self.alpha * job.received.get("scale", torch.ones_like(job.lr[:, :1]))
        return replace(job, course=Course(pull=alpha, anchor=job.start - job.kept["h"]))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """h_i <- h_i + (y_i - x), with which gradL_i <- gradL_i - alpha (y_i - x)."""
        return {}, {"h": job.kept["h"] + (w - job.start)}


class DynamicAverage(ServerRule):
    """h <- h + 1/N sum_S (y_i - x); x <- mean_S y_i + h. The mean of the clients' models is what is tested."""

    pair = "feddyn"

    scale_alpha: bool = False
    """Scale alpha for each client by mean(n) / n_i, as the released code does for clients of unequal size."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """h = 0; N counts the clients that have data."""
        clients = (samples > 0).sum()
        scale = (samples.sum().double() / clients / samples.clamp(min=1)).to(w)
        return ServerState(w, {"h": torch.zeros_like(w), "mean": w, "scale": scale, "clients": clients})

    def send(self, state: ServerState, client: int) -> Message:
        """Nothing, or the factor on alpha."""
        return {"scale": state.memory["scale"][client, None]} if self.scale_alpha else {}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """Uniform means: over S for the models, over all N for h, which absentees do not change."""
        shares = updates.shares("uniform")
        mean = shares @ updates.w
        h = state.memory["h"] + updates.delta.sum(0) / state.memory["clients"]
        return ServerState(mean + h, {**state.memory, "h": h, "mean": mean}), shares

    def evaluated(self, state: ServerState) -> Tensor:
        """As the authors do: not x, which also contains h."""
        return state.memory["mean"]


feddyn = method(
    "feddyn",
    client=DynamicRegulariser,
    server=DynamicAverage,
    about="dynamic regularisation aligns the clients' optima",
    cite="Acar et al., ICLR 2021",
)
