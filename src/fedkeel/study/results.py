"""The results of a comparison's runs, read from their folders and cut off where the runs are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from fedkeel.errors import InputError, label
from fedkeel.record.folder import begun, complete, worked_on
from fedkeel.record.measured import ACCURACY, Measured, declared, known
from fedkeel.record.runs import RunRecord
from fedkeel.record.schema import EXPERIMENT, SUMMARY
from fedkeel.study.kept import KeptPlan
from fedkeel.study.outcome import LEFT, Listed, Outcome, State
from fedkeel.study.places import scale, words
from fedkeel.study.plan import At, Comparison, Measure, goal
from fedkeel.study.store import Store

__all__ = ["LEFT", "Listed", "Outcome", "Results", "State", "collect", "results"]
LONGER = 1.25
"""A run that is this many times as long as the shortest is mentioned."""


@dataclass(frozen=True)
class Results:
    """The runs of a comparison with their results."""

    title: str
    measure: Measure
    outcomes: tuple[Outcome, ...]
    limits: dict[str, float]
    """For each scene with a finished run, the place on the measure's scale where its runs are compared."""
    stopped: frozenset[str] = frozenset()
    """Scenes with runs that stopped at their target: results are not compared there, only the cost to the target."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in sentences."""
    command: str = ""
    """The command that repeats it."""
    planned: bool = False
    """Whether the command also continues runs that were stopped."""
    metric: Measured = ACCURACY
    """What runs are compared by."""

    @cached_property
    def on_validation(self) -> bool:
        """Whether the validation set decides: where settings are chosen, and all finished runs have such a set."""
        done = [run for run in self.outcomes if run.state == "finished"]
        return self.measure.tuning and bool(done) and all(run.record and run.record.validated for run in done)

    @property
    def judged_by(self) -> str:
        """What decides, in words: `test accuracy`, `validation rmse`."""
        return f"{'validation' if self.on_validation else 'test'} {self.metric.words}"

    def scores(self, scene: str, variant: str) -> dict[int, float]:
        """What decides, of the finished runs of a cell, by seed."""
        found = {}
        for run in self.of(scene, variant):
            score = run.validation if self.on_validation else run.value
            if run.state == "finished" and score is not None:
                found[run.seed] = score
        return found

    @property
    def scenes(self) -> list[str]:
        """The scenes, in order."""
        return list(dict.fromkeys(each.scene for each in self.outcomes))

    @property
    def variants(self) -> list[str]:
        """The variants, in order."""
        return list(dict.fromkeys(each.variant for each in self.outcomes))

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return sorted({each.seed for each in self.outcomes})

    @cached_property
    def _cells(self) -> dict[tuple[str, str], list[Outcome]]:
        found: dict[tuple[str, str], list[Outcome]] = {}
        for each in self.outcomes:
            found.setdefault((each.scene, each.variant), []).append(each)
        return found

    def of(self, scene: str, variant: str) -> list[Outcome]:
        """The runs of a cell, one for each seed."""
        return self._cells.get((scene, variant), [])


def collect(plan: Comparison | KeptPlan, store: Path) -> Results:
    """The runs of a plan as they are now, including those that are going on or have not begun."""
    described = plan.cases[0].experiment
    names = described.get("metrics") if isinstance(described, dict) else described.metrics
    first = next(iter(declared(names)), ACCURACY)
    return results(plan.title, runs_of(plan, store), plan.measure, plan.command, planned=True, first=first)


def runs_of(plan: Comparison | KeptPlan, store: Path) -> list[Listed]:
    """The runs of a plan, and where they are."""
    place = Store(store)
    return [
        Listed(
            case.name,
            case.scene,
            case.variant,
            case.seed,
            place.folder(case.name),
            place.failure(case.name),
            place.pruned(case.name),
        )
        for case in plan.cases
    ]


def results(
    title: str,
    listed: Sequence[Listed],
    measure: Measure,
    command: str = "",
    planned: bool = False,
    first: Measured = ACCURACY,
) -> Results:
    """The results of runs, wherever they are; `first` is the metric to name while no run has begun."""
    read = [_read(each, measure) for each in listed]
    metric = _metric([each.record for each in read if each.record], measure, first)
    metric.check_target(measure.target)
    read = [replace(each, metric=metric) for each in read]
    done = [each for each in read if each.state == "finished"]
    stopped = frozenset(each.scene for each in done if _stopped(each))
    ends: dict[str, list[float]] = {}
    for each in done:
        ends.setdefault(each.scene, [])
        if each.scene not in stopped and not _ended_early(each):
            ends[each.scene].append(_end(each, measure.at))
    until = measure.until or inf
    limits = {scene: inf if scene in stopped else min([until, *some]) for scene, some in ends.items()}
    for scene, limit in limits.items():
        if limit == inf and scene not in stopped:  # all ended early
            limits[scene] = max(_end(each, measure.at) for each in done if each.scene == scene)
    cut = tuple(_cut(each, limits.get(each.scene, inf)) for each in read)
    notes = tuple(_notes(cut, measure, limits))
    return Results(title, measure, cut, limits, stopped, notes, command, planned, metric)


def _metric(records: Sequence[RunRecord], measure: Measure, first: Measured) -> Measured:
    """What all runs are compared by; refuses runs that cannot be."""
    if not records:
        return first if measure.metric is None else known(measure.metric)
    found = [(record.metric(measure.metric), record) for record in records]
    (one, here), *others = found
    for other, there in others:
        if (other.name, other.better) != (one.name, one.better):
            names = f"{one.name} ({one.better} is better)", f"{other.name} ({other.better} is better)"
            raise InputError(
                f"metric: {label(str(here.path))} is judged by {names[0]}, but {label(str(there.path))} by {names[1]}; "
                "compare runs that have the same first metric, or name one that all have with --metric"
            )
    return one


