"""Whom the server dispatches when."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedkeel.config.section import Section
from fedkeel.errors import InputError
from fedkeel.methods.server import Pace
from fedkeel.server import sampling

Sampling = Annotated[str, AfterValidator(sampling.check)]
"""A way to draw clients, by its name or as `module:function`."""


class ScheduleSettings(Section):
    """Whom the server dispatches when, and how long it waits."""

    pace: Literal["auto", "barrier", "stream", "periodic", "concurrency"] = "auto"
    """By default that of the method: rounds with a barrier; rounds whose updates are received at once; `per_round`
    devices every so many seconds; or always so many devices at work."""
    trigger_seconds: Annotated[float, Field(ge=1e-3, le=1e12)] = 10.0
    """Of `periodic`: virtual seconds between dispatches (FedASMU's T)."""
    busy_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of `periodic`: nobody is dispatched while this share of all clients is at work."""
    concurrency: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """Of `concurrency`: clients at work; by default three times `per_round`, or all if there are fewer."""
    deadline_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Of rounds: virtual seconds after which the server goes on without those who are late."""
    over_select: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Of rounds: dispatch this share more than `per_round`, and go on without the last ones."""

    def check(self, pace: Pace) -> None:
        """Refuse what means nothing at this pace, which was asked for or is the method's own."""
        misplaced: dict[str, float | None] = {"concurrency": None if pace == "concurrency" else self.concurrency}
        if pace not in ("barrier", "stream"):
            misplaced |= {"deadline_seconds": self.deadline_seconds, "over_select": self.over_select or None}
        for field, value in misplaced.items():
            if value is not None:
                raise InputError(
                    f"schedule.{field}: {value:g} is not accepted at the pace {pace}; remove it or choose "
                    f"another {'method' if self.pace == 'auto' else 'schedule.pace'}"
                )


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
