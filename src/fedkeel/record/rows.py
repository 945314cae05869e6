"""What is recorded of a run: one class per kind of row, and the results of a round.

A row is one line of JSON in a file of the run folder; its keys are the names of the fields here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from fedkeel.errors import InputError
from fedkeel.record.recorded import Recorded, RowError, accepted, defaults, required

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Evaluation(Recorded):
    """One row of `history.jsonl`, a test of the model; counts and times run from the start of the run."""

    extra = "metrics"

    round: int
    version: int
    """How often the global model has been replaced."""
    virtual_seconds: float
    wall_seconds: float
    """Real seconds, without those between a stop and the resumption."""
    metrics: dict[str, float | None]
    """Of the tested model on the test set; without a global model, the means of the clients' own on their test rows.
    These are keys of the row itself, and attributes of this object: `row.accuracy`. The first is the one by which
    models are compared. None where a metric is not defined."""
    loss: float
    train_loss: float | None = None
    """Mean over the samples that this round's participants saw in training, at the time they saw them."""
    bytes_up: int
    """What devices sent, also in vain."""
    bytes_down: int
    updates: int
    """Uploads that the gate let in, those that the server rule refused or still has in a buffer included."""
    local_accuracy: dict[str, float] | None = None
    """Of the participants' models as they came back, on the whole test set (`evaluate_local`)."""
    validation: dict[str, float | None] | None = None
    """The loss and metrics on the validation set, where there is one."""
    clients: dict[str, dict[str, float]] | None = None
    """Of each metric, its spread over the clients' own test rows (`evaluate_clients`)."""
    clients_estimated: dict[str, dict[str, float]] | None = None
    """The same where clients have no test rows, as estimated from the common test set."""
    by_class: dict[str, list[float | None]] | None = None
    """Metrics of each class alone (`evaluate_classes`)."""
    tested_by: list[int] | None = None
    """The clients whose tests the metrics are the mean of, where real sites test the model; some may be missing."""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise RowError("it has no metric")

    @classmethod
    def takes(cls, value: object) -> bool:
        """Metrics are numbers, or null where they are not defined."""
        return value is None or type(value) in (int, float)

    def plain(self) -> dict[str, Any]:
        """Metrics under their names; without what is missing."""
        told: dict[str, Any] = {}
        for name, value in vars(self).items():
            told |= value if name == "metrics" else {name: value} if value is not None else {}
        return told

    def __getattr__(self, name: str) -> float | None:
        metrics = self.__dict__.get("metrics", {})
        if name not in metrics:
            raise AttributeError(f"this evaluation has no {name}; its metrics are {', '.join(metrics)}")
        value: float | None = metrics[name]
        return value

    def __getitem__(self, name: str) -> Any:
        """A metric or another value by its name, as in the row."""
        return self.plain()[name]

    @property
    def first(self) -> float:
        """The metric by which models are compared; NaN where it is not defined."""
        value = next(iter(self.metrics.values()))
        return float("nan") if value is None else value

    def tuned(self, name: str) -> float:
        """A metric or the loss, on the validation set where there is one; NaN where it is not defined."""
        told = {**self.metrics, "loss": self.loss} if self.validation is None else self.validation
        value = told.get(name)
        return float("nan") if value is None else value


@dataclass(frozen=True)
class Round(Recorded):
    """One row of `rounds.jsonl`."""

    extra = "report"

    round: int
    train_loss: float | None
    """As in `Evaluation`; none if nobody arrived."""
    arrived: int
    """How many rows of `clients.jsonl` belong to this round."""
    lost: int
    """How many rows of `unfinished.jsonl`."""
    refused: int
    """How many rows of `refused.jsonl`."""
    report: dict[str, Any]
    """What the server rule says of the round (`ServerRule.report`): these are keys of the row itself."""

    def __post_init__(self) -> None:
        taken = sorted(self.report.keys() & vars(self).keys())
        if taken:
            raise InputError(f"report: a round's row has a key {taken[0]} already; choose another name")


@dataclass(frozen=True)
class Arrival(Recorded):
    """One row of `clients.jsonl`, an upload that was taken in."""

    client: int
    round: int
    """In which the job was dispatched."""
    start_version: int
    """The version of the global model that the job started from."""
    staleness: int
    """Versions published between this job's start and its arrival."""
    epochs: int
    """That it trained; with `local.steps` mini-batches, as in all that is said of epochs here."""
    steps: int
    """Mini-batches."""
    samples: int
    """How many the client has."""
    learning_rates: list[float]
    """One per epoch; a schedule over steps multiplies them by its own factors."""
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
    """The version of that."""
    asked: float | None = None
    """When it asked for one, also where it got none."""
    merged: float | None = None
    """When training went on with it."""
    resumed: float | None = None
    """When training went on without, as there was none newer."""
    accepted: bool = True
    """Whether the server rule took it."""
    notes: dict[str, float] | None = None
    """What the rules say of this arrival: FedASMU's control parameters, the weight of the merge, ..."""


