"""A learning rate for each client, smoothed over its rounds: what FedEnt and FedNorm have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Job, Message, Oracle
from fedkeel.methods.types import Decay, Multiple, ScheduleOver, lower_cap


class SmoothedRate(ClientRule):
    """Trains at a rate of its own: eta <- gamma eta_before + (1 - gamma) eta_star (FedEnt's Eq. 31).

    `local.lr_decay` lowers the cap and a first rate that is the base rate, but neither `initial_rate` nor the smoothed
    rate.
    """

    own_rates = True

    gamma: Decay = 0.99
    """The share of a client's previous learning rate in its new one."""
    smoothing: Literal["participation", "round"] = "participation"
    """What counts as a step of smoothing: a client's own rounds (`participation`) or all rounds since its last one
    (`round`)."""
    initial_rate: PositiveFloat | None = None
    """The learning rate that a client's smoothing starts from. The default is the base rate."""
    cap: Multiple | None = 10.0
    """The largest learning rate that is used, as a multiple of the base rate, or null for no limit."""

    @property
    def needs_sgd(self) -> str:
        return "its learning rates are made for steps along the gradient"

    @property
    def if_diverged(self) -> str:
        return lower_cap(self.cap)

    def schedule_objection(self, over: ScheduleOver) -> str:
        """Over rounds, a schedule would move no more than the cap."""
        return "every client sets its own learning rate for each job"

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"rate": w.new_zeros(1), "round": torch.zeros(1, dtype=torch.int64, device=w.device)}

    def smoothed(self, job: Job, star: Tensor) -> Job:
        """The job at its smoothed rate, which it carries, in all epochs."""
        base = job.lr[:, :1]
        first = base if self.initial_rate is None else torch.full_like(base, self.initial_rate)
        before = torch.where(job.kept["round"] > 0, job.kept["rate"], first)
        times = job.round - job.kept["round"] if self.smoothing == "round" else torch.ones_like(job.round)
        gamma = (self.gamma ** times.double()).to(base)
        rate = gamma * before + (1 - gamma) * star
        used = rate if self.cap is None else torch.minimum(rate, self.cap * base)
        return replace(job, lr=used.expand(job.lr.shape), carry={"rate": rate})

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {}, {"rate": job.carry["rate"], "round": job.round}
