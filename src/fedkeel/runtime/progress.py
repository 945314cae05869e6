"""What a simulation tells the world after every round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """One row of `history.jsonl`; counts and times run from the start of the run."""

    round: int
    version: int
    """How often the global model has been replaced."""
    virtual_seconds: float
    wall_seconds: float
    accuracy: float
    """Of the evaluated model on the test set."""
    loss: float
    train_loss: float
    """Mean over the samples that this round's participants saw in training, at the time they saw them."""
    bytes_up: int
    bytes_down: int
    updates: int
    """Uploads aggregated."""


@dataclass(slots=True)
class Arrival:
    """One row of `clients.jsonl`."""

    client: int
    round: int
    start_version: int
    staleness: int
    """Versions published between this job's start and its arrival."""
    epochs: int
    steps: int
    samples: int
    learning_rates: list[float]
    weight: float
    """What the server rule gave this update."""
    train_loss: float
    bytes_up: int
    bytes_down: int
    dispatched: float
    """Virtual seconds."""
    arrived: float


@dataclass(frozen=True)
class RoundEnd:
    """A finished round; `evaluation` only where the model was tested."""

    round: int
    virtual_seconds: float
    seconds: float
    """Real ones: dispatch, local training and aggregation, without evaluation."""
    train_loss: float
    arrivals: list[Arrival]
    evaluation: Evaluation | None
