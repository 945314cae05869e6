"""FedAgg (Yuan and Wang, 2023): learning rates per epoch from a control problem with mean-field terms.

Given mean gradients phi1 and mean parameters phi2 of a round's epochs, a client's rates minimise
sum_l alpha eta_l^2 + (1 - alpha) |w_l - phi2_l|^2 along w_{l+1} = w_l - eta_l phi1_l. (The paper's text says that a
larger alpha stresses the deviation; its formula says the opposite, and so do its experiments.) This cost has no loss in
it: where all clients start together, Algorithm 1 contracts to rates of zero (`literal`). The default therefore takes
phi1 and phi2 from the last round's path at the base rate e0, which the rates then follow as closely as alpha lets them.

What that gains over FedAvg is a mismatch of units: phi1 is one mini-batch's gradient, phi2 the way of an epoch's n
mini-batches, and the rate, about n e0, is used in each of them. With `phi1: sum` units match: the rates are S times the
base rates, S = c M (I + c M)^-1 with c and M as below: FedAvg or less. With `direction: aggregated` they match too:
an epoch is one step along phi1, as in the equations.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor
from torch.nn.functional import pad

from fedkeel.errors import InputError
from fedkeel.methods.client import ClientRule, Job, Message, Oracle, Sends
from fedkeel.methods.epochs import EpochRecorder, PointGradients, Units
from fedkeel.methods.fedavg import Average
from fedkeel.methods.job import Sums
from fedkeel.methods.registry import method
from fedkeel.methods.server import Answers, Brief, Cohort, Inheriting, Plan, ServerState, Updates
from fedkeel.methods.types import Chance, Multiple, Reading, ScheduleOver, Weight, Weighting, lower_cap
from fedkeel.params import Layout

STALLED = 1e-3
"""As a share of the rates that Algorithm 1 starts from: below it, nothing is learnt."""


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


class Control(Units):
    """What client and server both must know."""

    reading: Reading = "practical"
    """`practical` lets the rates follow the last round's path at the base rate. `literal` is Algorithm 1 with its loop
    repaired, whose rates shrink towards zero."""
    direction: Literal["own", "aggregated"] = "own"
    """Whether clients step along their own gradients in every mini-batch (`own`, Algorithm 2) or all along the mean
    gradient once per epoch (`aggregated`, Eq. 14). As long as no mean gradient is known, they use their own."""
    alpha: Weight = 0.1
    """The weight of the size of the rates against the deviation from the mean path. A smaller value gives larger
    rates."""
    probe: bool = False
    """Measure the mean path by an extra pass at the base rate in the same round, instead of taking it from the last
    round."""
    closed_loop: bool = False
    """Let clients compute their rates again at the start of every epoch, from their own weights (Eq. 15)."""
    floor: Chance = 0.1
    """The smallest learning rate, as a multiple of the base rate."""
    cap: Multiple | None = 10.0
    """The largest learning rate, as a multiple of the base rate, or null for no limit. Without a limit, small networks
    on clients with few classes often diverge."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reading == "literal":
            self._refuse("probe", "closed_loop", "phi1", "floor", "cap", needed="practical")
        return self

    def _refuse(self, *unused: str, needed: Reading) -> None:
        """Refuse settings of the other reading, unless they are at their defaults."""
        for field in unused:
            value = getattr(self, field)
            if value != type(self).model_fields[field].default:
                told = "null" if value is None else str(value).lower()
                raise InputError(
                    f"algorithm.{field}={told} is not used with algorithm.reading={self.reading}; remove it or set "
                    f"algorithm.reading={needed}"
                )

    @property
    def if_diverged(self) -> str | None:
        return None if self.reading == "literal" else lower_cap(self.cap)

    @property
    def records(self) -> tuple[str, ...]:
        """Where all clients move along phi1 without a probe, a way is one step of phi1 and need not travel either."""
        alone = self.direction == "aggregated" and not self.probe
        return ("gradient",) if alone and self.phi1 == "first" else super().records


