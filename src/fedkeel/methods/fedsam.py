"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): clients look for flat minima."""

from __future__ import annotations

from dataclasses import replace

from pydantic import PositiveFloat

from fedkeel.methods.client import ClientRule, Course, Job, Oracle
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method


class SharpnessAware(ClientRule):
    """Two gradients per step, of the same mini-batch: one to climb, one at w + rho g / ||g|| to descend."""

    rho: PositiveFloat = 0.1
    """The radius of the step uphill that is made before each gradient."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """The norm is that of all weights, without decay."""
        return replace(job, course=Course(ascent=self.rho))


fedsam = method(
    "fedsam",
    client=SharpnessAware,
    server=Average,
    about="sharpness-aware clients: two gradients per step",
    cite="Qu et al., ICML 2022; Caldarola et al., ECCV 2022",
)
