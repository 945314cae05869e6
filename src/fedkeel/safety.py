"""What keeps a run from harm: the gate in front of every aggregation, and checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedkeel.errors import InputError
from fedkeel.settings import Section

Bound = Annotated[float, Field(gt=0, le=1e38)]


class GateSettings(Section):
    """Which updates are refused before they are aggregated, beside those that are broken, late or sent twice."""

    max_norm: Bound | None = None
    """The largest Euclidean norm of an update (new minus old weights, of those that travel)."""
    min_norm: Annotated[float, Field(ge=0, le=1e38)] | None = None
    """The smallest."""
    max_loss: Bound = 1e4
    """A training or test loss above this counts as divergence, like one that is no number."""
    diverged: Literal["stop", "refuse"] = "stop"
    """What becomes of a client whose training diverged: the run stops, or goes on without this update. A global model
    that diverged always stops it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_norm is not None and self.min_norm is not None and self.min_norm > self.max_norm:
            raise InputError(
                f"gate.min_norm: {self.min_norm:g} is not accepted; accepted: at most gate.max_norm={self.max_norm:g}"
            )
        return self


class CheckpointSettings(Section):
    """When the state of a run is written down, beside its end; always after a whole round."""

    seconds: Annotated[float, Field(ge=0, le=1e9)] | None = 60.0
    """Whenever so many real ones have passed since the last time; null: never because of the time."""
    rounds: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """After so many rounds, too."""
