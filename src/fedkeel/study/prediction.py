"""A simulated run beside the run that it predicts: the same quantities of both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedkeel.errors import InputError, label, shown
from fedkeel.record.durable import whole
from fedkeel.record.measured import Measured, read
from fedkeel.record.rows import EXCUSED
from fedkeel.record.runs import RunRecord
from fedkeel.study.curves import line

FILE = "prediction.json"
"""In the folder of the simulated run."""
SCHEMA = 1
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the time of the shorter run, at which the two are compared."""


@dataclass(frozen=True)
class Course:
    """What a run came to and when, in plain numbers."""

    places: Sequence[tuple[int, float]]
    """(Round, seconds) of each evaluation."""
    values: Sequence[float]
    """The first metric of each evaluation; NaN where it is not defined."""
    job_seconds: Mapping[int, float]
    """By client, from dispatch to arrival, the median over its jobs."""
    arrivals: int
    staleness: float
    """The mean over all arrivals."""
    lost: int
    """Jobs that were lost, without those that were not needed or were in flight at the end."""
    pause: float | None
    """The median time from the end of a round's last job to the next dispatch; None where rounds overlap."""

    @classmethod
    def of(cls, record: RunRecord) -> Course:
        """From a run folder with at least one evaluation."""
        jobs: dict[int, list[float]] = {}
        spans: dict[int, tuple[float, float]] = {}
        staleness = lost = 0
        with record.told_if_damaged("clients.jsonl"):
            for row in record.arrivals():
                jobs.setdefault(row["client"], []).append(row["arrived"] - row["dispatched"])
                staleness += row["staleness"]
                _widen(spans, row["round"], row["dispatched"], row["arrived"])
        with record.told_if_damaged("unfinished.jsonl"):
            for row in record.unfinished():
                lost += row["why"] not in EXCUSED
                _widen(spans, row["round"], row["dispatched"], row["ended"])
        count = sum(map(len, jobs.values()))
        rounds, seconds = record.column("round"), record.column("virtual_seconds")
        return cls(
            places=[(int(round_), time) for round_, time in zip(rounds, seconds, strict=True)],
            values=record.column(record.metric().name),
            job_seconds={client: float(np.median(own)) for client, own in sorted(jobs.items())},
            arrivals=count,
            staleness=staleness / count if count else 0.0,
            lost=lost,
            pause=_pause([spans[each] for each in sorted(spans)]),
        )

    @property
    def seconds(self) -> float:
        """Until the last evaluation."""
        return self.places[-1][1]

    @property
    def round_seconds(self) -> float:
        """The median length of a round; where several rounds lie between two evaluations, they are equally long."""
        rounds, seconds = np.array([(0, 0.0), *self.places]).T
        more = np.diff(rounds)
        return float(np.median(np.repeat(np.diff(seconds)[more > 0] / more[more > 0], more[more > 0].astype(int))))

    def at(self, seconds: float) -> float | None:
        """The metric at a time, on the straight line between two evaluations; None before the first one."""
        known = line(np.array([time for _, time in self.places]), np.array(self.values))
        return None if known is None or seconds < known[0][0] else float(np.interp(seconds, *known))

    def until(self, round_: int) -> float | None:
        """Seconds until the evaluation of a round, if there was one."""
        return next((time for number, time in self.places if number == round_), None)


@dataclass(frozen=True)
class Quantity:
    """One number of both runs."""

    name: str
    words: str
    unit: str
    """`s`, or empty; `metric` for a value of the metric."""
    measured: float | None
    predicted: float | None


@dataclass(frozen=True)
class JobTime:
    """The median seconds of a client's jobs in both runs."""

    client: int
    measured: float
    predicted: float


