"""From a direction to a step: SGD, with or without momentum, and Adam. What they remember begins anew with every job.

A stack's clients begin together and leave one after the other, so all that are at work have made as many steps.
"""

from __future__ import annotations

from math import sqrt
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.local.settings import LocalSettings


class Optimizer(Protocol):
    """Makes the steps of one stack's jobs."""

    def keep(self, active: int) -> None:
        """Go on with the first so many clients; the others are done."""
        ...

    def step(self, w: Tensor, direction: Tensor, rate: Tensor, out: Tensor) -> None:
        """From `w` [k, D] at these rates [k, 1]; where it leads is put into `out`, which may be `w` itself."""
        ...


class Descent:
    """SGD. Momentum is PyTorch's: v <- m v + d, started at d. With Nesterov's, the step is along d + m v."""

    def __init__(self, momentum: float, nesterov: bool = False) -> None:
        self._momentum, self._nesterov = momentum, nesterov
        self._velocity: Tensor | None = None

    def keep(self, active: int) -> None:
        """The others' velocities are forgotten."""
        self._velocity = None if self._velocity is None else self._velocity[:active]

    def step(self, w: Tensor, direction: Tensor, rate: Tensor, out: Tensor) -> None:
        """w - rate * v"""
        if self._momentum:
            before = self._velocity
            velocity = direction.clone() if before is None else before.mul_(self._momentum).add_(direction)
            self._velocity = velocity
            direction = torch.add(direction, velocity, alpha=self._momentum) if self._nesterov else velocity
        torch.addcmul(w, rate, direction, value=-1, out=out)


class Adam:
    """PyTorch's Adam: m and v are running means of d and d^2, corrected by the number of steps.

    With `decay` it is AdamW, where weights that move shrink by rate * decay before the step.
    """

    def __init__(self, local: LocalSettings, moving: Tensor | None = None) -> None:
        """`moving` [D] is one where weights are trained and zero elsewhere, if not all are."""
        self._betas, self._eps = local.betas, local.eps
        self._decay = local.weight_decay if local.optimizer == "adamw" else 0.0
        self._moving = moving
        self._steps = 0
        self._means: tuple[Tensor, Tensor] | None = None

    def keep(self, active: int) -> None:
        """The others' means are forgotten."""
        if self._means is not None:
            self._means = self._means[0][:active], self._means[1][:active]

    def step(self, w: Tensor, direction: Tensor, rate: Tensor, out: Tensor) -> None:
        """w - rate * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)"""
        first, second = self._betas
        m, v = self._means or (torch.zeros_like(direction), torch.zeros_like(direction))
        self._means = m, v
        self._steps += 1
        m.lerp_(direction, 1 - first)
        v.mul_(second).addcmul_(direction, direction, value=1 - second)
        size = v.sqrt().div_(sqrt(1 - second**self._steps)).add_(self._eps)
        if self._decay:
            shrinking = w if self._moving is None else w * self._moving
            w = torch.addcmul(w, rate, shrinking, value=-self._decay, out=out)
        torch.addcmul(w, rate, torch.div(m, size, out=size), value=-1 / (1 - first**self._steps), out=out)
