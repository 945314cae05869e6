"""What goes wrong with jobs on purpose."""

from __future__ import annotations

from math import inf, nan
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from fedkeel import streams
from fedkeel.config.section import Section
from fedkeel.errors import InputError
from fedkeel.wire.orders import Trained

Chance = Annotated[float, Field(ge=0, le=1)]
Pause = Annotated[float, Field(gt=0, le=1e12)]
Corruption = Literal["nan", "infinite", "huge", "shape", "dtype", "future"]

HANG, LEAVE, LOST, TWICE, OLD = FAULTS = ("hang", "leave", "lost_upload", "twice", "old_job")
"""What may happen to a job, beside a corrupted upload."""


class FaultSettings(Section):
    """What goes wrong with jobs on purpose: at most one fault per job, drawn for the job.

    Devices that fail while they train are `fleet.dropout`; devices that go off are `fleet.availability`.
    """

    hang: Chance = 0.0
    """The probability that a device stops before its upload and continues after `hang_seconds`. If the server has given
    the job up by then, the upload is refused."""
    hang_seconds: Pause = 600.0
    """The virtual seconds for which a device hangs."""
    leave: Chance = 0.0
    """The probability that a device fails during training and never comes back."""
    lost_upload: Chance = 0.0
    """The probability that an upload gets lost. The client keeps the state that it changed during training."""
    twice: Chance = 0.0
    """The probability that an upload arrives a second time, `again_seconds` later."""
    again_seconds: Pause = 1.0
    """The virtual seconds after which an upload arrives a second time."""
    old_job: Chance = 0.0
    """The probability that a device sends the upload of its previous job again, if it had one."""
    corrupt: Chance = 0.0
    """The probability that an upload is damaged, in one of the ways listed in `corruptions`."""
    corruptions: Annotated[tuple[Corruption, ...], Field(min_length=1)] = (
        "nan",
        "infinite",
        "shape",
        "dtype",
        "future",
    )
    """The ways in which an upload may be damaged: NaN (`nan`), infinity (`infinite`), a norm above `gate.max_norm`
    (`huge`), a wrong length (`shape`), a wrong type (`dtype`), or a model version that does not exist yet
    (`future`)."""

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if sum(self.chances) > 1 + 1e-9:
            raise InputError(
                f"faults: {', '.join((*FAULTS, 'corrupt'))} must add up to at most 1, because a job has at most one "
                f"fault; got {sum(self.chances):g}"
            )
        return self

    @property
    def chances(self) -> tuple[float, ...]:
        """The probabilities of all faults, in a fixed order."""
        return (*(getattr(self, fault) for fault in FAULTS), self.corrupt)

    def draw(self, clients: NDArray[np.int64], seed: int, wave: int) -> tuple[list[str], NDArray[np.float64]]:
        """(The fault of each job of a wave, '' if it has none; [m], after which share of its training)."""
        drawn = streams.uniform(streams.keys(seed, "faults", wave, clients), 3)
        which = np.searchsorted(np.cumsum(self.chances), drawn[:, 0], side="right").tolist()
        ways = (drawn[:, 2] * len(self.corruptions)).astype(np.int64).tolist()
        names = [*FAULTS, "corrupt", ""]
        told = [names[number] for number in which]
        what = [self.corruptions[way] if name == "corrupt" else name for name, way in zip(told, ways, strict=True)]
        return what, drawn[:, 1]


def damaged(upload: Trained, how: str, start: Tensor, max_norm: float | None) -> Trained:
    """What is left of an upload (`FaultSettings.corruptions`)."""
    w = upload.w.clone()
    match how:
        case "nan":
            w[:, 0] = nan
        case "infinite":
            w[:, 0] = inf
        case "huge":  # further from the start than the gate allows, in every coordinate
            assert max_norm is not None
            w[:] = start + start.abs() + 10 * max_norm + 1
        case "shape":
            w = w[:, 1:]
        case "dtype":
            w = w.to(torch.float32 if w.dtype == torch.float64 else torch.float64)
    return Trained({**upload.columns, "w": w})
