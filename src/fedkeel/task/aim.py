"""What a run aims at: a metric, which way it should go, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan

from fedkeel.errors import InputError


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


def check_share(metric: str, target: float) -> None:
    """Refuse a target that a metric between 0 and 1 cannot have, or has from the start."""
    if not 0 < target <= 1:
        raise InputError(f"target must be a value of {metric} above 0 and at most 1; got {target:g}")
