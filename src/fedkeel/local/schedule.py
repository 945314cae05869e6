"""How the learning rate of clients changes: from round to round, or from step to step of a job."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field, model_validator

from fedkeel.config.section import Count, Section, Share
from fedkeel.errors import InputError
from fedkeel.methods.types import ScheduleOver

Numbers = NDArray[np.float64]
Length = Annotated[int, Field(ge=0, le=1_000_000_000)]


class Constant(Section):
    """The learning rate stays as it is, but for `local.lr_decay`."""

    kind: Literal["constant"] = "constant"
    """`constant`, `cosine`, `step`, `exponential` or `warm-up`."""

    over: ClassVar[None] = None

    def factor(self, place: ArrayLike, length: ArrayLike) -> Numbers:
        """1"""
        return np.ones(np.broadcast_shapes(np.shape(place), np.shape(length)))


class Schedule(Section):
    """A factor on the learning rate. It rises to 1 in `warmup` rounds or steps, and then follows the kind's curve."""

    kind: str
    """`constant`, `cosine`, `step`, `exponential` or `warm-up`."""
    over: ScheduleOver = "rounds"
    """`rounds`: the rate of a job depends on the round in which the server dispatches it, and is the same in all of its
    steps. `steps`: every job goes through the whole curve, from its first mini-batch to its last. A job that ends early
    goes through the beginning of the curve."""
    warmup: Length = 0
    """Rounds or steps in which the rate rises linearly before the curve begins: 1/(n+1), 2/(n+1), ..., n/(n+1)."""

    def factor(self, place: ArrayLike, length: ArrayLike) -> Numbers:
        """At a place, counted from 0, of so many rounds or steps; both may be arrays."""
        at, behind = np.asarray(place, dtype=np.float64), np.asarray(length, dtype=np.float64) - self.warmup
        curve = self.curve(np.maximum(at - self.warmup, 0), np.maximum(behind, 1))
        return np.where(at < self.warmup, (at + 1) / (self.warmup + 1), curve)

    def curve(self, place: Numbers, length: Numbers) -> Numbers:
        """The same behind the warm-up, where the curve begins at 0."""
        raise NotImplementedError


class Cosine(Schedule):
    """Falls along half a cosine."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the learning rate that the curve ends with."""
    length: Count | None = None
    """Rounds or steps that warm-up and curve take together, before the rate stays at its final value; by default all of
    the run's rounds, or all of the job's steps."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.length is not None and self.length <= self.warmup:
            raise InputError(
                f"local.schedule.length must be greater than local.schedule.warmup={self.warmup}; got {self.length}"
            )
        if self.length is not None and not self.final:
            raise InputError(
                "local.schedule.length needs local.schedule.final greater than 0, as nothing is learnt at a rate of 0; "
                "set final, such as 0.01, or remove length"
            )
        return self

    @property
    def plans_ahead(self) -> str | None:
        """Over rounds, the curve ends with the run's last round."""
        ends = self.over == "rounds" and self.length is None
        return (
            "local.schedule ends its cosine with the last round, unless local.schedule.length is set" if ends else None
        )

    def curve(self, place: Numbers, length: Numbers) -> Numbers:
        """final + (1 - final) (1 + cos(pi t / T)) / 2"""
        whole = length if self.length is None else np.full_like(length, self.length - self.warmup)
        turned = np.cos(np.pi * np.minimum(place / whole, 1))
        return np.asarray(self.final + (1 - self.final) * (1 + turned) / 2)


class StepDecay(Schedule):
    """Falls by a factor every so many rounds or steps."""

    kind: Literal["step"] = "step"
    every: Count
    """Rounds or steps after which the rate falls."""
    gamma: Share = 0.1
    """The factor by which it falls."""

    def curve(self, place: Numbers, length: Numbers) -> Numbers:
        """gamma^floor(t / every)"""
        return np.broadcast_arrays(self.gamma ** (place // self.every), length)[0]


class Exponential(Schedule):
    """Falls by a factor in every round or step."""

    kind: Literal["exponential"] = "exponential"
    gamma: Share
    """The factor by which it falls."""

    def curve(self, place: Numbers, length: Numbers) -> Numbers:
        """gamma^t"""
        return np.broadcast_arrays(self.gamma**place, length)[0]


class WarmUp(Schedule):
    """Rises, and then stays."""

    kind: Literal["warm-up"] = "warm-up"
    warmup: Count = 5
    """Rounds or steps in which the rate rises linearly: 1/(n+1), 2/(n+1), ..., n/(n+1)."""

    def curve(self, place: Numbers, length: Numbers) -> Numbers:
        """1"""
        return np.ones(np.broadcast_shapes(place.shape, length.shape))


def _spelled_out(given: Any) -> Any:
    if isinstance(given, str):
        return {"kind": given}
    if isinstance(given, dict) and "kind" not in given:
        raise InputError("local.schedule.kind is missing; choose constant, cosine, step, exponential or warm-up")
    return given


AnySchedule = Annotated[
    Annotated[Constant | Cosine | StepDecay | Exponential | WarmUp, Field(discriminator="kind")],
    BeforeValidator(_spelled_out),
]
"""A field of this type is made from {"kind": ..., ...}, or from the kind alone."""
