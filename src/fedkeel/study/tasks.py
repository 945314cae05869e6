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
    """Find out how such a run should train, and what it takes."""

    key: str
    experiment: Experiment


@dataclass(frozen=True)
class RunTask:
    """Run an experiment, or go on with it where that was begun."""

    name: str
    experiment: Experiment
    folder: Path
    sinks: tuple[str, ...] = ()


Task = SettleTask | RunTask


@dataclass(frozen=True)
class Stopping:
    """The run that is going on is to stop after this round."""


@dataclass(frozen=True)
class Estimate:
    """How a run trains, and what that takes."""

    executor: ExecutorSettings
    seconds: float
    """Real seconds of the whole run, about."""
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
    """Of the run that is done."""
    round: int
    score: Score | None


@dataclass(frozen=True)
class Ended:
    """A run came to an end."""

    name: str
    state: Literal["finished", "failed", "stopped"]
    kind: str = ""
    """Of a failure: the error's class."""
    error: str = ""
    score: Score | None = None


@dataclass(frozen=True)
class Settled:
    """A way to train was found."""

    key: str
    estimate: Estimate


@dataclass(frozen=True)
class Refused:
    """A run cannot be done like this."""

    key: str
    kind: str
    """The error's class."""
    error: str
    exit_code: int = 1


Reply = Moved | Ended | Settled | Refused
