"""The results of a comparison's runs, read from their folders and cut off where the runs are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal

from fedkeel.errors import InputError, label
from fedkeel.record.folder import begun, complete, worked_on
from fedkeel.record.runs import RunRecord
from fedkeel.record.schema import EXPERIMENT, SUMMARY
from fedkeel.study.kept import KeptPlan
from fedkeel.study.places import scale, words
from fedkeel.study.plan import At, Comparison, Measure
from fedkeel.study.store import Store

FEW = 3
"""The fewest evaluations by which a run with more of them is judged."""
LONGER = 1.25
"""A run that is this many times as long as the shortest is mentioned."""
State = Literal["finished", "failed", "pruned", "going on", "stopped", "not begun"]
"""A run that was stopped or killed is `stopped` until it is continued; a search prunes trials."""
LEFT: tuple[State, ...] = ("going on", "stopped", "not begun")
"""The states of runs that have not ended yet."""


@dataclass(frozen=True)
class Listed:
    """A run that is compared, and where it is."""

    name: str
    scene: str
    variant: str
    seed: int
    folder: Path
    failure: str | None = None
    """Why it failed, if it did."""
    pruned: bool = False
    """Whether it failed because a search stopped it early."""


@dataclass(frozen=True)
class Outcome(Listed):
    """The result of a run."""

    state: State = "not begun"
    record: RunRecord | None = None
    """Its experiment and history; None before it has begun."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The summary of a finished run."""
    kept: int = 0
    """The number of evaluations up to where runs are compared."""
    measure: Measure = field(default_factory=Measure)

    @property
    def broken(self) -> bool:
        """Whether it failed or was stopped early by a search."""
        return self.state in ("failed", "pruned")

    @property
    def early(self) -> bool:
        """Whether it is judged by its first few evaluations, although there are more."""
        return self.state == "finished" and 0 < self.kept < min(FEW, len(self.history))

    @property
    def history(self) -> list[dict[str, Any]]:
        """All evaluations."""
        return self.record.history if self.record else []

    @cached_property
    def accuracy(self) -> float | None:
        """The mean of the last evaluations up to where runs are compared."""
        return self._mean("accuracy")

    @cached_property
    def loss(self) -> float | None:
        """The same for the loss."""
        return self._mean("loss")

    def _mean(self, name: str) -> float | None:
        if self.record is None or not self.kept:
            return None
        values = self.record.column(name)[max(0, self.kept - self.measure.last) : self.kept]
        return sum(values) / len(values)

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy up to there."""
        return max(self.record.column("accuracy")[: self.kept]) if self.record and self.kept else None

    @property
    def position(self) -> dict[str, Any]:
        """The last evaluation up to there; empty where there is none."""
        return self.history[self.kept - 1] if self.kept else {}

    @cached_property
    def _reached(self) -> dict[str, Any] | None:
        target = self.measure.target
        if target is None or self.record is None:
            return None
        reached = (accuracy >= target for accuracy in self.record.column("accuracy"))
        return next((row for row, is_there in zip(self.history, reached, strict=True) if is_there), None)

    @property
    def rounds_to_target(self) -> int | None:
        """Rounds until the first evaluation that reaches the target; None if none does."""
        return self._reached["round"] if self._reached else None

    @property
    def seconds_to_target(self) -> float | None:
        """Virtual seconds until the target."""
        return self._reached["virtual_seconds"] if self._reached else None

    @property
    def uploads_to_target(self) -> int | None:
        """Uploads that passed the gate until the target."""
        return self._reached["updates"] if self._reached else None

    @property
    def bytes_to_target(self) -> int | None:
        """Bytes up and down until the target."""
        return self._reached["bytes_up"] + self._reached["bytes_down"] if self._reached else None

    @property
    def of_clients(self) -> dict[str, Any] | None:
        """The spread over clients: on their own test rows, or as estimated from a common test set."""
        found = self.summary.get("client_accuracy", self.summary.get("client_accuracy_estimated"))
        return found if isinstance(found, dict) else None

    @property
    def report(self) -> dict[str, Any]:
        """What the method reports about its last round."""
        rows = list(self.record.rounds()) if self.record else []
        return rows[-1] if rows else {}


@dataclass(frozen=True)
class Results:
    """The runs of a comparison with their results."""

    title: str
    measure: Measure
    outcomes: tuple[Outcome, ...]
    limits: dict[str, float]
    """For each scene with a finished run, the place on the measure's scale where its runs are compared."""
    stopped: frozenset[str] = frozenset()
    """Scenes with runs that stopped at their target: accuracies are not compared there, only the cost to the target."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in sentences."""
    command: str = ""
    """The command that repeats it."""
    planned: bool = False
    """Whether the command also continues runs that were stopped."""

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
    return results(plan.title, runs_of(plan, store), plan.measure, plan.command, planned=True)


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
    title: str, listed: Sequence[Listed], measure: Measure, command: str = "", planned: bool = False
) -> Results:
    """The results of runs, wherever they are."""
    read = [_read(each, measure) for each in listed]
    done = [each for each in read if each.state == "finished"]
    stopped = frozenset(each.scene for each in done if _stopped(each))
    ends: dict[str, list[float]] = {}
    for each in done:
        ends.setdefault(each.scene, []).append(inf if each.scene in stopped else _end(each, measure.at))
    until = measure.until or inf
    limits = {scene: inf if scene in stopped else min([until, *some]) for scene, some in ends.items()}
    cut = tuple(_cut(each, limits.get(each.scene, inf)) for each in read)
    return Results(title, measure, cut, limits, stopped, tuple(_notes(cut, measure, limits)), command, planned)


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
    final = summary.get("final_accuracy", record.history[-1].get("accuracy"))
    if final != record.history[-1].get("accuracy"):
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
    with outcome.record.told_if_damaged("history.jsonl"):
        settings = outcome.record.experiment
        return bool(settings.get("stop_at_target")) and outcome.history[-1]["accuracy"] >= settings["target_accuracy"]


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
            found.append(f"{where}runs stopped at their target, so accuracies are not compared, only what it took")
            continue
        done = [each for each in outcomes if each.scene == scene and each.state == "finished"]
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
