"""What clients report about their epochs, for FedAgg's mean-field terms: the gradient at the start, and the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.config.section import Section
from fedkeel.methods.client import ClientRule, Job, Message, Oracle, Sends
from fedkeel.methods.job import Sums
from fedkeel.methods.types import GradientBatches
from fedkeel.params import Layout


class Units(Section):
    """What an epoch's mean gradient is a gradient of."""

    phi1: Literal["first", "sum"] = "first"
    """The mean gradient of an epoch: the gradient of its first mini-batch (`first`) or the sum over the epoch (`sum`).
    With `first`, rates become about as many times the base rate as an epoch has mini-batches."""

    @property
    def records(self) -> tuple[str, ...]:
        """What clients report; a summed gradient is minus the way and need not travel."""
        return ("way",) if self.phi1 == "sum" else ("gradient", "way")


class EpochRecorder(Units, ClientRule):
    """SGD at the rates that the server sent; sends the gradient at the start of every epoch, and the epoch's way.

    The way is the displacement for a learning rate of one. Only sums over clients go up.
    """

    pair = "fedagg"
    own_rates = True
    watches_epochs = True

    gradient_batches: GradientBatches = 1
    """The data of the gradient at the start of an epoch: one mini-batch (1) or all data of the client (`full`)."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Rates and sums cover all L epochs, also where a straggler does fewer."""
        rates = job.received["rates"]
        sums = Sums.of(self.records, rates.shape[1], job.start)
        return replace(job, lr=rates[:, : job.lr.shape[1]], sums=sums)

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        g = oracle.grad(w)
        job = self.begin_epochs(job, w, g, oracle)
        return job.course.direction(g, w), job

    def begin_epochs(self, job: Job, w: Tensor, g: Tensor, oracle: Oracle) -> Job:
        """Clients begin their epochs at their own pace."""
        epochs = oracle.begins[:, 0]
        for epoch in sorted(set(epochs.tolist()) - {-1}):
            job = self.begin_epoch(job, epoch, torch.nonzero(epochs == epoch)[:, 0], w, g, oracle)
        return job

    def begin_epoch(self, job: Job, epoch: int, rows: Tensor, w: Tensor, g: Tensor, oracle: Oracle) -> Job:
        """Some clients' epoch begins, and the one before is over."""
        if "gradient" in self.records:
            job.sums.add("gradient", epoch, self.gradient_of(rows, w, g, oracle))
        if epoch and "way" in self.records:
            passed(job, w, rows, epoch - 1, 1)
            passed(job, w, rows, epoch, -1)
        return job

    def gradient_of(self, rows: Tensor, w: Tensor, g: Tensor, oracle: Oracle) -> Tensor:
        """Some clients' gradients at `w`: of their mini-batches, `g`, or of all their data."""
        return oracle.pick(rows).full_grad(w[rows]) if self.gradient_batches == "full" else some(g, rows)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Every client's last epoch ends here."""
        last = job.epochs[:, 0] - 1
        for epoch in sorted(set(last.tolist())) if "way" in self.records else ():
            passed(job, w, torch.nonzero(last == epoch)[:, 0], epoch, 1)
        return {}, job.kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """A vector for each epoch, or two."""
        numbers = received["rates"].shape[-1] * layout.size
        return {name: Sends(numbers, summed=True) for name in self.records}


class PointGradients(ClientRule):
    """Answers with the gradients at L points that the server sent."""

    pair = "fedagg"
    limit = 1

    gradient_batches: GradientBatches = 1
    """The data of the gradient at each point: one mini-batch (1) or all data of the client (`full`)."""

    @property
    def whole(self) -> bool:
        return self.gradient_batches == "full"

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return replace(job, sums=Sums.of(("gradient",), job.received["points"].shape[1], job.start))

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """In the first step, whose mini-batch is that of the training to come."""
        g = oracle.grad(w)
        gradient = oracle.full_grad if self.gradient_batches == "full" else oracle.grad
        for row, point in enumerate(job.received["points"].unbind(1)):
            job.sums.add("gradient", row, gradient(point))
        return g

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """A vector for each point."""
        return {"gradient": Sends(received["points"].numel(), summed=True)}


def passed(job: Job, w: Tensor, rows: Tensor, epoch: int, sign: int) -> None:
    """Where clients stand, seen from their start, at the end (+) or the start (-) of an epoch, over its rate."""
    away, rate = some(w, rows) - some(job.start, rows), job.lr[rows, epoch, None]
    way, moves = away.div_(sign * rate), rate > 0
    job.sums.add("way", epoch, way if bool(moves.all()) else torch.where(moves, way, 0.0))


def some(stack: Tensor, rows: Tensor) -> Tensor:
    """Rows in ascending order; all of them need no copy."""
    return stack if len(rows) == len(stack) else stack[rows]
