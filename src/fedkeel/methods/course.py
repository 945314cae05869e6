"""What a client's direction is made of beside the gradient, where that can be said before the first step of a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkeel.methods.oracle import Oracle


@dataclass(frozen=True)
class Trail:
    """Directions weighed against earlier ones: a step's own direction d becomes gain * (d - last + past).

    `past` is a running mean of earlier directions. It takes in `last` before it is used, or afterwards if `late`.
    """

    last: Tensor
    """[k, D], d of the previous step."""
    past: Tensor
    """[k, D]"""
    keep: float
    """The share of `past` that stays when `last` is taken in."""
    gain: Tensor
    """[k, 1]"""
    late: bool = False

    def next(self, d: Tensor) -> tuple[Tensor, Trail]:
        """(The direction, the trail for the next step)."""
        past = torch.lerp(self.last, self.past, self.keep)
        direction = self.gain * (d - self.last + (self.past if self.late else past))
        return direction, replace(self, last=d, past=past)


@dataclass(frozen=True)
class Course:
    """direction = share * gradient + offset + pull * (w - anchor), and a trail of it.

    A direction of this form is computed together with the step, where the oracle knows how.
    """

    share: float = 1.0
    offset: Tensor | None = None
    """[k, D]"""
    pull: Tensor | None = None
    """[k, 1]; it needs an anchor."""
    anchor: Tensor | None = None
    """[k, D]"""
    ascent: float = 0.0
    """How far uphill, along the mini-batch's gradient, the gradient is taken."""
    trail: Trail | None = None

    @property
    def plain(self) -> bool:
        """Whether the direction, before its trail, is a multiple of the gradient."""
        return self.offset is None and self.pull is None

    @property
    def straight(self) -> bool:
        """Whether a step needs nothing but the weights and one gradient there."""
        return not self.ascent and self.trail is None

    def at(self, w: Tensor, oracle: Oracle) -> Tensor | None:
        """Where the gradient is taken, if not at `w`: w + ascent g / ||g||.

        The norm is that of all weights, without decay.
        """
        if not self.ascent:
            return None
        g = oracle.loss_grad(w)
        return torch.addcmul(w, g, self.ascent / (g.norm(dim=-1, keepdim=True) + 1e-12))

    def direction(self, g: Tensor, w: Tensor) -> Tensor:
        """The direction at `w` without the trail, given the gradient, which is overwritten."""
        if self.share != 1:
            g = g.mul_(self.share)
        if self.offset is not None:
            g = g.add_(self.offset)
        if self.pull is not None:
            assert self.anchor is not None
            g = g.addcmul_(self.pull, w - self.anchor)
        return g

    def before(self, w: Tensor, rate: Tensor, out: Tensor) -> Tensor:
        """Where a step from `w` would end without the gradient's share, put into `out`."""
        if self.pull is not None:
            assert self.anchor is not None
            w = torch.lerp(w, self.anchor, rate * self.pull, out=out)
        if self.offset is not None:
            w = torch.addcmul(w, rate, self.offset, value=-1, out=out)
        return w
