"""FedASMU's server and its LSTM in numpy, and jobs and uploads for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.methods import Job, Updates
from fedkeel.methods.fedasmu import DynamicMixing
from fedkeel.methods.job import Fresh
from fedkeel.methods.mixing import TINY
from tests.helpers import arrivals
from tests.helpers.federation import N, Vector

HIDDEN = 16
"""Units of the LSTM."""

D = 4
LAYOUT = arrivals.layout_of(D)


class Server:
    """FedASMU's server in numpy: versions from 1, and every version's model and mixing kept for ever."""

    def __init__(self, w: Vector, rule: DynamicMixing) -> None:
        self.models, self.rule = {1: w}, rule
        self.control = np.tile(rule.control, (1 if rule.shared_control else N, 1))
        self.made: dict[int, tuple[Vector, float, int, float, float, float]] = {}

    @property
    def version(self) -> int:
        return max(self.models)

    def receive(self, client: int, start: int, uploaded: Vector, g: Vector, root: float | None = None) -> float:
        """`g` is the gradient that the server takes the job to have followed; `root` is t, unless said otherwise."""
        rule, t = self.rule, self.version
        row = 0 if rule.shared_control else client
        lambda_, sigma, iota = self.control[row]
        if start in self.made:
            along, xi, age, under, theirs, power = self.made[start]
            q = g @ along
            k, z = rule.mu_a / (1 + rule.mu_a * xi) ** 2, 1 / (np.sqrt(under) * age**power)
            by_sigma = -(np.log(max(power, TINY)) if rule.reading == "literal" else theirs * np.log(age)) * k * q * z
            lambda_ = np.clip(lambda_ - rule.lambda_lr * k * q * z, 1e-3, 1e3)
            sigma = np.clip(sigma - rule.sigma_lr * by_sigma, 0, 5)
            iota = np.clip(iota - rule.iota_lr * k * q, 0, 1)
        self.control[row] = lambda_, sigma, iota
        age, root = t - start + 1, float(t) if root is None else root
        xi = lambda_ / (np.sqrt(root) * age**sigma) + iota
        alpha = rule.mu_a * xi / (1 + rule.mu_a * xi)
        self.models[t + 1] = (1 - alpha) * self.models[t] + alpha * uploaded
        self.made[t + 1] = uploaded - self.models[t], xi, age, root, lambda_, sigma
        return float(alpha)


def fresh_model(w: Tensor, version: int | Tensor) -> Fresh[Tensor]:
    """Weights [k, D] without statistics, as a job is given them."""
    each = torch.full_like(w[:, :1], version, dtype=torch.int64) if isinstance(version, int) else version
    return Fresh(w, w[:, :0], each)


def upload(rng: np.random.Generator, start: Vector, fresh: Vector | None) -> tuple[Updates, Vector]:
    """A job of 4 epochs of 3 steps at .05, with a merge after the first if `fresh` is there; and its mean direction."""
    epochs, lr = np.repeat(rng.normal(size=(4, D)), 3, axis=0), 0.05
    w = start.copy()
    share = 0.0
    for step, g in enumerate(epochs):
        if fresh is not None and step == 3:
            share = float(rng.uniform(0.1, 0.8))
            w = (1 - share) * w + share * fresh
        w = w - lr * g
    if fresh is None:
        return arrivals.arrival(w, start, epochs=4, steps=12, lr=lr, layout=LAYOUT), (start - w) / (12 * lr)
    own = (w - start - share * (fresh - start)) / (1 - share / 4)
    merged: dict[str, Any] = {"slot": torch.tensor([[1]]), "fresh": fresh_model(arrivals.vector(fresh)[None], 6)}
    update = arrivals.arrival(
        w, start, epochs=4, steps=12, lr=lr, messages={"merge_weight": share}, layout=LAYOUT, **merged
    )
    return update, -own / (12 * lr)


RATES = {"lambda_lr": 3.0, "sigma_lr": 0.5, "iota_lr": 0.3}


class Bowls:
    """F_i(w) = |w - c_i|^2 a_i / 2 on the mini-batch and |w - c_i - 1|^2 on the others' samples."""

    def __init__(self, centres: Vector, curves: Vector) -> None:
        self.centres, self.curves = centres, curves

    def pick(self, rows: Tensor) -> Bowls:
        return Bowls(self.centres[rows.numpy()], self.curves[rows.numpy()])

    def peek(self, w: Tensor, on: str = "batch", gradient: bool = True) -> tuple[Tensor, Tensor | None]:
        c, a = torch.tensor(self.centres), torch.tensor(self.curves)
        away = w - c - float(on == "proxy")
        return (a * away.square()).sum(-1, keepdim=True) / 2, a * away if gradient else None


def job(start: Tensor, kept: dict[str, Tensor], **others: Any) -> Job:
    """One epoch of one step at rate 0.1 from these weights [k, D]."""
    one = torch.ones_like(start[:, :1], dtype=torch.int64)
    lr = torch.full_like(start[:, :1], 0.1)
    told = {"round": one, "version": one, "epochs": one, "steps": one, "samples": one, "slot": one, **others}
    return Job(start=start, buffers=start[:, :0], lr=lr, momentum=0.0, layout=LAYOUT, received={}, kept=kept, **told)


def probabilities_by_hand(meta: Vector, count: int) -> Vector:
    """The LSTM of nothing but its own state, gate by gate, and the odds of asking first after each epoch."""
    weights = meta.reshape(4 * HIDDEN + 1, HIDDEN + 1)
    u, b = weights[:-1, :-1].reshape(4, HIDDEN, HIDDEN), weights[:-1, -1].reshape(4, HIDDEN)
    h, c, alive, odds = np.zeros(HIDDEN), np.zeros(HIDDEN), 1.0, []
    for _ in range(count):
        i, f, o = (1 / (1 + np.exp(-(u[gate] @ h + b[gate]))) for gate in range(3))
        c = f * c + i * np.tanh(u[3] @ h + b[3])
        h = o * np.tanh(c)
        asks = 1 / (1 + np.exp(-(weights[-1, :-1] @ h + weights[-1, -1])))
        odds.append(alive * asks)
        alive *= 1 - asks
    shares: Vector = np.array(odds) / sum(odds)
    return shares
