"""FedCos as FedEnt compares with it (Eq. 51): models count by their cosine with the global one.

Not the FedCos of Zhang et al. (2022), which is a client's regulariser.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.registry import method
from fedkeel.methods.server import ServerRule, ServerState, Updates


def cosine_weights(models: Tensor, start: Tensor) -> Tensor:
    """[m], proportional to cos(w_i, w) where that is positive, else 0; all the same where no cosine is positive."""
    dots = models @ start
    norms = models.norm(dim=1) * start.norm()
    cosines = torch.where(norms > 0, dots / norms.clamp(min=torch.finfo(dots.dtype).tiny), 0.0).clamp(min=0)
    if not bool(cosines.sum() > 0):
        cosines = torch.ones_like(cosines)
    return cosines / cosines.sum()


class CosineAverage(ServerRule):
    """w <- w + server_lr * sum_i theta_i (w_i - w), theta_i ~ cos(w_i, w), times how often a client was drawn."""

    server_lr: PositiveFloat = 1.0
    """The step size of the server along the weighted mean update."""

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        weights = cosine_weights(updates.w, state.w)
        if updates.draws is not None:
            weights = weights * updates.draws.to(weights)
            weights = weights / weights.sum()
        mean = weights @ updates.w
        return replace(state, w=state.w + self.server_lr * (mean - state.w)), weights


fedcos = method(
    "fedcos",
    client=ClientRule,
    server=CosineAverage,
    about="models weighted by their cosine with the global one",
    cite="Eq. 51 of Zheng et al., 2023",
)
