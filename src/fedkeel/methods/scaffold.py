"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates take the clients' drift out of every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Course, Job, Message, Oracle, Sends
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates, Weighting
from fedkeel.params import Layout


class ControlledSGD(ClientRule):
    """y <- y - lr (g(y) - c_i + c); a client's c_i is the mean gradient of its last job."""

    pair = "scaffold"

    option: Literal["I", "II"] = "II"
    """How a client updates its control variate: by the gradient of all its data at the global model (`I`) or by the way
    it moved (`II`)."""

    @property
    def needs_sgd(self) -> str | None:
        return "option II computes control variates from how far clients moved" if self.option == "II" else None

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"c": torch.zeros_like(w)}

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Every gradient is corrected; weight decay and clipping are part of g, and so of c_i."""
        return replace(job, course=Course(offset=job.received["c"] - job.kept["c"]))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Sends c_i+ - c_i, keeps c_i+."""
        if self.option == "I":
            new = oracle.full_grad(job.start)
        else:
            new = job.kept["c"] - job.received["c"] + (job.start - w) / job.length
        return {"c": new - job.kept["c"]}, {"c": new}

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """A vector of the model's size."""
        return {"c": Sends(layout.size)}


class ControlledAverage(ServerRule):
    """x <- x + server_lr mean_S D_i; c <- c + 1/N sum_S (c_i+ - c_i)."""

    pair = "scaffold"

    server_lr: PositiveFloat = 1.0
    """The step size of the server along the mean update."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """c = 0; N counts the clients that have data."""
        return ServerState(w, {"c": torch.zeros_like(w), "clients": (samples > 0).sum()})

    @property
    def needs_only_mean(self) -> Weighting:
        return "uniform"

    def send(self, state: ServerState, client: int) -> Message:
        return {"c": state.memory["c"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The mean model moves by the mean over S, the control variate by the mean over all N."""
        shares = updates.shares("uniform")
        c = state.memory["c"] + updates.messages["c"].sum(0) / state.memory["clients"]
        return ServerState(state.w + self.server_lr * updates.mean_delta("uniform"), {**state.memory, "c": c}), shares


scaffold = method(
    "scaffold",
    client=ControlledSGD,
    server=ControlledAverage,
    about="control variates against client drift",
    cite="Karimireddy et al., ICML 2020",
)
