"""FedEnt (Zheng et al., 2023): a learning rate per client and round from the entropy of the clients' weights.

With w the global model, g a client's gradient there, a = |w|^2, q = <w, g>, h = |g|^2 and theta its share of the data,
p(eta) = theta (a - 2 eta q + eta^2 h) / phi2 is its weight after a step, and J(eta) = beta p log p + (1 - beta) eta^2
is what it minimises. phi2 = sum_i theta_i (a - 2 eta_i q_i + eta_i^2 h_i) is solved for within the round; no
pre-training over all rounds is needed. While phi2 is held and p < 1/e, J falls as a client's own norm grows: everybody
maximises its own, eta_star = eta_max, and the default is a warm-up from the initial rate to the cap. That works against
the paper's objective: the entropy of all weights falls. The paper's closed form (Eq. 22, which needs |g|^2 for |g|)
solves J' = 0, which for three clients or more with large gradients is a maximum of J, and elsewhere is cut off at 0
(`literal`): with gamma near 1, rates stay near the initial rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.client import ClientRule, Job, Message, Oracle, Sends
from fedkeel.methods.fedavg import Average
from fedkeel.methods.registry import method
from fedkeel.methods.server import Brief, Cohort, Plan, ServerState, Updates
from fedkeel.methods.smoothed import SmoothedRate
from fedkeel.methods.types import GradientBatches, Reading, Weight
from fedkeel.params import Layout

Vector = NDArray[np.float64]

_POINTS, _VALLEYS = 64, 2
TOLERANCE, SWEEPS = 1e-6, 100
"""The relative change of phi2 at which its fixed point counts as found, and the largest number of sweeps."""


def client_weight(
    eta: ArrayLike, a: ArrayLike, q: ArrayLike, h: ArrayLike, share: ArrayLike, phi2: ArrayLike
) -> Vector:
    """p(eta), element by element."""
    eta, a, q, h, share, phi2 = (np.asarray(each, dtype=np.float64) for each in (eta, a, q, h, share, phi2))
    return np.asarray(share * np.maximum(a - 2 * eta * q + eta**2 * h, 0.0) / phi2)


def objective(
    eta: ArrayLike, a: ArrayLike, q: ArrayLike, h: ArrayLike, share: ArrayLike, phi2: ArrayLike, beta: float
) -> Vector:
    """J(eta), element by element; p log p is 0 at p = 0."""
    p = client_weight(eta, a, q, h, share, phi2)
    log = np.log(np.where(p > 0, p, 1.0))
    return np.asarray(beta * p * log + (1 - beta) * np.asarray(eta, dtype=np.float64) ** 2)


def objective_slope(
    eta: ArrayLike, a: ArrayLike, q: ArrayLike, h: ArrayLike, share: ArrayLike, phi2: ArrayLike, beta: float
) -> Vector:
    """J'(eta), element by element."""
    eta, q, h, share, phi2 = (np.asarray(each, dtype=np.float64) for each in (eta, q, h, share, phi2))
    p = np.maximum(client_weight(eta, a, q, h, share, phi2), np.finfo(np.float64).tiny)
    return np.asarray(beta * 2 * share * (eta * h - q) / phi2 * (1 + np.log(p)) + 2 * (1 - beta) * eta)


