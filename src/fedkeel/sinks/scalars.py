"""Which numbers of a run are sent to a tracker, and under which names.

They come from the rows of the run folder, and their names say where from: `history/accuracy`, `rounds/arrived`,
`validation/accuracy`, `clients/accuracy.mean`, `method/...` for what the server rule reports, `summary/final_accuracy`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.record.follow import follow
from fedkeel.record.rows import Arrival, Evaluation, Round, RoundEnd
from fedkeel.runner.sinks import Start

Scalars = dict[str, float]
Setting = str | int | float | bool

MARK = "rounds/arrived"
"""A number that every round has."""
_FOREIGN = re.compile(r"[^A-Za-z0-9_./ -]")
"""Characters that some tracker does not accept in a name."""


@dataclass(frozen=True)
class Point:
    """What is logged about a round."""

    round: int
    scalars: Scalars


def point(end: RoundEnd) -> Point:
    """The numbers of a round that is over."""
    columns = end.arrivals.columns
    return Point(end.round, _scalars(end.row, columns["learning_rates"], columns["staleness"], end.evaluation))


def earlier(start: Start, after: int) -> Iterator[Point]:
    """The rounds after `after` that a resumed run has in its folder, with the same numbers as `point` gave."""
    if start.folder is None or after >= start.round:
        return
    tests = {row.round: row for row in start.history}
    arrivals: list[Arrival] = []
    for row in follow(start.folder, ("clients", "rounds"), timeout=60.0):
        if isinstance(row, Arrival):
            arrivals.append(row)
        elif isinstance(row, Round):
            if row.round > after:
                rates, staleness = [each.learning_rates for each in arrivals], [each.staleness for each in arrivals]
                yield Point(row.round, _scalars(row, rates, staleness, tests.get(row.round)))
            arrivals = []
            if row.round >= start.round:
                return


def summary_scalars(summary: Mapping[str, Any]) -> Scalars:
    """The numbers of `summary.json`; those inside of others have dotted names."""
    return _named("summary", _flat(summary))


def settings(experiment: Experiment) -> dict[str, Setting]:
    """Every setting by its dotted name, as `--set` takes it, without those that are null."""
    told = {_clean(name): value for name, value in _flat(experiment.model_dump(mode="json"))}
    return {name: value for name, value in told.items() if value is not None}


def _scalars(
    row: Round, rates: Sequence[Sequence[float]], staleness: Sequence[int], evaluation: Evaluation | None
) -> Scalars:
    counts = {"train_loss": row.train_loss, "arrived": row.arrived, "lost": row.lost, "refused": row.refused}
    means = {"learning_rate": _mean([_mean(each) for each in rates if each]), "staleness": _mean(staleness)}
    told = _named("rounds", (counts | means).items()) | _named("method", row.report.items())
    if evaluation is not None:
        told |= _of(evaluation)
    return told


_PARTS = ("round", "validation", "clients", "clients_estimated")


def _of(evaluation: Evaluation) -> Scalars:
    """Of a test: metrics under their names, those of the validation set, and their spreads over clients."""
    told = evaluation.plain()
    numbers = ((name, value) for name, value in told.items() if name not in _PARTS)
    return (
        _named("history", numbers)
        | _named("validation", (evaluation.validation or {}).items())
        | _named("clients", _flat(evaluation.clients or {}))
        | _named("clients_estimated", _flat(evaluation.clients_estimated or {}))
    )


def _mean(values: Sequence[Any]) -> float | None:
    return sum(values) / len(values) if values else None


def _named(group: str, items: Any) -> Scalars:
    """Numbers only; booleans, words and lists are left out."""
    numbers = ((name, value) for name, value in items if isinstance(value, int | float) and not isinstance(value, bool))
    return {_clean(f"{group}/{name}"): float(value) for name, value in numbers}


def _clean(name: str) -> str:
    return _FOREIGN.sub("_", name)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is inside, by dotted names; a list of plain values is one text."""
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, json.dumps(value) if isinstance(value, list) else value
