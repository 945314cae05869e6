"""FedSSMU (Jia, Liu et al., 2025): FedASMU in rounds; updates are mixed as they arrive, so that others may fetch them.

In Eq. 2 and 10 the round, from 1, is under the root; arrival k of a round, from 0, has staleness k + 1.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedkeel.methods.client import Job
from fedkeel.methods.fedasmu import DynamicMixing, FreshMerge
from fedkeel.methods.registry import method
from fedkeel.methods.server import View
from fedkeel.methods.types import Chance


class RoundMerge(FreshMerge):
    """FedASMU's merge, whose weight falls with the rounds."""

    def root(self, job: Job) -> Tensor:
        """The round from 1, [k, 1]."""
        return job.round.double()


class StreamedMixing(DynamicMixing):
    """FedASMU's mixing in rounds.

    Practical: xi = lambda / (k + 1)^sigma + iota; with lambda = sigma = 1 and iota = 0, a round ends with the plain
    mean of its first model and all arrivals. Literal: lambda / sqrt(round) and FedASMU's defaults, with which alpha is
    about .8 in the first round, so that the last arrival wins.
    """

    pace = "stream"

    lambda_: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    """The first value of the control parameter lambda, which scales the weight of an update. The default is 1, or
    FedASMU's default with `reading: literal`."""
    sigma: Annotated[float, Field(ge=0, le=5)] | None = None
    """The first value of the control parameter sigma, by which staler updates count less. The default is 1, or
    FedASMU's default with `reading: literal`."""
    iota: Chance | None = None
    """The first value of the control parameter iota, which is added to the importance of every update. The default is
    0, or FedASMU's default with `reading: literal`."""

    @property
    def control(self) -> tuple[float, float, float]:
        lambda_, sigma, iota = (1.0, 1.0, 0.0) if self.reading == "practical" else (5.0, 0.5, 0.05)
        return (
            lambda_ if self.lambda_ is None else self.lambda_,
            sigma if self.sigma is None else self.sigma,
            iota if self.iota is None else self.iota,
        )

    def root(self, view: View) -> float:
        """The round, or 1 where it does not count."""
        return float(view.round) if self.reading == "literal" else 1.0


fedssmu = method(
    "fedssmu",
    client=RoundMerge,
    server=StreamedMixing,
    about="FedASMU in rounds: mixes at once, waits for all",
    cite="Jia, Liu et al., 2025",
)
