"""FedAgg (Yuan and Wang, 2023): learning rates per epoch from a control problem with mean-field terms.

Given mean gradients phi1 and mean parameters phi2 of a round's epochs, a client's rates minimise
sum_l alpha eta_l^2 + (1 - alpha) |w_l - phi2_l|^2 along w_{l+1} = w_l - eta_l phi1_l. (The paper's text says that a
larger alpha stresses the deviation; its formula says the opposite, and so do its experiments.) This cost has no loss in
it: where all clients start together, Algorithm 1 contracts to rates of zero (`literal`). The default therefore takes
phi1 and phi2 from the last round's path at the base rate, which the rates then follow as closely as alpha lets them.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor
from torch.nn.functional import pad

from fedkeel.config.section import Section
from fedkeel.errors import InputError
from fedkeel.methods.client import ClientRule, Job, Message, Oracle, Sends
from fedkeel.methods.fedavg import Average
from fedkeel.methods.job import Sums
from fedkeel.methods.registry import method
from fedkeel.methods.server import Answers, Brief, Cohort, Plan, ServerState, Updates
from fedkeel.methods.types import Chance, GradientBatches, Multiple, Reading, Weight
from fedkeel.params import Layout

STALLED = 1e-3
"""Of the base rate: below, nothing is learnt."""


def optimal_learning_rates(start: Tensor, gradients: Tensor, parameters: Tensor, alpha: float) -> Tensor:
    """[..., L], Eq. 15 as one system: (I + c M) eta = c b with c = (1 - alpha) / alpha.

    For clients at `start` [..., D], phi1 = `gradients` [L, D] and phi2 = `parameters` [L + 1, D], of which the first
    row does not matter. M[l, r] = (L - max(l, r)) <phi1_l, phi1_r> is positive semidefinite.
    """
    phi1, phi2, w = gradients.double(), parameters.double(), start.double()
    count = torch.arange(len(phi1), 0, -1, dtype=torch.float64, device=phi1.device)
    c = (1 - alpha) / alpha
    m = torch.minimum(count[:, None], count) * (phi1 @ phi1.T)
    still = (w[..., None, :] - phi2[1:]).flip(-2).cumsum(-2).flip(-2)  # sum over k > l of w - phi2_k
    b = (still * phi1).sum(-1)
    factor = torch.linalg.cholesky(torch.eye(len(m), dtype=m.dtype, device=m.device) + c * m)
    return torch.cholesky_solve(c * b[..., None], factor)[..., 0].to(start.dtype)


def trajectory(start: Tensor, displacements: Tensor) -> Tensor:
    """[L + 1, D], where the displacements [L, D] of epochs lead from `start` [D]."""
    return torch.cat([start[None], start + displacements.cumsum(0)])


class Control(Section):
    """What client and server both must know."""

    reading: Reading = "practical"
    """Reference history; or Algorithm 1 with its loop repaired, which contracts towards rates of zero."""
    alpha: Weight = 0.1
    """The weight of the rates' size against that of the deviation; smaller means larger rates."""
    probe: bool = False
    """Whether the reference comes from an extra pass at the base rate in the same round."""
    closed_loop: bool = False
    """Whether clients solve anew at the start of every epoch from where they are (Eq. 15 with their own w_{i,l})."""
    floor: Chance = 0.1
    """Of a rate, as a multiple of the base rate."""
    cap: Multiple | None = 10.0
    """The same upwards. Without it, small networks on clients with few classes collapse."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field in ("probe", "closed_loop"):
            if self.reading == "literal" and getattr(self, field):
                raise InputError(
                    f"algorithm.{field}: true is not accepted with reading literal; accepted: reading practical"
                )
        return self


class EpochRecorder(ClientRule):
    """SGD at the rates that the server sent; sends the gradient at the start of every epoch, and the epoch's way.

    That is its displacement for a learning rate of one. Only their sums over clients go up.
    """

    pair = "fedagg"
    watches_epochs = True

    gradient_batches: GradientBatches = 1

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Rates and sums are of all L epochs, also where a straggler does fewer."""
        rates = job.received["rates"]
        sums = Sums.of(("gradient", "way"), rates.shape[1], job.start)
        return replace(job, lr=rates[:, : job.lr.shape[1]], sums=sums)

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        """Clients begin their epochs at their own pace."""
        g = oracle.grad(w)
        epochs = oracle.begins[:, 0]
        for epoch in sorted(set(epochs.tolist()) - {-1}):
            job = self._begin_epoch(job, epoch, torch.nonzero(epochs == epoch)[:, 0], w, g, oracle)
        return job.course.direction(g, w), job

    def _begin_epoch(self, job: Job, epoch: int, rows: Tensor, w: Tensor, g: Tensor, oracle: Oracle) -> Job:
        full = self.gradient_batches == "full"
        job.sums.add("gradient", epoch, oracle.pick(rows).full_grad(w[rows]) if full else _some(g, rows))
        if epoch:
            _passed(job, w, rows, epoch - 1, 1)
            _passed(job, w, rows, epoch, -1)
        return job

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """Everybody's last epoch ends here."""
        last = job.epochs[:, 0] - 1
        for epoch in sorted(set(last.tolist())):
            _passed(job, w, torch.nonzero(last == epoch)[:, 0], epoch, 1)
        return {}, job.kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """Two vectors for each epoch."""
        numbers = received["rates"].shape[-1] * layout.size
        return {name: Sends(numbers, summed=True) for name in ("gradient", "way")}


