"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): clients look for flat minima."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Job, Oracle
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method


def sharpness_aware(w: Tensor, oracle: Oracle, rho: float) -> Tensor:
    """The gradient at w + rho g / ||g||, of the same mini-batch; the norm is that of all weights, without decay."""
    g = oracle.loss_grad(w)
    return oracle.grad(w, at=w + g * (rho / (g.norm(dim=-1, keepdim=True) + 1e-12)))


class SharpnessAware(ClientRule):
    """Two gradients a step: one to climb, one to descend."""

    rho: PositiveFloat = 0.1
    """rho, the radius of the ascent."""

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return sharpness_aware(w, oracle, self.rho)


fedsam = method(
    "fedsam",
    client=SharpnessAware,
    server=Average,
    about="sharpness-aware clients: two gradients a step",
    cite="Qu et al., ICML 2022; Caldarola et al., ECCV 2022",
)
