"""Where a run stands in numbers, and what is left to record when its rounds are over."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.record.rows import Refused, Unfinished


@dataclass(frozen=True)
class Standing:
    """Counts since the start of the run."""

    virtual_seconds: float
    bytes_up: int
    """What devices sent, also in vain."""
    bytes_down: int
    updates: int
    """Uploads that the gate let in."""
    updates_refused: int
    """Of these, those that the server rule did not want."""
    uploads_turned_away: dict[str, int]
    """Uploads that the gate refused, by reason."""
    jobs_lost: int
    jobs_in_flight: int
    """When the run ended."""
    samples: int
    """Samples that training went through, each as often as it came."""
    seconds: float
    """Real seconds of all rounds, without evaluation."""
    round_seconds: list[float]
    """The same for each of the last thousand rounds."""
    parameters: int
    """Of the model, those that are trained."""
    global_model: bool
    """Whether there is one; if not, clients' own models are tested."""
    state_bytes: int
    """What the server remembers: a checkpoint is at least as large."""


@dataclass(frozen=True)
class Rest:
    """Rows that belong to no round: what happened after the last one."""

    unfinished: list[Unfinished]
    refused: list[Refused]
