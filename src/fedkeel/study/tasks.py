"""What the processes of a study tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkeel.config.experiment import Experiment
from fedkeel.local.settings import ExecutorSettings
from fedkeel.record.measured import Measured


@dataclass(frozen=True)
class SettleTask:
    """Find out how a run should train, and what it takes."""

    key: str
    experiment: Experiment
    workers: int = 0
    """So many workers of a cluster may train the clients of a round."""


@dataclass(frozen=True)
class RunTask:
    """Run an experiment, or continue it where it was begun."""

    name: str
    experiment: Experiment
    folder: Path
    sinks: tuple[str, ...] = ()
    cluster: str | None = None
    """The address of a Ray cluster to connect to, for an experiment whose executor is `ray`. The run begins with fewer
    workers than that asks for if no more are left."""


Task = SettleTask | RunTask


@dataclass(frozen=True)
class Stopping:
    """The current run shall stop."""


@dataclass(frozen=True)
class Estimate:
    """How a run trains, and what that takes."""

    executor: ExecutorSettings
    seconds: float
    """Estimated real seconds of the whole run."""
    bytes: int
    """Memory of the process."""


@dataclass(frozen=True)
class Score:
    """The first metric of an evaluation."""

    name: str
    value: float
    share: bool

    def __str__(self) -> str:
        metric = Measured(self.name, share=self.share)
        return f"{metric.words} {metric.told(self.value)}"


@dataclass(frozen=True)
class Moved:
    """A run is going on."""

    name: str
    share: float
    """The share of the run that is done."""
    round: int
    score: Score | None


@dataclass(frozen=True)
class Lost:
    """A run has lost its place on a cluster; it goes on in another one."""

    name: str
    why: str


@dataclass(frozen=True)
class Ended:
    """A run has ended."""

    name: str
    state: Literal["finished", "failed", "stopped"]
    kind: str = ""
    """The class of the error, if it failed."""
    error: str = ""
    score: Score | None = None


@dataclass(frozen=True)
class Settled:
    """A way to train was found."""

    key: str
    estimate: Estimate


@dataclass(frozen=True)
class Refused:
    """A run cannot be done with these settings."""

    key: str
    kind: str
    """The error's class."""
    error: str
    exit_code: int = 1


Reply = Moved | Lost | Ended | Settled | Refused