def entropy_learning_rates(
    a: float, q: Vector, h: Vector, share: Vector, phi2: float, beta: float, eta_max: float
) -> Vector:
    """[m], the global minimisers of J on [0, eta_max].

    J may have two minima. Between the points where p turns around and where p = 1/e, the entropy's part is monotone.
    Each of these intervals gets a grid of its own, whose deepest valleys are searched for the root of J'.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = q / h
        root = np.sqrt(turn**2 - (a - phi2 / (math.e * share)) / h)
    inner = np.stack([turn, turn - root, turn + root], axis=1)
    inner = np.sort(np.clip(np.where(np.isfinite(inner), inner, 0.0), 0.0, eta_max), axis=1)
    ends = np.concatenate([np.zeros((len(q), 1)), inner, np.full((len(q), 1), eta_max)], axis=1)
    grid = ends[:, :-1, None] + np.diff(ends, axis=1)[..., None] * np.linspace(0, 1, _POINTS)
    known = (a, q[:, None, None], h[:, None, None], share[:, None, None], phi2, beta)
    costs = objective(grid, *known)
    around = np.pad(costs, ((0, 0), (0, 0), (1, 1)), constant_values=np.inf)
    valleys = np.where((costs <= around[..., :-2]) & (costs <= around[..., 2:]), costs, np.inf)
    best = valleys.argsort(axis=-1)[..., :_VALLEYS]
    low, middle, high = (np.take_along_axis(grid, (best + by).clip(0, _POINTS - 1), axis=-1) for by in (-1, 0, 1))
    found = np.concatenate([middle, _bisected(lambda eta: objective_slope(eta, *known), low, high)], axis=-1)
    lowest = objective(found, *known).reshape(len(q), -1).argmin(axis=1)
    return np.asarray(found.reshape(len(q), -1)[np.arange(len(q)), lowest])


def _bisected(slope: Callable[[Vector], Vector], low: Vector, high: Vector) -> Vector:
    """Where `slope` turns positive between `low` and `high`, to floating-point precision; or one of the two ends."""
    for _ in range(60):
        middle = (low + high) / 2
        up = slope(middle) > 0
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    return high


def literal_learning_rate(
    q: ArrayLike, h: ArrayLike, share: ArrayLike, phi2: float, beta: float, p: ArrayLike
) -> Vector:
    """Eq. 22 with |g|^2: max(0, q / ((1 - beta) phi2 / (beta theta (1 + log p)) + h))."""
    q, h, share, p = (np.asarray(each, dtype=np.float64) for each in (q, h, share, p))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = beta * share * (1 + np.log(p))
        rate = q * slope / ((1 - beta) * phi2 + h * slope)
    return np.asarray(np.where(np.isfinite(rate), np.maximum(rate, 0.0), 0.0))


def self_consistent_rates(
    a: float, q: Vector, h: Vector, share: Vector, beta: float, eta_max: float, reading: Reading = "practical"
) -> tuple[Vector, float, int]:
    """(Rates [m], phi2, sweeps) with phi2 = sum theta (a - 2 eta q + eta^2 h), damped by a half from eta = 0.

    A rate that jumps between two minima may leave no fixed point; then the last sweep's values are returned. At w = 0
    there are no weights.
    """
    phi2, rates, sweeps = a, np.zeros_like(q), 0
    change = phi2
    while change > TOLERANCE * phi2 and sweeps < SWEEPS:
        sweeps += 1
        if reading == "practical":
            rates = entropy_learning_rates(a, q, h, share, phi2, beta, eta_max)
        else:
            p = client_weight(rates, a, q, h, share, phi2)
            rates = np.minimum(literal_learning_rate(q, h, share, phi2, beta, p), eta_max)
        implied = float(client_weight(rates, a, q, h, share, 1.0).sum())
        change, phi2 = abs(implied - phi2), (phi2 + implied) / 2
    return rates, phi2, sweeps


def weights_entropy(models: Tensor, shares: Tensor) -> Tensor:
    """-sum p log p of p_i ~ theta_i |w_i|^2 (Eq. 8): at most log m, where all weigh the same."""
    weighed = shares.double() * models.square().sum(1).double()
    p = weighed / weighed.sum()
    entropy: Tensor = -torch.special.xlogy(p, p).sum()
    return entropy


class SurveyGradient(ClientRule):
    """Answers with q = <w, g> and h = |g|^2 of its first mini-batch, and if asked with a bound on the smoothness."""

    pair = "fedent"
    limit = 1

    gradient_batches: GradientBatches = 1
    """The data of the gradient at the global model: the first mini-batch (1) or all data of the client (`full`)."""

    @property
    def whole(self) -> bool:
        return self.gradient_batches == "full"

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        first = oracle.grad(w)
        gradient = oracle.full_grad if self.gradient_batches == "full" else oracle.grad
        g = oracle.full_grad(w) if self.gradient_batches == "full" else first
        carry = {"q": (w * g).sum(-1, keepdim=True), "h": g.square().sum(-1, keepdim=True)}
        if "move" in job.received:
            move = job.received["move"]
            moved = move.norm(dim=-1, keepdim=True)
            change = (g - gradient(w - move)).norm(dim=-1, keepdim=True)
            carry["smoothness"] = torch.where(moved > 0, change / moved, torch.zeros_like(change))
        return first, replace(job, carry=carry)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return job.carry, job.kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        return {name: Sends(1) for name in ("q", "h", *(["smoothness"] if "move" in received else []))}


class EntropyRate(SmoothedRate):
    """One rate for all epochs of a round, smoothed over the client's own rounds."""

    pair = "fedent"

    gradient_batches: GradientBatches = 1
    """The data of the gradient at the global model: the first mini-batch (1) or all data of the client (`full`)."""

    @property
    def survey(self) -> ClientRule:
        return SurveyGradient(gradient_batches=self.gradient_batches)

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """The server sends eta_star."""
        return self.smoothed(job, job.received["rate"])


