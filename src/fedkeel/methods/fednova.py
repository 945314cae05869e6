"""FedNova (Wang et al., NeurIPS 2020): updates are divided by the work behind them before they are averaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.errors import InputError
from fedkeel.methods.client import ClientRule
from fedkeel.methods.path import path_length
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates
from fedkeel.methods.types import Decay
from fedkeel.params import Layout


class NormalisedAverage(ServerRule):
    """x <- x + tau_eff sum_i p_i D_i / a_i, with a_i from steps, momentum and proximal term (`Updates.length`).

    Goes with any client rule that stands alone; the authors' proximal variant is `client: fedprox` with mu = .005.
    """

    @property
    def reports(self) -> tuple[str, ...]:
        """a_i and K_i."""
        return ("length", "steps")

    server_lr: PositiveFloat = 1.0
    """The step size of the server along the normalised mean update."""
    server_momentum: Decay = 0.0
    """The momentum of the server (gmf in the released code, where variants with momentum use 0.9)."""
    tau_eff: Literal["paper", "released"] = "paper"
    """The effective number of steps. With a proximal term, `paper` and `released` (the authors' code) count it
    differently; otherwise they agree."""

    @property
    def needs_sgd(self) -> str:
        return "its server divides updates by how far steps of SGD lead"

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, {"momentum": torch.zeros_like(w)} if self.server_momentum else {})

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The weight of an update is tau_eff p_i / a_i."""
        shares, length = updates.shares(), updates.length
        if not bool((length > 0).all()):
            raise InputError(
                f"algorithm.mu={updates.pull:g} is too large for local.lr={float(updates.lr.max()):g}, clients would "
                "overshoot the model they started from; choose mu * lr below 1"
            )
        counted = length
        if self.tau_eff == "released" and updates.pull:
            counted = path_length(updates.lr, updates.epochs, updates.steps, curve=updates.curve)
        effective = shares @ counted
        weights = effective * shares / length[:, 0]
        step, memory = weights @ updates.delta, state.memory
        if self.server_momentum:  # kept in units of the learning rate, which may decay
            rate = updates.lr[:, 0].mean()
            momentum = self.server_momentum * memory["momentum"] + step / rate
            step, memory = rate * momentum, {"momentum": momentum}
        return replace(state, w=state.w + self.server_lr * step, memory=memory), weights


fednova = method(
    "fednova",
    client=ClientRule,
    server=NormalisedAverage,
    about="updates normalised by the work behind them",
    cite="Wang et al., NeurIPS 2020",
)
