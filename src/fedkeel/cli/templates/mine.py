"""mine: clients stay near the global model, and the server moves with momentum."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedkeel import ClientRule, Job, Layout, Oracle, ServerRule, ServerState, Updates, method


class Proximal(ClientRule):
    """Adds mu/2 ||w - w_start||^2 to the loss of every client."""

    # A setting: a name, a type and a default. Change it with --set algorithm.mu=0.5; bad values are refused.
    mu: float = Field(default=0.1, ge=0)

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The direction of one mini-batch; training then does w <- w - lr * direction.

        All weights of a model are one flat vector of length D. A few clients train at once, or one: `w` and `job.start`
        are [clients, D]. Use dim=-1 for norms and sums, and never change `w` or `job` in place.
        """
        return oracle.grad(w) + self.mu * (w - job.start)


class Momentum(ServerRule):
    """v <- beta v + mean update, then w <- w + v."""

    beta: float = Field(default=0.9, ge=0, lt=1)

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """The state before the first round: the model, and in `memory` what else the server remembers."""
        return ServerState(w, {"v": torch.zeros_like(w)})

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The state after a round, and the weight of each client in it.

        `updates.delta` [clients, D] is what each client changed, `updates.shares()` [clients] its share of the samples.
        """
        shares = updates.shares()
        v = self.beta * state.memory["v"] + shares @ updates.delta
        return ServerState(state.w + v, {"v": v}), shares


mine = method("mine", client=Proximal, server=Momentum, about="a proximal term, and momentum on the server")