def _read(listed: Listed, measure: Measure) -> Outcome:
    folder, state = listed.folder, _state(listed)
    record = summary = None
    if state == "finished" and not begun(folder):
        raise _damaged(folder, f"{EXPERIMENT} is missing")
    if begun(folder):
        record = RunRecord.begun(folder)
        summary = _summary(folder) if state == "finished" else None
    if state == "finished" and record is not None:
        _check_whole(record, summary or {})
    return Outcome(**vars(listed), state=state, record=record, summary=summary or {}, measure=measure)


def _check_whole(record: RunRecord, summary: dict[str, Any]) -> None:
    """Refuse a finished run with missing rows."""
    if not record.history:
        raise _damaged(record.path, "history.jsonl has no row")
    first, last = record.metrics[0].name, record.history[-1]
    if summary.get(f"final_{first}", last.get(first)) != last.get(first):
        raise _damaged(record.path, f"history.jsonl does not end as {SUMMARY} says")


def _state(listed: Listed) -> State:
    folder = listed.folder
    if listed.failure is not None:
        return "pruned" if listed.pruned else "failed"
    if complete(folder):
        return "finished"
    if not begun(folder):
        return "not begun"
    going_on = worked_on(folder)
    return "finished" if complete(folder) else "going on" if going_on else "stopped"  # it may have ended meanwhile


def _damaged(folder: Path, what: str) -> InputError:
    return InputError(
        f"run folder {label(str(folder))} is damaged ({what}); delete it to run it again, or name another one"
    )


def _summary(folder: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(folder, f"{SUMMARY} cannot be read: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise _damaged(folder, f"{SUMMARY} holds no summary")
    return found


def _stopped(outcome: Outcome) -> bool:
    """Whether a run ended because it reached its target, so that it cannot be compared at an equal place."""
    assert outcome.record is not None
    record = outcome.record
    if not record.experiment.get("stop_at_target"):
        return False
    with record.told_if_damaged(EXPERIMENT):
        name, target = goal(record.experiment, record.metrics[0].name)
        return record.metric(name).aim(target).reached(record.tuned(name)[-1])


def _ended_early(outcome: Outcome) -> bool:
    """Whether early stopping ended a run: what it had reached then is its result at any later place, too."""
    return not _stopped(outcome) and bool(outcome.summary.get("ended_early"))


def _end(outcome: Outcome, at: At) -> float:
    """How far a run went."""
    assert outcome.record is not None
    with outcome.record.told_if_damaged("history.jsonl"):
        if at == "time" and outcome.summary.get("virtual_seconds") is not None:
            return float(outcome.summary["virtual_seconds"])  # a run that ends by the clock ends between two rounds
        return scale(outcome.history[-1], at)


def _cut(outcome: Outcome, limit: float) -> Outcome:
    if outcome.record is None:
        return outcome
    with outcome.record.told_if_damaged("history.jsonl"):
        kept = sum(scale(row, outcome.measure.at) <= limit * (1 + 1e-12) for row in outcome.history)
    return replace(outcome, kept=kept)


def _passed_over(where: str, limit: float, runs: Sequence[Outcome]) -> list[str]:
    """A note on runs whose later part does not count, because another run was much shorter."""
    at = runs[0].measure.at
    ends = {run.name: _end(run, at) for run in runs}
    first = min(runs, key=lambda run: ends[run.name])
    longer = dict.fromkeys(run.variant for run in runs if ends[run.name] > LONGER * limit)
    if not longer:
        return []
    more = "limit_seconds and enough rounds" if at == "time" else "as many rounds for all"
    return [
        f"{where}compared at {words(limit, at)}, where {first.variant} (seed {first.seed}) ended; later results do not "
        f"count, though {', '.join(longer)} went on to {words(max(ends.values()), at)} (to compare later, set {more})"
    ]


def _notes(outcomes: Sequence[Outcome], measure: Measure, limits: dict[str, float]) -> list[str]:
    """What a reader should know about the place where runs are compared."""
    found = []
    for scene, limit in limits.items():
        where = f"{scene}: " if scene else ""
        if limit == inf:
            found.append(f"{where}runs stopped at their target, so their results are not compared, only what it took")
            continue
        done = [each for each in outcomes if each.scene == scene and each.state == "finished"]
        undefined = [f"{each.variant} (seed {each.seed})" for each in done if each.kept and each.value is None]
        if undefined:
            found.append(f"{where}{done[0].metric.words} is not defined, so left out: {', '.join(undefined)}")
        early = [f"{each.variant} (seed {each.seed})" for each in done if _ended_early(each)]
        if early:
            found.append(
                f"{where}early stopping ended these runs, which count by their last evaluation: {', '.join(early)}"
            )
            done = [each for each in done if not _ended_early(each)]
        if not done:
            continue
        if measure.until is not None and limit < measure.until:
            first = min(done, key=lambda each: _end(each, measure.at))
            found.append(
                f"{where}compared at {words(limit, measure.at)}, where {first.variant} (seed {first.seed}) "
                f"ended, not at {words(measure.until, measure.at)}; with more rounds, it would continue until then"
            )
        elif measure.until is None:
            found += _passed_over(where, limit, done)
        late = [f"{each.variant} (seed {each.seed})" for each in done if not each.kept]
        if late:
            found.append(f"{where}no evaluation yet at {words(limit, measure.at)}, so left out: {', '.join(late)}")
    return found
