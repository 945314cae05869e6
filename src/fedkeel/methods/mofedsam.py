"""MoFedSAM (Qu et al., ICML 2022): FedSAM's gradients, mixed with FedCM's global direction."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import Job, Oracle
from fedkeel.methods.fedcm import DirectionAverage, MixedSGD
from fedkeel.methods.fedsam import sharpness_aware
from fedkeel.methods.registry import method


class MixedSharpnessAware(MixedSGD):
    """w <- w - lr (alpha g(w + rho g / ||g||) + (1 - alpha) Delta)."""

    rho: PositiveFloat = 0.1

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return job.course.direction(sharpness_aware(w, oracle, self.rho), w)


mofedsam = method(
    "mofedsam",
    client=MixedSharpnessAware,
    server=DirectionAverage,
    about="FedSAM with FedCM's global direction",
    cite="Qu et al., ICML 2022",
)
