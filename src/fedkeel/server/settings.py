"""When the server dispatches clients, and which updates it refuses."""

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
    """When the server dispatches clients, and how long it waits."""

    pace: Literal["auto", "barrier", "stream", "periodic", "concurrency"] = "auto"
    """When clients get work: in rounds with a barrier (`barrier`), in rounds whose updates are applied as they arrive
    (`stream`), `per_round` clients every `trigger_seconds` (`periodic`), or always the same number at work
    (`concurrency`). `auto` is the method's own pace."""
    trigger_seconds: Annotated[float, Field(ge=1e-3, le=1e12)] = 10.0
    """With the pace `periodic`: the seconds between two dispatches (T in FedASMU), of virtual time in a simulation."""
    busy_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """With the pace `periodic`: no client gets work while this share of all clients is at work."""
    concurrency: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    """With the pace `concurrency`: the number of clients at work. The default is three times `per_round`, or all
    clients if there are fewer."""
    deadline_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """In rounds: the seconds, virtual in a simulation, after which the server goes on without clients that are late."""
    over_select: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """In rounds: send work to this share more clients than `per_round`, and go on without the slowest ones."""

    def check(self, pace: Pace) -> None:
        """Refuse settings that mean nothing at this pace, which was asked for or is the method's own."""
        misplaced: dict[str, float | None] = {"concurrency": None if pace == "concurrency" else self.concurrency}
        if pace not in ("barrier", "stream"):
            misplaced |= {"deadline_seconds": self.deadline_seconds, "over_select": self.over_select or None}
        for field, value in misplaced.items():
            if value is not None:
                needs = "schedule.pace=concurrency" if field == "concurrency" else "a method with rounds"
                such = "" if field == "concurrency" or self.pace != "auto" else ", such as fedavg"
                raise InputError(
                    f"schedule.{field}={value:g} needs {needs}, not the pace {pace}; remove it or choose another "
                    f"{'method' if self.pace == 'auto' else 'schedule.pace'}{such}"
                )


Bound = Annotated[float, Field(gt=0, le=1e38)]


class GateSettings(Section):
    """Which updates are refused before they are aggregated, beside those that are broken, late or sent twice."""

    max_norm: Bound | None = None
    """Refuse updates whose Euclidean norm is larger than this. The update is the difference between the new and the old
    weights."""
    min_norm: Annotated[float, Field(ge=0, le=1e38)] | None = None
    """Refuse updates whose Euclidean norm is smaller than this."""
    max_loss: Bound | None = None
    """A training or test loss above this value counts as divergence, just as NaN does. The default is 10,000 for
    cross-entropies. Other losses depend on the size of the targets, so for them the default is 1e30."""
    diverged: Literal["stop", "refuse"] = "stop"
    """What happens if a client's training diverges: the run stops, or the update is refused and the run goes on. If the
    global model diverges, the run always stops."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_norm is not None and self.min_norm is not None and self.min_norm > self.max_norm:
            raise InputError(f"gate.min_norm must be at most gate.max_norm={self.max_norm:g}; got {self.min_norm:g}")
        return self
