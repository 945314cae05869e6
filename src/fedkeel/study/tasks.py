"""What the processes of a study tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkeel.config.experiment import Experiment
from fedkeel.local.settings import ExecutorSettings


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
    """The run that is going on is to stop."""


@dataclass(frozen=True)
class Estimate:
    """How a run trains, and what that takes."""

    executor: ExecutorSettings
    seconds: float
    """Real seconds of the whole run, about."""
    bytes: int
    """Memory of the process."""


@dataclass(frozen=True)
class Moved:
    """A run is going on."""

    name: str
    share: float
    """Of the run that is done."""
    round: int
    accuracy: float | None


@dataclass(frozen=True)
class Ended:
    """A run came to an end."""

    name: str
    state: Literal["finished", "failed", "stopped"]
    kind: str = ""
    """Of a failure: the error's class."""
    error: str = ""
    accuracy: float | None = None


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
