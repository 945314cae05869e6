"""FedLWS (Shi et al., ICLR 2025): after averaging, every layer shrinks with the disagreement of its updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

import torch
from pydantic import NonNegativeFloat, model_validator
from torch import Tensor

from fedkeel.errors import InputError
from fedkeel.methods.client import ClientRule
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates


class Shrinking(ServerRule):
    """w_l <- gamma_l * mean_l with gamma_l = ||old_l|| / (||old_l|| + tau_l ||mean_l - old_l||).

    A layer is a module's own parameters. Buffers are no part of it; in the released code they are.
    """

    beta: NonNegativeFloat = 0.03
    """The factor from the updates' divergence to the amount of shrinking, tau."""
    tau_min: NonNegativeFloat = 0.01
    """The smallest amount of shrinking of a layer."""
    tau_max: NonNegativeFloat = 0.2
    """The largest amount of shrinking of a layer."""
    divergence: Literal["distance", "variance"] = "distance"
    """How far updates are apart: the mean distance from their mean (`distance`, as in the released code) or the mean
    squared distance (`variance`)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.tau_min > self.tau_max:
            raise InputError(
                f"algorithm.tau_min must be at most algorithm.tau_max={self.tau_max:g}; got {self.tau_min:g}"
            )
        return self

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """Sample-weighted mean, then layer by layer."""
        shares = updates.shares()
        mean = shares @ updates.w
        w = mean.clone()
        for layer in updates.layout.layers.values():
            old, step = state.w[layer].norm(), (mean[layer] - state.w[layer]).norm()
            tau = self.tau(updates.w[:, layer])  # all started from the same model, so updates differ as the models do
            if old > 0:  # a layer of zeros has no norm to keep
                w[layer] *= old / (old + tau * step)
        return replace(state, w=w), shares

    def tau(self, layers: Tensor) -> Tensor:
        """clip(beta * divergence of [m, d], tau_min, tau_max)"""
        distance = torch.cdist(layers, layers.mean(0, keepdim=True), compute_mode="donot_use_mm_for_euclid_dist")
        divergence = (distance if self.divergence == "distance" else distance.square()).mean()
        return torch.clamp(self.beta * divergence, self.tau_min, self.tau_max)


fedlws = method(
    "fedlws",
    client=ClientRule,
    server=Shrinking,
    about="layer-wise shrinking after the average",
    cite="Shi et al., ICLR 2025",
)
