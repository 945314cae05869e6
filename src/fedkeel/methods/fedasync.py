"""FedAsync (Xie et al., OPT 2020): every update is mixed into the model as it arrives; staler ones count less."""

from __future__ import annotations

from pydantic import NonNegativeFloat

from fedkeel.methods.client import Job, Oracle
from fedkeel.methods.fedprox import Proximal
from fedkeel.methods.registry import method
from fedkeel.methods.staleness import StalenessMixed


class NearStart(Proximal):
    """SGD with a weak pull to the model that the job started from; without one, it is plain SGD to the bit."""

    mu: NonNegativeFloat = 0.005
    """The weight of the proximal term that keeps clients near the model they received (rho in the paper)."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Sets no course where there is no pull."""
        return super().begin(job, oracle) if self.mu else job


fedasync = method(
    "fedasync",
    client=NearStart,
    server=StalenessMixed,
    about="mixes every update as it arrives; staler updates count less",
    cite="Xie et al., OPT 2020",
)