class AggregatedRates(Control, EpochRecorder):
    """Trains every epoch at the rate that the server planned."""

    @model_validator(mode="after")
    def _looks_at_gradients(self) -> Self:
        own = self.direction == "own" or self.probe
        if self.gradient_batches == "full" and self.phi1 == "sum" and own:
            raise InputError(
                "algorithm.gradient_batches=full does not go with algorithm.phi1=sum, which adds up the mini-batches "
                "of an epoch; set gradient_batches=1 or phi1=first, or direction=aggregated without a probe"
            )
        return self

    @property
    def watches_epochs(self) -> bool:  # type: ignore[override]
        """Clients that move along phi1 do not even need a gradient within an epoch."""
        return self.direction == "own"

    @property
    def needs_sgd(self) -> str:
        return "its learning rates are made for steps along the gradient"

    def schedule_objection(self, over: ScheduleOver) -> str | None:
        """Over rounds, the practical reading plans its rates as multiples of the round's rate."""
        if over == "steps":
            return "its server plans one learning rate for each epoch"
        return "Algorithm 1 finds its own learning rates in every round" if self.reading == "literal" else None

    @property
    def survey(self) -> ClientRule | None:
        """A pass at the base rate, or gradients at given points."""
        if self.reading == "literal":
            return PointGradients(gradient_batches=self.gradient_batches)
        return EpochRecorder(gradient_batches=self.gradient_batches, phi1=self.phi1) if self.probe else None

    def objection(self, layout: Layout, momentum: float) -> str | None:
        """A step of phi1 is all that an epoch does."""
        if self.direction == "own" or not momentum:
            return None
        return (
            f"local.momentum={momentum} would carry clients beyond phi1 (algorithm.direction=aggregated); "
            "set local.momentum=0"
        )

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Sums go up only if the next round needs them."""
        begun = super().begin(job, oracle)
        return begun if self.survey is None else replace(begun, sums=Sums())

    def _led(self, job: Job) -> bool:
        """Whether clients move along phi1; while it is not known, they move along their own gradients."""
        return self.direction == "aggregated" and "phi1" in job.received

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        """Along phi1, the step is made with an epoch's first mini-batch; the others are not looked at."""
        if not self._led(job):
            return super().advance(job, w, oracle)
        begins = oracle.begins
        if bool((begins < 0).all()):
            return torch.zeros_like(w), job
        job = self.begin_epochs(job, w, oracle.grad(w), oracle)
        phi1 = job.received["phi1"][torch.arange(len(w), device=w.device), begins[:, 0].clamp(min=0)]
        return torch.where(begins < 0, 0.0, phi1), job

    def begin_epoch(self, job: Job, epoch: int, rows: Tensor, w: Tensor, g: Tensor, oracle: Oracle) -> Job:
        if self.closed_loop and "phi1" in job.received:
            job = self._solve(job, epoch, rows, w)
        if self.survey is not None:
            return job
        if not self._led(job):
            return super().begin_epoch(job, epoch, rows, w, g, oracle)
        gradient = self.gradient_of(rows, w, g, oracle)
        if self.phi1 == "sum":  # as if all mini-batches of the epoch had this gradient
            job.sums.add("way", epoch, -(job.steps[rows] / job.epochs[rows]).to(w) * gradient)
        else:
            job.sums.add("gradient", epoch, gradient)
        return job

    def _solve(self, job: Job, epoch: int, rows: Tensor, w: Tensor) -> Job:
        phi1, phi2, base = (job.received[name][0] for name in ("phi1", "phi2", "base"))  # the same for all
        if epoch >= len(base):
            return job
        solved = optimal_learning_rates(w[rows], phi1[epoch : len(base)], phi2[epoch:], self.alpha)
        lr = job.lr.clone()
        lr[rows, epoch] = clipped(solved[:, 0], base[epoch], self.floor, self.cap)
        return replace(job, lr=lr)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return super().end(job, w, oracle) if self.survey is None and not self._led(job) else ({}, job.kept)

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        return super().sends(layout, received) if self.survey is None else {}


def clipped(rates: Tensor, base: Tensor, floor: float, cap: float | None) -> Tensor:
    """Between `floor` and `cap` times the base rate."""
    return torch.clamp(rates, min=floor * base, max=None if cap is None else cap * base)


