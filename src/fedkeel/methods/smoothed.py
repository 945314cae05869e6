"""A learning rate of each client's own, smoothed over its rounds: what FedEnt and FedNorm have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.methods.client import ClientRule, Job, Message, Oracle
from fedkeel.methods.types import Decay, Multiple


class SmoothedRate(ClientRule):
    """Trains at a rate of its own: eta <- gamma eta_before + (1 - gamma) eta_star (FedEnt's Eq. 31), from eta = e0.

    `local.lr_decay` lowers a client's first rate and the cap, not what is smoothed.
    """

    gamma: Decay = 0.99
    smoothing: Literal["participation", "round"] = "participation"
    """What t counts in Eq. 31: a client's own rounds; or all, so that gamma is raised to the rounds since its last."""
    cap: Multiple | None = 10.0
    """Of the rate really used, as a multiple of the base rate; what is smoothed goes on without it."""

    @property
    def needs_sgd(self) -> str:
        return "its learning rates are made for steps along the gradient"

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"rate": w.new_zeros(1), "round": torch.zeros(1, dtype=torch.int64, device=w.device)}

    def smoothed(self, job: Job, star: Tensor) -> Job:
        """The job at its smoothed rate, which it carries, in all epochs."""
        base = job.lr[:, :1]
        before = torch.where(job.kept["round"] > 0, job.kept["rate"], base)
        times = job.round - job.kept["round"] if self.smoothing == "round" else torch.ones_like(job.round)
        gamma = (self.gamma ** times.double()).to(base)
        rate = gamma * before + (1 - gamma) * star
        used = rate if self.cap is None else torch.minimum(rate, self.cap * base)
        return replace(job, lr=used.expand(job.lr.shape), carry={"rate": rate})

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {}, {"rate": job.carry["rate"], "round": job.round}