def _passed(job: Job, w: Tensor, rows: Tensor, epoch: int, sign: int) -> None:
    """Where clients stand, seen from their start, at the end (+) or the start (-) of an epoch, over its rate."""
    away, rate = _some(w, rows) - _some(job.start, rows), job.lr[rows, epoch, None]
    way, moves = away.div_(sign * rate), rate > 0
    job.sums.add("way", epoch, way if bool(moves.all()) else torch.where(moves, way, 0.0))


def _some(stack: Tensor, rows: Tensor) -> Tensor:
    """Rows in ascending order; all of them need no copy."""
    return stack if len(rows) == len(stack) else stack[rows]


class AggregatedRates(Control, EpochRecorder):
    """Trains every epoch at the rate that the server planned, on the client's own gradients (Algorithm 2)."""

    @property
    def needs_sgd(self) -> str:
        return "its learning rates are made for steps along the gradient"

    @property
    def survey(self) -> ClientRule | None:
        """A pass at the base rate, or gradients at given points."""
        if self.reading == "literal":
            return PointGradients(gradient_batches=self.gradient_batches)
        return EpochRecorder(gradient_batches=self.gradient_batches) if self.probe else None

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Sums go up only if the next round needs them."""
        begun = super().begin(job, oracle)
        return begun if self.survey is None else replace(begun, sums=Sums())

    def _begin_epoch(self, job: Job, epoch: int, rows: Tensor, w: Tensor, g: Tensor, oracle: Oracle) -> Job:
        if self.closed_loop and "phi1" in job.received:
            job = self._solve(job, epoch, rows, w)
        return super()._begin_epoch(job, epoch, rows, w, g, oracle) if self.survey is None else job

    def _solve(self, job: Job, epoch: int, rows: Tensor, w: Tensor) -> Job:
        phi1, phi2, base = (job.received[name][0] for name in ("phi1", "phi2", "base"))  # the same for all
        if epoch >= len(phi1):
            return job
        solved = optimal_learning_rates(w[rows], phi1[epoch:], phi2[epoch:], self.alpha)
        lr = job.lr.clone()
        lr[rows, epoch] = clipped(solved[:, 0], base[epoch], self.floor, self.cap)
        return replace(job, lr=lr)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return super().end(job, w, oracle) if self.survey is None else ({}, job.kept)

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        return super().sends(layout, received) if self.survey is None else {}


class PointGradients(ClientRule):
    """Answers with the gradients at L points that the server sent."""

    pair = "fedagg"
    limit = 1

    gradient_batches: GradientBatches = 1

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


def clipped(rates: Tensor, base: Tensor, floor: float, cap: float | None) -> Tensor:
    """Between `floor` and `cap` times the base rate."""
    return torch.clamp(rates, min=floor * base, max=None if cap is None else cap * base)


class MeanField(Control, Average):
    """FedAvg's mean; keeps the mean-field terms of the last round and plans the next one's rates by them."""

    pair = "fedagg"

    sweeps: PositiveInt = 20
    """Of Algorithm 1 in a round, at most (`literal`)."""
    tolerance: PositiveFloat = 1e-3
    """By how much the mean-field terms may still change when it stops, in norm."""

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        """The round's rates, the same for all; the first round runs at the base rate."""
        if self.reading == "literal":
            return (yield from self._fixed_point(state, cohort))
        memory = dict(state.memory)
        if self.probe:
            memory |= _means(state, (yield Brief({"rates": cohort.lr})))
        rates = solved = cohort.lr
        told = {}
        if known := int(memory.get("known", 0)):  # epochs that somebody has done; behind them, the base rate
            base = cohort.lr[:known]
            phi1, phi2 = memory["gradient"][:known], trajectory(state.w, base[:, None] * memory["way"][:known])
            solved = torch.cat([optimal_learning_rates(state.w, phi1, phi2, self.alpha), cohort.lr[known:]])
            rates = torch.cat([clipped(solved[:known], base, self.floor, self.cap), cohort.lr[known:]])
            told = {"phi1": phi1, "phi2": phi2, "base": base} if self.closed_loop else {}
        memory |= {"rates": rates, "solved": solved}
        return replace(state, memory=memory), Brief({"rates": rates, **told})

    def _fixed_point(self, state: ServerState, cohort: Cohort) -> Plan:
        """Algorithm 1: eps and j begin anew every round, "and" is read as "or", changes are norms, phi2_L moves too.

        It starts from the base rates along the gradient at w; as all clients start there, one solution serves all.
        """
        count, lr = len(cohort.samples), cohort.lr
        points = state.w.expand(len(lr), -1)
        phi1 = yield from _gradients(points, count)
        phi2 = trajectory(state.w, -lr[:, None] * phi1)
        trace = []
        while True:
            solved = optimal_learning_rates(state.w, phi1, phi2, self.alpha)
            rates = solved.clamp(0, 1)
            path = trajectory(state.w, -rates[:, None] * phi1)
            gradients = yield from _gradients(path[:-1], count)
            change1, change2 = (gradients - phi1).norm(dim=1).sum(), (path - phi2).norm(dim=1).sum()
            trace.append(torch.stack([change1, change2, rates.max()]))
            phi1, phi2 = gradients, path
            if len(trace) == self.sweeps or (change1 <= self.tolerance and change2 <= self.tolerance):
                break
        if bool((rates <= STALLED * lr).all()):
            warnings.warn(
                f"FedAgg's literal reading stalls: after {len(trace)} sweeps its learning rates are at most "
                f"{float(rates.max()):.2g}, as their only fixed point is 0; accepted: algorithm.reading=practical",
                stacklevel=2,
            )
        memory = {"rates": rates, "solved": solved, "trace": torch.stack(trace)}
        return replace(state, memory=memory), Brief({"rates": rates})

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """FedAvg's; and the reference for the next round, where clients recorded one."""
        after, shares = super().aggregate(state, updates)
        if updates.sums:
            after = replace(after, memory={**state.memory, **_means(state, updates, updates.lr > 0)})
        return after, shares

    def report(self, state: ServerState) -> Message:
        """The rates, before and after clipping; of each sweep, how phi1 and phi2 changed, and the largest rate."""
        names = {"rates": "planned_rates", "solved": "unclipped_rates", "trace": "sweeps"}
        return {name: state.memory[key] for key, name in names.items() if key in state.memory}