class MeanField(Control, Inheriting, Average):
    """FedAvg's mean; keeps the mean-field terms of the last round and plans the next one's rates by them."""

    pair = "fedagg"

    sweeps: PositiveInt = 20
    """With `reading: literal`: the most sweeps of Algorithm 1 in a round."""
    tolerance: PositiveFloat = 1e-3
    """With `reading: literal`: Algorithm 1 stops when the mean-field terms change by less than this, in norm."""
    initial_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With `reading: literal`: the learning rate that Algorithm 1 starts from in every round. The default is the base
    rate."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.reading == "practical":
            self._refuse("initial_rate", "sweeps", "tolerance", needed="literal")
        return self

    @property
    def inherits(self) -> tuple[str, ...]:
        return (*self.records, "known")

    @property
    def forgets(self) -> str | None:
        """A server that asks for the mean-field terms in every round has no use for earlier ones."""
        if self.reading == "literal":
            return "with algorithm.reading=literal; remove it or set algorithm.reading=practical"
        return "with algorithm.probe=true; remove it or set algorithm.probe=false" if self.probe else None

    def inherit(self, state: ServerState, earlier: Message, epochs: int) -> ServerState:
        """Remark 1: the mean-field terms of the epochs that both runs have; after them, the base rate."""
        terms = {name: pad(earlier[name], (0, 0, 0, epochs - len(earlier[name]))) for name in self.records}
        known = {"known": earlier["known"].to(state.w.device).clamp(max=epochs)}
        return replace(state, memory={name: term.to(state.w) for name, term in terms.items()} | known)

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        """The round's rates, the same for all; without an earlier run, the first round runs at the base rate."""
        if self.reading == "literal":
            return (yield from self._fixed_point(state, cohort))
        memory = dict(state.memory)
        if self.probe:
            memory |= _means(state, (yield Brief({"rates": cohort.lr})))
        rates = solved = cohort.lr
        told = {}
        if known := int(memory.get("known", 0)):  # epochs that some client has done; after them, the base rate
            base = cohort.lr[:known]
            phi1, way = (each[:known] for each in self._field(memory))
            phi2 = trajectory(state.w, base[:, None] * way)
            solved = torch.cat([optimal_learning_rates(state.w, phi1, phi2, self.alpha), cohort.lr[known:]])
            rates = torch.cat([clipped(solved[:known], base, self.floor, self.cap), cohort.lr[known:]])
            told = {"phi1": phi1, "phi2": phi2, "base": base} if self.closed_loop else {}
            if self.direction == "aggregated":  # after the known epochs, the last phi1 goes on
                told["phi1"] = phi1[torch.arange(len(rates), device=phi1.device).clamp(max=known - 1)]
        memory |= {"rates": rates, "solved": solved}
        return replace(state, memory=memory), Brief({"rates": rates, **told})

    def _field(self, memory: Message) -> tuple[Tensor, Tensor]:
        """(phi1 [L, D], the ways [L, D] that lead to phi2): each minus the other, where only one was recorded."""
        phi1 = memory["gradient"] if self.phi1 == "first" else -memory["way"]
        return phi1, memory["way"] if "way" in self.records else -phi1

    def _fixed_point(self, state: ServerState, cohort: Cohort) -> Plan:
        """Algorithm 1: eps and j begin anew every round, "and" is read as "or", changes are norms, phi2_L moves too.

        It starts along the gradient at w; as all clients start there, one solution serves all.
        """
        count, lr = len(cohort.samples), cohort.lr
        lr = lr if self.initial_rate is None else torch.full_like(lr, self.initial_rate)
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
            along, phi1, phi2 = phi1, gradients, path
            if len(trace) == self.sweeps or (change1 <= self.tolerance and change2 <= self.tolerance):
                break
        if bool((rates <= STALLED * lr).all()):
            warnings.warn(
                f"FedAgg's literal reading stalls: after {len(trace)} sweeps its learning rates are at most "
                f"{float(rates.max()):.2g}, because their only fixed point is 0; set algorithm.reading=practical",
                stacklevel=2,
            )
        memory = {"rates": rates, "solved": solved, "trace": torch.stack(trace)}
        told = {"phi1": along} if self.direction == "aggregated" else {}  # so that clients end where the path does
        return replace(state, memory=memory), Brief({"rates": rates, **told})

    @property
    def needs_only_mean(self) -> Weighting:
        return self.weighting

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """FedAvg's; and the reference for the next round, where clients recorded one."""
        after, shares = super().aggregate(state, updates)
        if updates.sums:
            moved = updates.lr > 0 if self.direction == "own" else None
            after = replace(after, memory={**state.memory, **_means(state, updates, moved)})
        return after, shares

    def report(self, state: ServerState) -> Message:
        """The rates, before and after clipping; of each sweep, how phi1 and phi2 changed, and the largest rate."""
        names = {"rates": "planned_rates", "solved": "unclipped_rates", "trace": "sweeps"}
        return {name: state.memory[key] for key, name in names.items() if key in state.memory}


def _gradients(points: Tensor, count: int) -> Generator[Brief, Answers, Tensor]:
    answers = yield Brief({"points": points})
    return (answers.sums["gradient"] / count).to(points)


def _means(state: ServerState, answers: Answers | Updates, moved: Tensor | None = None) -> dict[str, Tensor]:
    """Mean gradients and ways [L, D] of the clients that did each epoch, and how many epochs are known by now.

    Where no client did an epoch, or by `moved` [m, E] none moved in it, its means stay the same.
    """
    total = next(iter(answers.sums.values()))
    epochs = torch.arange(len(total), device=total.device)
    did = answers.epochs.to(epochs) > epochs
    went = did if moved is None else did & pad(moved, (0, len(total) - moved.shape[1]))
    means = {"known": torch.maximum(state.memory.get("known", epochs[:1]), did.any(0).sum()[None])}
    for name, summed in answers.sums.items():
        count = (went if name == "way" else did).sum(0)[:, None]
        mean = (summed / count.clamp(min=1)).to(state.w)
        means[name] = torch.where(count > 0, mean, state.memory.get(name, torch.zeros_like(mean)))
    return means


fedagg = method(
    "fedagg",
    client=AggregatedRates,
    server=MeanField,
    about="learning rates per epoch from a mean-field control problem",
    cite="Yuan and Wang, 2023",
)
