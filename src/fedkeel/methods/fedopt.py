"""FedOpt (Reddi et al., ICLR 2021): the mean update is the gradient of an adaptive optimiser on the server."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedkeel.methods.server import ServerRule, ServerState, Updates, Weighting
from fedkeel.methods.types import Decay
from fedkeel.params import Layout


class Adaptive(ServerRule):
    """x <- x + server_lr * m / (sqrt(v) + tau), with m <- beta1 m + (1 - beta1) Delta (Algorithm 2)."""

    server_lr: PositiveFloat = 0.01
    """The learning rate of the server's optimiser. The paper tunes it for every task."""
    beta1: Decay = 0.9
    """The decay rate of the running mean of updates."""
    tau: PositiveFloat = 1e-3
    """The number that is added to the denominator. A larger value means less adaptivity."""
    initial_v: Literal["tau2", "zero"] = "tau2"
    """The first value of the running mean of squares: tau squared (`tau2`, as in Algorithm 2) or zero (`zero`, as in
    the authors' experiments)."""
    weighting: Weighting = "uniform"
    """How clients count in the mean update: by their numbers of samples (`samples`) or all equally (`uniform`, as in
    Algorithm 2)."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """m = 0, and v as `initial_v` says."""
        v = torch.full_like(w, self.tau**2 if self.initial_v == "tau2" else 0.0)
        return ServerState(w, {"m": torch.zeros_like(w), "v": v, "t": torch.zeros(1, dtype=torch.float64)})

    @property
    def needs_only_mean(self) -> Weighting:
        return self.weighting

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """One step of the optimiser."""
        shares = updates.shares(self.weighting)
        delta = updates.mean_delta(self.weighting)
        m = self.beta1 * state.memory["m"] + (1 - self.beta1) * delta
        v = self.second_moment(state.memory["v"], delta.square())
        t = state.memory["t"] + 1
        w = state.w + self.server_lr * self.correction(float(t)) * m / (v.sqrt() + self.tau)
        return ServerState(w, {"m": m, "v": v, "t": t}), shares

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """v of this round, given the last one and Delta squared."""
        raise NotImplementedError

    def correction(self, t: float) -> float:
        """A factor on the learning rate of round t = 1, 2, ..."""
        return 1.0


class Averaging(Adaptive):
    """Optimisers whose v is a running mean, so that its start is biased."""

    beta2: Decay = 0.99
    """The decay rate of the running mean of squared updates. The authors' experiments used 0.999."""
    bias_correction: bool = False
    """Correct the running means for their start at zero, as Adam does. Algorithm 2 does not, but the authors'
    experiments did."""

    def correction(self, t: float) -> float:
        """sqrt(1 - beta2^t) / (1 - beta1^t), or 1."""
        if not self.bias_correction:
            return 1.0
        return float((1 - self.beta2**t) ** 0.5 / (1 - self.beta1**t))
