"""FedASMU (Jia, Liu et al., 2025): asynchronous mixing and mid-training merges, both with weights that adapt.

Server: xi = lambda / (sqrt(t) s^sigma) + iota, alpha = mu xi / (1 + mu xi), with versions t from 1 and staleness
s = t - o + 1. Device, once, when a fresher model of version g comes:
phi = gamma / sqrt(g) (1 - upsilon / sqrt(g - o + 1)), beta = mu phi / (1 + mu phi). Five control parameters take
gradient steps; Eq. 4, 5 and 11 print these gradients with errors, which `reading: literal` keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedkeel.config.section import Section
from fedkeel.methods.client import ClientRule, Job, Merge, Message, Oracle, Sends
from fedkeel.methods.mixing import (
    device_gradients,
    freshness,
    importance,
    own_displacement,
    saturated,
    server_gradients,
)
from fedkeel.methods.registry import method
from fedkeel.methods.server import Inheriting, Receipt, ServerState, Updates, View
from fedkeel.methods.slots import Proposals, Timing
from fedkeel.methods.staleness import StalenessMixed, mix
from fedkeel.methods.types import Chance, Reading, ScheduleOver
from fedkeel.params import Layout

LOWEST = torch.tensor([1e-3, 0.0, 0.0], dtype=torch.float64)
HIGHEST = torch.tensor([1e3, 5.0, 1.0], dtype=torch.float64)
"""Bounds of lambda, sigma and iota."""
GAMMA = 1e3
"""The largest gamma; with upsilon at most 1, phi is never negative."""


def _digit(value: Any) -> Any:
    return "0" if value == 0 else value  # YAML reads a number


class Switches(Section):
    """What client and server both must know."""

    reading: Reading = "practical"
    """Which gradients of the control parameters are used: those derived from the objective (`practical`) or those
    printed in the paper (`literal`)."""
    ablation: Annotated[Literal["none", "DA", "FA", "0"], BeforeValidator(_digit)] = "none"
    """Leave a part out: `DA` uses FedAsync's weights on the server, `FA` lets devices merge nothing, and `0` does
    both."""

    @property
    def merges(self) -> bool:
        """Whether devices merge."""
        return self.ablation in ("none", "DA")

    @property
    def adapts(self) -> bool:
        """Whether the server's weights are FedASMU's."""
        return self.ablation in ("none", "FA")


class FreshMerge(Switches, Timing, ClientRule):
    """SGD; at its slot, a device merges a fresher global model, if there is one: w <- (1 - beta) w + beta w_g."""

    recorded = ("merge_weight", "loss_before", "loss_after", "gamma", "upsilon")

    gamma: Annotated[float, Field(ge=0, le=GAMMA)] = 3.0
    """The first value of the control parameter gamma, which scales the weight of a fresh model in a device's merge."""
    upsilon: Chance = 0.1
    """The first value of the control parameter upsilon, which lowers the weight of a fresh model that is only a little
    fresher."""
    mu_b: PositiveFloat = 1.0
    """The factor on the importance of a fresh model in the merge weight (mu_beta in the paper)."""
    gamma_lr: NonNegativeFloat = 1e-4
    """The learning rate of gamma (eta_gamma in the paper)."""
    upsilon_lr: NonNegativeFloat = 1e-4
    """The learning rate of upsilon (eta_upsilon in the paper)."""
    reward: Literal["local", "proxy"] = "local"
    """The loss by which a merge is judged: that of the current mini-batch (`local`) or that of a sample of other
    devices' data (`proxy`)."""

    def root(self, job: Job) -> Tensor:
        """g from 1, [k, 1]."""
        assert job.fresh is not None
        return job.fresh.version.double() + 1

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        """Control parameters, in float64: their steps are small."""
        if not self.merges:
            return {}
        first = {"gamma": self.gamma, "upsilon": self.upsilon}
        kept = {name: torch.full_like(w[:1], value, dtype=torch.float64) for name, value in first.items()}
        return {**kept, **self.first_table(w)} if self.slot == "learned" else kept

    def asks_after(self, kept: Message, received: Message, epochs: int, draws: tuple[float, float]) -> int:
        """In 1 .. epochs - 1; 0 without merges, or where there is no such epoch."""
        if not self.merges:
            return 0
        return self.learnt_slot(kept, received, epochs, draws) if self.slot == "learned" else self.fixed_slot(epochs)

    def begin(self, job: Job, oracle: Oracle) -> Job:
        if not self.merges:
            return job
        noted = {name: torch.zeros_like(job.start[:, :1]) for name in ("merge_weight", "loss_before", "loss_after")}
        return replace(job, carry={**noted, "gamma": job.kept["gamma"], "upsilon": job.kept["upsilon"]})

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        """Eq. 9 to 11. Erratum (`literal`): Eq. 11 swaps the models before and after the merge."""
        assert job.fresh is not None
        gamma, upsilon = job.carry["gamma"], job.carry["upsilon"]
        root, staleness = self.root(job), (job.fresh.version - job.version + 1).double()
        phi = freshness(root, staleness, gamma, upsilon)
        share = saturated(phi, self.mu_b).to(w)
        merged = torch.lerp(w, job.fresh.w, share)
        at, away = (merged, w) if self.reading == "practical" else (w, merged)
        loss, g = oracle.peek(at)
        assert g is not None
        if self.reward == "local":
            other, _ = oracle.peek(away, gradient=False)
            before, after = (other, loss) if self.reading == "practical" else (loss, other)
        else:
            before, after = (oracle.peek(each, "proxy", gradient=False)[0] for each in (w, merged))
        along = (g * (job.fresh.w - away)).sum(-1, keepdim=True).double()
        by_gamma, by_upsilon = device_gradients(along, root, staleness, gamma, upsilon, self.mu_b)
        notes = {
            "merge_weight": share,
            "loss_before": before.to(w),
            "loss_after": after.to(w),
            "gamma": (gamma - self.gamma_lr * by_gamma).clamp(0, GAMMA),
            "upsilon": (upsilon - self.upsilon_lr * by_upsilon).clamp(0, 1),
        }
        return Merge(share, notes)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """The weight of the merge and what it did go up; the control parameters stay."""
        if not self.merges:
            return {}, job.kept
        kept = {"gamma": job.carry["gamma"], "upsilon": job.carry["upsilon"]}
        if self.slot == "learned":
            reward = job.carry["loss_before"] - job.carry["loss_after"]
            slot = torch.zeros_like(job.slot) if job.fresh is None else job.slot
            kept |= self.learnt_table(job.kept, slot, job.epochs, reward)
        return {name: job.carry[name] for name in self.recorded}, kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """Two numbers, beta and the reward; the others are for the record."""
        charged = ("merge_weight", "loss_after")
        return {name: Sends(1, recorded=name not in charged) for name in self.recorded} if self.merges else {}