@dataclass(frozen=True)
class Prediction:
    """What was measured and what was predicted."""

    measured: str
    """The folder of the run that was measured."""
    metric: Measured
    quantities: tuple[Quantity, ...]
    clients: tuple[JobTime, ...]
    """Those whose jobs arrived in both runs."""
    notes: tuple[str, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """As it is written."""
        return {"schema": SCHEMA, **asdict(self)}

    def save(self, folder: Path) -> None:
        """Write `prediction.json`."""
        with whole(folder / FILE) as partial:
            partial.write_text(json.dumps(self.plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Prediction:
        """From a `prediction.json`."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                measured=str(told["measured"]),
                metric=read([told["metric"]])[0],
                quantities=tuple(_checked(Quantity(**each)) for each in told["quantities"]),
                clients=tuple(_checked(JobTime(**each)) for each in told["clients"]),
                notes=tuple(map(str, told["notes"])),
            )
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"run folder {label(str(path.parent))}: {FILE} is damaged ({type(error).__name__}); replay the run "
                "again, or delete the file"
            ) from None


Row = TypeVar("Row", Quantity, JobTime)


def _checked(row: Row) -> Row:
    """Refuse what is no number."""
    known = [value for value in (row.measured, row.predicted) if value is not None or isinstance(row, JobTime)]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) for value in known):
        raise ValueError(f"{shown(row)} is no row of a prediction")
    return row


def compare(measured: Course, predicted: Course, metric: Measured, name: str, notes: Sequence[str] = ()) -> Prediction:
    """Both runs by the same quantities; `name` is that of the measured run."""
    both = [client for client in measured.job_seconds if client in predicted.job_seconds]
    return Prediction(
        measured=name,
        metric=metric,
        quantities=(*_times(measured, predicted), *_values(measured, predicted, metric), *_counts(measured, predicted)),
        clients=tuple(JobTime(each, measured.job_seconds[each], predicted.job_seconds[each]) for each in both),
        notes=tuple(notes),
    )


def _times(measured: Course, predicted: Course) -> Iterator[Quantity]:
    yield Quantity("seconds", "time to the end", "s", measured.seconds, predicted.seconds)
    last = max({each for each, _ in measured.places} & {each for each, _ in predicted.places}, default=None)
    if last is not None and (measured.places[-1][0], predicted.places[-1][0]) != (last, last):
        both = measured.until(last), predicted.until(last)
        yield Quantity("common_seconds", f"time to round {last}", "s", *both)
    yield Quantity("round_seconds", "time of a round, median", "s", measured.round_seconds, predicted.round_seconds)
    if measured.pause is not None and predicted.pause is not None:
        yield Quantity("pause", "time between rounds, median", "s", measured.pause, predicted.pause)
    jobs = [_median([*each.job_seconds.values()]) for each in (measured, predicted)]
    yield Quantity("job_seconds", "time of a client's job, median", "s", *jobs)


def _values(measured: Course, predicted: Course, metric: Measured) -> Iterator[Quantity]:
    ends = _defined(measured.values[-1]), _defined(predicted.values[-1])
    yield Quantity(f"final_{metric.name}", f"{metric.words} at the end", "metric", *ends)
    shorter = min(measured.seconds, predicted.seconds)
    for share in SHARES:
        at = share * shorter
        both = measured.at(at), predicted.at(at)
        if None not in both:
            yield Quantity(f"{metric.name}_at_{100 * share:.0f}%", f"{metric.words} at {at:.4g} s", "metric", *both)


def _counts(measured: Course, predicted: Course) -> Iterator[Quantity]:
    yield Quantity("rounds", "rounds", "", measured.places[-1][0], predicted.places[-1][0])
    yield Quantity("arrivals", "uploads", "", measured.arrivals, predicted.arrivals)
    yield Quantity("staleness", "staleness, mean", "", measured.staleness, predicted.staleness)
    yield Quantity("lost", "jobs lost", "", measured.lost, predicted.lost)


def _widen(spans: dict[int, tuple[float, float]], round_: int, begin: float, end: float) -> None:
    """A round lasts from its first dispatch to the end of its last job."""
    first, last = spans.get(round_, (begin, end))
    spans[round_] = min(first, begin), max(last, end)


def _pause(spans: Sequence[tuple[float, float]]) -> float | None:
    between = [begin - end for (_, end), (begin, _) in pairwise(spans)]
    return None if not between or min(between) < 0 else _median(between)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value
