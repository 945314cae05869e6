"""FedProx (Li et al., MLSys 2020): clients are held near the global model."""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

from fedkeel.algorithms.fedavg import Average
from fedkeel.algorithms.registry import method
from fedkeel.algorithms.rules import ClientRule, Job, Oracle


class Proximal(ClientRule):
    """Adds mu/2 ||w - w_t||^2 to every client's loss."""

    mu: NonNegativeFloat = 0.01
    """mu; the paper tunes it in {.001, .01, .1, 1}."""

    @property
    def pull(self) -> float:
        """mu"""
        return self.mu

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The gradient of loss and proximal term."""
        return oracle.grad(w).add_(w - job.start, alpha=self.mu)


fedprox = method(
    "fedprox",
    client=Proximal,
    server=Average,
    about="a proximal term holds clients near the global model",
    cite="Li et al., MLSys 2020",
)