class DynamicMixing(Switches, Proposals, Inheriting):
    """w <- (1 - alpha) w + alpha w_i, with control parameters lambda, sigma and iota that take gradient steps."""

    mu_a: PositiveFloat = 1.0
    """The factor on the importance of an update in its weight on the server (mu_alpha in the paper)."""
    lambda_lr: NonNegativeFloat = 1e-4
    """The learning rate of lambda (eta_lambda in the paper)."""
    sigma_lr: NonNegativeFloat = 1e-4
    """The learning rate of sigma (eta_sigma in the paper)."""
    iota_lr: NonNegativeFloat = 1e-4
    """The learning rate of iota (eta_iota in the paper)."""
    staleness_bound: PositiveInt = 99
    """Discard updates whose staleness, counted from 1, is above this (tau in the paper)."""
    shared_control: bool = False
    """Use one set of control parameters for all devices, instead of one per device."""

    @property
    def learns(self) -> bool:
        """Whether it proposes slots."""
        return self.merges and self.slot == "learned"

    @property
    def inherits(self) -> tuple[str, ...]:
        return ("meta", "baseline")

    @property
    def forgets(self) -> str | None:
        """Only the LSTM is taken over."""
        if not self.merges:
            ablation = f"with algorithm.ablation={self.ablation}, where devices do not merge"
            return f"{ablation}; remove it or set algorithm.ablation to none or DA"
        return None if self.learns else f"with algorithm.slot={self.slot}; remove it or set algorithm.slot=learned"

    @property
    def control(self) -> tuple[float, float, float]:
        """The first values of lambda, sigma and iota."""
        raise NotImplementedError

    @property
    def needs_sgd(self) -> str | None:
        if not self.adapts or not any((self.lambda_lr, self.sigma_lr, self.iota_lr)):
            return None
        return "its control parameters learn from how far clients moved (unless lambda_lr, sigma_lr and iota_lr are 0)"

    def schedule_objection(self, over: ScheduleOver) -> str | None:
        if over == "steps" and self.reading == "literal" and self.needs_sgd:
            return "Eq. 4 and 5, taken literally, divide a client's path by one learning rate"
        return None

    def root(self, view: View) -> float:
        """The number under the root."""
        raise NotImplementedError

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """Control parameters [N, 3], or [1, 3]; there is no log of version 0."""
        rows = 1 if self.shared_control else len(samples)
        control = torch.tensor(self.control, dtype=torch.float64).repeat(rows, 1)
        memory = {"control": control} if self.adapts else {}
        return ServerState(w, {**memory, **self.first_memory(w, len(samples))} if self.learns else memory)

    def inherit(self, state: ServerState, earlier: Message, epochs: int) -> ServerState:
        """Section 4.3.1: the LSTM is trained before; devices begin with tables of zeros all the same."""
        return replace(state, memory={**state.memory, **self.pretrained(earlier, state.w)})

    def send(self, state: ServerState, client: int) -> Message:
        """Probabilities of slots, where they are learnt, before a device's first merge."""
        return self.proposal(state.memory, client) if self.learns else {}

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """The weight adapts or is FedAsync's; an update that is too stale changes only the log."""
        if self.adapts:
            after, receipt = self._receive(state, update, view)
        else:
            fixed = StalenessMixed(staleness_bound=self.staleness_bound)
            after, receipt = fixed.receive(state, update, view)
        if receipt.accepted and self.learns:
            after = replace(after, memory=self.learnt_memory(after.memory, update, view.client))
        return after, receipt

    def _receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """Control parameters first, then the weight."""
        log = {
            version: noted for version, noted in state.log.items() if version in view.held or version == view.version
        }
        staleness = view.staleness + 1
        if staleness > self.staleness_bound:
            return replace(state, log=log), Receipt(0.0, published=False, accepted=False)
        row = 0 if self.shared_control else view.client
        control = self._adapted(state.memory["control"][row], state.log.get(view.start_version), update)
        lambda_, sigma, iota = control.tolist()
        root = self.root(view)
        xi = importance(root, float(staleness), lambda_, sigma, iota)
        alpha = saturated(xi, self.mu_a)
        controls = state.memory["control"].clone()
        controls[row] = control
        if view.version not in view.held:
            log.pop(view.version, None)
        mixing = torch.tensor([xi, root, staleness, lambda_, sigma], dtype=torch.float64)
        log[view.version + 1] = {"delta": update.w[0] - state.w, "mixing": mixing}
        after = ServerState(mix(state.w, update.w[0], alpha), {**state.memory, "control": controls}, log)
        return after, Receipt(alpha, notes={"lambda": lambda_, "sigma": sigma, "iota": iota})

    def _adapted(self, control: Tensor, logged: Message | None, update: Updates) -> Tensor:
        """[3], after a step of Eq. 3 on the loss of the model that the job started from, if that model was mixed.

        The slopes are those of the mixing that made that model, with the control parameters of the client mixed in.
        Errata (`literal`): Eq. 4 and 5 take w_i - w_o for a gradient, not for its opposite, divide it by epochs in
        place of steps, and count a merged model in.
        """
        if logged is None:
            return control
        if self.reading == "literal":
            length = -float(update.lr[0, 0]) * int(update.epochs)
            moved = update.delta[0]
        else:
            length, moved = float(update.length), own_displacement(update)
        along = -float(moved @ logged["delta"]) / length if length else 0.0
        xi, root, staleness, lambda_, sigma = logged["mixing"].tolist()
        slopes = server_gradients(along, xi, root, staleness, lambda_, sigma, self.mu_a, self.reading)
        rates = (self.lambda_lr, self.sigma_lr, self.iota_lr)
        step = torch.tensor([rate * slope for rate, slope in zip(rates, slopes, strict=True)], dtype=torch.float64)
        return (control - step).clamp(LOWEST, HIGHEST)


class AsynchronousMixing(DynamicMixing):
    """FedASMU's server: t is the number of the global model, from 1."""

    pace = "periodic"

    lambda_: Annotated[float, Field(ge=1e-3, le=1e3)] = 5.0
    """The first value of the control parameter lambda, which scales the weight of an update."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 0.5
    """The first value of the control parameter sigma, by which staler updates count less."""
    iota: Chance = 0.05
    """The first value of the control parameter iota, which is added to the importance of every update."""

    @property
    def control(self) -> tuple[float, float, float]:
        return self.lambda_, self.sigma, self.iota

    def root(self, view: View) -> float:
        return view.version + 1.0


fedasmu = method(
    "fedasmu",
    client=FreshMerge,
    server=AsynchronousMixing,
    about="adaptive mixing, and fresh models merged in mid-training",
    cite="Jia, Liu et al., 2025",
)