@dataclass(frozen=True)
class Unfinished(Recorded):
    """One row of `unfinished.jsonl`, a job that did not arrive."""

    client: int
    round: int
    """In which the job was dispatched."""
    start_version: int
    """The version of the global model that the job started from."""
    dispatched: float
    """Virtual seconds."""
    began: float
    """Training, when the model was there, or would have been."""
    ended: float
    """When the server gave the job up."""
    why: str
    """`dropped out`, `went offline`, `left for good`, `too late`, `not needed`, `upload lost`; or, where the run ended
    first, `in flight`. On real machines also `no answer`, `server restarted`, and `failed: ` with the reason."""
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Refused(Recorded):
    """One row of `refused.jsonl`, an upload that the gate did not let in."""

    round: int
    """In which it came."""
    client: int
    job: int
    """The job that the upload says it is of."""
    start_version: int
    """The version that the upload says it started from."""
    dispatched: float | None
    """Virtual seconds; nothing where the upload was a second or a late one."""
    arrived: float
    reason: str
    detail: str
    bytes_up: int
    bytes_down: int


EXCUSED = ("not needed", "in flight", "server restarted")
"""Jobs that are unfinished for these reasons might have arrived: they are not lost."""

Row = Evaluation | Round | Arrival | Unfinished | Refused

KINDS: dict[str, type[Row]] = {
    "history": Evaluation,
    "clients": Arrival,
    "rounds": Round,
    "unfinished": Unfinished,
    "refused": Refused,
}
"""What is in `<name>.jsonl`."""


class Arrivals(Sequence[Arrival]):
    """A round's arrivals, kept in columns: a thousand rows cost a few lists until somebody looks at one."""

    def __init__(self, **columns: list[Any]) -> None:
        """Columns by the names of `Arrival`'s fields, all of them that have no default, or none at all."""
        self.columns = columns or {name: [] for name in required(Arrival)}
        if columns and not (
            required(Arrival) <= columns.keys() <= accepted(Arrival).keys() and len({*map(len, columns.values())}) == 1
        ):
            wrong = required(Arrival) - columns.keys() | columns.keys() - accepted(Arrival).keys()
            raise TypeError(f"arrivals with columns of unequal lengths, or unknown or missing ones: {sorted(wrong)}")

    def extend(self, others: Arrivals) -> None:
        """Add rows that have the same columns."""
        if not self:
            self.columns = {name: [*column] for name, column in others.columns.items()}
            return
        for name, column in self.columns.items():
            column.extend(others.columns[name])

    @property
    def plain(self) -> dict[str, list[Any]]:
        """The columns as they are written, in order: without those that say the same as their default."""
        usual = defaults(Arrival)
        return {
            name: self.columns[name]
            for name in accepted(Arrival)
            if name in self.columns and (name not in usual or any(value != usual[name] for value in self.columns[name]))
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


@dataclass(frozen=True)
class RoundEnd:
    """A finished round; `evaluation` only where the model was tested."""

    round: int
    virtual_seconds: float
    seconds: float
    """Real ones: dispatch, local training and aggregation, without evaluation."""
    train_loss: float | None
    arrivals: Arrivals
    unfinished: list[Unfinished]
    """Jobs that will not arrive."""
    refused: list[Refused]
    """Uploads that the gate did not let in."""
    report: dict[str, Any]
    """What the server rule says of the round (`ServerRule.report`)."""
    evaluation: Evaluation | None
    source: Callable[[], nn.Module] | None = field(default=None, repr=False, compare=False)
    """Where `model` gets it from."""

    def model(self) -> nn.Module:
        """A copy of the global model after this round, in eval mode; it may be kept and changed.

        It can be asked for while sinks and `progress` are told of the round, not later. If nobody asks, it costs
        nothing.
        """
        if self.source is None:
            raise InputError(
                f"RoundEnd.model: round {self.round} is over; call model() while the sink or progress is told of it"
            )
        return self.source()

    @property
    def row(self) -> Round:
        """Of `rounds.jsonl`."""
        counts = len(self.arrivals), len(self.unfinished), len(self.refused)
        return Round(self.round, self.train_loss, *counts, self.report)
