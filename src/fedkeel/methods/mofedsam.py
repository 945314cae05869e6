"""MoFedSAM (Qu et al., ICML 2022): FedSAM's gradients, mixed with FedCM's global direction."""

from __future__ import annotations

from dataclasses import replace

from pydantic import PositiveFloat

from fedkeel.methods.client import Job, Oracle
from fedkeel.methods.fedcm import DirectionAverage, MixedSGD
from fedkeel.methods.registry import method


class MixedSharpnessAware(MixedSGD):
    """w <- w - lr (alpha g(w + rho g / ||g||) + (1 - alpha) Delta)."""

    rho: PositiveFloat = 0.1
    """The radius of the step uphill that is made before each gradient."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """FedCM's course, with gradients taken uphill."""
        begun = super().begin(job, oracle)
        return replace(begun, course=replace(begun.course, ascent=self.rho))


mofedsam = method(
    "mofedsam",
    client=MixedSharpnessAware,
    server=DirectionAverage,
    about="FedSAM with FedCM's global direction",
    cite="Qu et al., ICML 2022",
)