def _gradients(points: Tensor, count: int) -> Generator[Brief, Answers, Tensor]:
    answers = yield Brief({"points": points})
    return (answers.sums["gradient"] / count).to(points)


def _means(state: ServerState, answers: Answers | Updates, moved: Tensor | None = None) -> dict[str, Tensor]:
    """phi1 [L, D] and the ways [L, D] of the clients that did each epoch, and how many epochs are known by now.

    Where nobody did one, or in `moved` [m, E] nobody moved, all stays as it was.
    """
    total = answers.sums["way"]
    epochs = torch.arange(len(total), device=total.device)
    did = answers.epochs.to(epochs) > epochs
    went = did if moved is None else did & pad(moved, (0, len(total) - moved.shape[1]))
    means = {"known": torch.maximum(state.memory.get("known", epochs[:1]), did.any(0).sum()[None])}
    for name, who in (("gradient", did), ("way", went)):
        count = who.sum(0)[:, None]
        mean = (answers.sums[name] / count.clamp(min=1)).to(state.w)
        means[name] = torch.where(count > 0, mean, state.memory.get(name, torch.zeros_like(mean)))
    return means


fedagg = method(
    "fedagg",
    client=AggregatedRates,
    server=MeanField,
    about="learning rates per epoch from a mean-field control problem",
    cite="Yuan and Wang, 2023",
)
