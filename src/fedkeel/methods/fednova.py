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
    server_momentum: Decay = 0.0
    """gmf; .9 in the authors' variants with server momentum."""
    tau_eff: Literal["paper", "released"] = "paper"
    """sum_i p_i a_i; with a proximal term the released code takes sum_i p_i K_i."""

    @property
    def needs_sgd(self) -> str:
        return "updates are divided by how far steps of SGD lead"

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        return ServerState(w, {"momentum": torch.zeros_like(w)} if self.server_momentum else {})

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The weight of an update is tau_eff p_i / a_i."""
        shares, length = updates.shares(), updates.length
        if not bool((length > 0).all()):
            raise InputError(
                f"algorithm.mu: {updates.pull:g} is not accepted with local.lr={float(updates.lr.max()):g}, clients "
                "would overshoot where they started; accepted: mu * lr below 1"
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
