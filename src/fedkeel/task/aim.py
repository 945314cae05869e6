"""What a run aims at: a metric, which way it should go, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan


@dataclass(frozen=True)
class Aim:
    """A metric to be made better, and possibly a target for it."""

    metric: str
    better: str
    """`higher` or `lower`."""
    target: float | None = None

    def gain(self, value: float, reference: float) -> float:
        """How much better a value is than another one; one that is not defined is worse than all others."""
        if isnan(value) or isnan(reference):
            return 0.0 if isnan(value) and isnan(reference) else -inf if isnan(value) else inf
        return value - reference if self.better == "higher" else reference - value

    def reached(self, value: float) -> bool:
        """Whether it is as good as the target."""
        return self.target is not None and self.gain(value, self.target) >= 0
