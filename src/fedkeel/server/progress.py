"""What a simulation tells the world after every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, overload


@dataclass(frozen=True)
class Evaluation:
    """One row of `history.jsonl`; counts and times run from the start of the run."""

    round: int
    version: int
    """How often the global model has been replaced."""
    virtual_seconds: float
    wall_seconds: float
    accuracy: float
    """Of the evaluated model on the test set; without a global model, the mean of the clients' own on their shares."""
    loss: float
    train_loss: float | None
    """Mean over the samples that this round's participants saw in training, at the time they saw them."""
    bytes_up: int
    bytes_down: int
    updates: int
    """Uploads that the gate let in, those that the server rule refused or still has in a buffer included."""
    local_accuracy: dict[str, float] | None = None
    """Of the participants' models as they came back, on the whole test set (`evaluate_local`)."""


@dataclass(frozen=True)
class Arrival:
    """One row of `clients.jsonl`."""

    client: int
    round: int
    """In which the job was dispatched."""
    start_version: int
    staleness: int
    """Versions published between this job's start and its arrival."""
    epochs: int
    steps: int
    samples: int
    learning_rates: list[float]
    weight: float | None
    """What the server rule gave this update; nothing if that showed only after the round."""
    train_loss: float
    bytes_up: int
    bytes_down: int
    dispatched: float
    """Virtual seconds."""
    began: float
    """Training, when the model was there."""
    finished: float
    """Training, when the upload began."""
    arrived: float
    slot: int | None = None
    """After how many epochs it got a fresh model, if it did."""
    fresh_version: int | None = None
    asked: float | None = None
    """When it asked for that."""
    merged: float | None = None
    """When training went on with it."""
    accepted: bool = True
    notes: dict[str, float] | None = None
    """What the rules say of this arrival: FedASMU's control parameters, the weight of the merge, ..."""


class Arrivals(Sequence[Arrival]):
    """A round's arrivals, kept in columns: a thousand rows cost a few lists until somebody looks at one."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = {
            field.name: columns.get(field.name, [])
            for field in fields(Arrival)
            if field.default is MISSING or _says_something(field.default, columns.get(field.name))
        }

    def __len__(self) -> int:
        return len(self.columns["client"])

    @overload
    def __getitem__(self, place: int) -> Arrival: ...
    @overload
    def __getitem__(self, place: slice) -> list[Arrival]: ...
    def __getitem__(self, place: int | slice) -> Arrival | list[Arrival]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return Arrival(**{name: column[place] for name, column in self.columns.items()})


def _says_something(default: object, column: Sequence[Any] | None) -> bool:
    return column is not None and any(value != default for value in column)


@dataclass(frozen=True)
class RoundEnd:
    """A finished round; `evaluation` only where the model was tested."""

    round: int
    virtual_seconds: float
    seconds: float
    """Real ones: dispatch, local training and aggregation, without evaluation."""
    train_loss: float | None
    arrivals: Arrivals
    unfinished: list[dict[str, Any]]
    """Rows of `unfinished.jsonl`: jobs that will not arrive."""
    refused: list[dict[str, Any]]
    """Rows of `refused.jsonl`: uploads that the gate did not let in."""
    report: dict[str, Any]
    """What the server rule says of the round (`ServerRule.report`)."""
    evaluation: Evaluation | None
