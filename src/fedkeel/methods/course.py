"""What a client's direction is made of beside the gradient, where that is the same in all steps of a job."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Course:
    """direction = share * gradient + offset + pull * (w - anchor).

    A rule that can say its direction like this has it computed in one go with the step, where the oracle knows how.
    """

    share: float = 1.0
    offset: Tensor | None = None
    """[k, D]"""
    pull: Tensor | None = None
    """[k, 1]; with it comes an anchor."""
    anchor: Tensor | None = None
    """[k, D]"""

    @property
    def plain(self) -> bool:
        """Whether the direction is a multiple of the gradient."""
        return self.offset is None and self.pull is None

    def direction(self, g: Tensor, w: Tensor) -> Tensor:
        """At `w`, given the gradient there, which is used up."""
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
