"""Updates mixed into the model as they arrive, with weights that fall with their staleness."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedkeel.methods.server import Receipt, ServerRule, ServerState, Updates, View
from fedkeel.methods.types import Share

Function = Literal["constant", "polynomial", "hinge"]

STEEPNESS: dict[Function, float] = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}
"""The paper's a of each function."""


def staleness_factor(staleness: float, function: Function, a: float, b: float) -> float:
    """s(t - tau) in [0, 1], given t - tau >= 0, the versions that were published since the job was dispatched.

    Constant: 1. Polynomial: (t - tau + 1)^-a. Hinge: 1 up to b, then 1 / (a (t - tau - b) + 1).
    """
    match function:
        case "constant":
            return 1.0
        case "polynomial":
            return float((staleness + 1) ** -a)
    return 1.0 if staleness <= b else 1 / (a * (staleness - b) + 1)


def mix(w: Tensor, arrived: Tensor, weight: float) -> Tensor:
    """[D], (1 - weight) w + weight arrived."""
    return torch.lerp(w, arrived, weight)


class Mixed(ServerRule):
    """w <- (1 - alpha_t) w + alpha_t w_i with alpha_t = alpha s(t - tau) at each arrival."""

    pace = "periodic"

    alpha: Share = 0.6
    """The weight of a fresh update when it is mixed into the model; staler updates count less."""

    def factor(self, staleness: int) -> float:
        """s(t - tau)"""
        raise NotImplementedError

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """Every update is a new version."""
        weight = self.alpha * self.factor(view.staleness)
        return replace(state, w=mix(state.w, update.w[0], weight)), Receipt(weight)


class StalenessMixed(Mixed):
    """The factor is one of the paper's three functions; updates that are too stale may be discarded."""

    function: Function = "polynomial"
    """How the weight of an update depends on its staleness."""
    a: NonNegativeFloat | None = None
    """How fast the weight falls with the staleness. The default is 0.5 for `polynomial` and 10 for `hinge`."""
    b: NonNegativeFloat = 4.0
    """With `function: hinge`: the staleness up to which updates keep their full weight."""
    staleness_bound: PositiveInt | None = None
    """Discard updates whose staleness, counted from 1, is above this. By default none is discarded."""

    def factor(self, staleness: int) -> float:
        return staleness_factor(
            staleness, self.function, STEEPNESS[self.function] if self.a is None else self.a, self.b
        )

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """A discarded update leaves the model as it is and makes no new version."""
        if self.staleness_bound is not None and view.staleness + 1 > self.staleness_bound:
            return state, Receipt(0.0, published=False, accepted=False)
        return super().receive(state, update, view)
