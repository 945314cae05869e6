"""MimeLite (Karimireddy et al., NeurIPS 2021): clients mimic momentum SGD with a momentum frozen by the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.methods.client import ClientRule, Course, Job, Message, Oracle, Sends
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerState, Updates
from fedkeel.methods.types import Decay, Weighting
from fedkeel.params import Layout

Form = Literal["paper", "fedjax"]


class FrozenMomentum(ClientRule):
    """w <- w - lr ((1 - beta) g + beta m); m stays as it was sent."""

    pair = "mimelite"

    beta: Decay = 0.9
    """The decay rate of the server's momentum."""
    form: Form = "paper"
    """The form of a step with momentum m: (1 - beta) g + beta m (`paper`) or g + beta m (`fedjax`)."""

    @property
    def needs_sgd(self) -> str:
        return "its steps are those of SGD with the server's momentum"

    def objection(self, layout: Layout, momentum: float) -> str | None:
        """The server's momentum takes the place of the client's."""
        return f"local.momentum={momentum} would be a second momentum; set local.momentum=0" if momentum else None

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Every step is one of momentum SGD with the same m."""
        share = 1 - self.beta if self.form == "paper" else 1.0
        return replace(job, course=Course(share=share, offset=self.beta * job.received["m"]))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Sends the gradient of all local data at the old server model."""
        return {"gradient": oracle.full_grad(job.start)}, job.kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """A vector of the model's size."""
        return {"gradient": Sends(layout.size)}


class MomentumAverage(Average):
    """x <- x + server_lr sum p_i D_i; then m <- beta m + (1 - beta) G, with G = sum p_i grad f_i(old x)."""

    pair = "mimelite"

    beta: Decay = 0.9
    """The decay rate of the server's momentum."""
    form: Form = "paper"
    """The form of a step with momentum m: (1 - beta) g + beta m (`paper`) or g + beta m (`fedjax`)."""

    @property
    def needs_only_mean(self) -> Weighting:
        return self.weighting

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, {"m": torch.zeros_like(w)})

    def send(self, state: ServerState, client: int) -> Message:
        return {"m": state.memory["m"]}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The clients moved with the old m; the new one is for the next round."""
        after, shares = super().aggregate(state, updates)
        gradient = shares @ updates.messages["gradient"]
        m = self.beta * state.memory["m"] + (1 - self.beta if self.form == "paper" else 1.0) * gradient
        return replace(after, memory={"m": m}), shares


mimelite = method(
    "mimelite",
    client=FrozenMomentum,
    server=MomentumAverage,
    about="server momentum, frozen, in every client step",
    cite="Karimireddy et al., NeurIPS 2021",
)