class EntropyAverage(Average):
    """FedAvg's mean; computes phi2 and every client's eta_star from two numbers per client."""

    pair = "fedent"

    reading: Reading = "practical"
    """`practical` minimises the objective J, so that rates rise from the initial rate to the cap. `literal` is Eq. 22
    of the paper, with which rates stay near the initial rate."""
    beta: Weight = 0.99
    """The weight of the entropy against the size of the learning rate in the objective J."""
    eta_max: PositiveFloat = 1.0
    """The largest learning rate that the objective may choose, before smoothing."""
    estimate_bounds: bool = False
    """Let clients also estimate the bounds on gradients (D) and smoothness (L) of the paper's Table 2."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        if not self.estimate_bounds:
            return ServerState(w)
        zero = torch.zeros((), dtype=torch.float64)
        return ServerState(w, {"move": torch.zeros_like(w), "gradient_bound": zero, "smoothness": zero})

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        """q and h come up, eta_star goes down."""
        asked = {"move": state.memory["move"]} if self.estimate_bounds else {}
        answers = yield Brief(asked)
        q, h = (answers.messages[name][:, 0].double().cpu().numpy() for name in ("q", "h"))
        theta = cohort.shares(self.weighting).cpu().numpy()
        a = float(state.w.double() @ state.w.double())
        stars, phi2, sweeps = self_consistent_rates(a, q, h, theta, self.beta, self.eta_max, self.reading)
        notes = {
            "phi2": phi2,
            "phi2_sweeps": sweeps,
            "rate_star_mean": stars.mean(),
            "rate_star_zero": (stars == 0).mean(),
        }
        memory = {**state.memory, **{name: torch.tensor(value, dtype=torch.float64) for name, value in notes.items()}}
        if self.estimate_bounds:
            found = {
                "gradient_bound": answers.messages["h"].sqrt().max(),
                "smoothness": answers.messages["smoothness"].max(),
            }
            memory |= {name: torch.maximum(state.memory[name], value.double().cpu()) for name, value in found.items()}
        rates = torch.from_numpy(stars[:, None]).to(state.w)
        return replace(state, memory=memory), Brief(each={"rate": rates})

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """FedAvg's; notes the entropy of the weights that came back."""
        after, shares = super().aggregate(state, updates)
        memory = {**state.memory, "entropy": weights_entropy(updates.w, shares)}
        if self.estimate_bounds:
            memory["move"] = after.w - state.w
        return replace(after, memory=memory), shares

    def report(self, state: ServerState) -> Message:
        return {name: tensor for name, tensor in state.memory.items() if name != "move"}


fedent = method(
    "fedent",
    client=EntropyRate,
    server=EntropyAverage,
    about="a learning rate per client from the entropy of the clients' weights",
    cite="Zheng et al., 2023",
)
