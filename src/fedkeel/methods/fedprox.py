"""FedProx (Li et al., MLSys 2020): clients are held near the global model."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat

from fedkeel.methods.client import ClientRule, Course, Job, Oracle
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method


class Proximal(ClientRule):
    """Adds mu/2 ||w - w_t||^2 to every client's loss."""

    mu: NonNegativeFloat = 0.01
    """The weight of the proximal term that keeps clients near the model they received. The paper tunes it in {0.001,
    0.01, 0.1, 1}."""

    @property
    def pull(self) -> float:
        return self.mu

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """The term's gradient is a pull towards the start."""
        return replace(job, course=Course(pull=torch.full_like(job.lr[:, :1], self.pull), anchor=job.start))


fedprox = method(
    "fedprox",
    client=Proximal,
    server=Average,
    about="a proximal term holds clients near the global model",
    cite="Li et al., MLSys 2020",
)
