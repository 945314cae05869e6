"""A search for good settings with Optuna: trials one after the other, all seeds of a trial side by side.

A trial that falls behind the median of earlier ones is stopped early. The search depends only on its seed, so an
interrupted search continues as if it had not been interrupted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

from fedkeel.errors import InputError, MishapError, StoppedError, label
from fedkeel.record.folder import begun, complete
from fedkeel.record.measured import Measured, declared
from fedkeel.record.runs import RunRecord
from fedkeel.runner.stopping import PartStop, Stop
from fedkeel.study.crew import DIED
from fedkeel.study.engine import Begun, SettingsError, Watcher, execute
from fedkeel.study.outposts import Outposts
from fedkeel.study.places import scale
from fedkeel.study.plan import Case, Measure, place_of
from fedkeel.study.space import SEARCH, TRIALS, Search, Trial, distribution
from fedkeel.study.store import PRUNED, Store
from fedkeel.study.tasks import Ended, Lost, Moved

_T = TypeVar("_T")
WARM = 5
"""Trials before any is stopped early."""
PLACES = 20
"""Places on the virtual clock at which trials are compared."""
_MISHAPS = (DIED, MishapError.__name__)
"""Kinds of failures that say nothing about the settings."""


def search(
    what: Search,
    place: Path,
    *,
    jobs: int | None,
    watch: Watcher,
    tell: Callable[[Trial], None],
    stop: Stop,
    ray: Outposts | None = None,
) -> list[Trial]:
    """Try settings until there are as many trials as asked for; earlier trials are read, not tried again.

    Settings that cannot be run are recorded as failed. When a stop is asked for, `StoppedError` says what is done.
    """
    store = Store(place)
    store.check_writable()
    with store.alone():
        done = _open(what, store)
        stop.heard = True
        try:
            _Searcher(what, store, jobs, watch, stop, ray).go_on(done, tell)
        except StoppedError:
            raise StoppedError(
                f"stopped; {len(done)} of {what.trials} trials are done, and the same command continues from here"
            ) from None
        finally:
            stop.heard = False
    return done


@dataclass(frozen=True)
class _Searcher:
    """Makes trials one after the other."""

    what: Search
    store: Store
    jobs: int | None
    watch: Watcher
    stop: Stop
    ray: Outposts | None

    def go_on(self, done: list[Trial], tell: Callable[[Trial], None]) -> None:
        """Add trials to those that are done."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=WARM, n_warmup_steps=0, n_min_trials=2)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        space = {key: distribution(each) for key, each in self.what.space.items()}
        for trial in done:
            study.add_trial(_frozen(trial, space))
        while len(done) < self.what.trials:
            if self.stop.asked:
                raise StoppedError("stopped between two trials")
            number = len(done)
            study.sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=WARM)
            asked = study.ask(space)
            trial = Trial(number, {**asked.params}, 0.0, "")
            found = _tried_before(trial, done, asked) or self._with_value(self._try(trial, asked, done), done)
            _tell_study(study, asked, found)
            done.append(found)
            self.store.write_text(TRIALS, "".join(json.dumps(asdict(each)) + "\n" for each in done))
            tell(found)

    def _with_value(self, trial: Trial, done: Sequence[Trial]) -> Trial:
        """A failed trial counts as much as the worst so far; shares that should be high count 0."""
        if trial.state != "failed":
            return trial
        complete = [each for each in done if each.state == "complete"]
        metric = complete[0].metric if complete else self._declared
        if metric.share and metric.better == "higher":
            return replace(trial, value=0.0, metric=metric)
        worst = min(complete, key=lambda each: each.score or 0.0, default=None)
        return replace(trial, value=None if worst is None else worst.value, metric=metric)

    @property
    def _declared(self) -> Measured:
        """What the experiment says that trials are compared by."""
        metrics = declared(self.what.cases(self.what.first)[0].experiment.metrics)
        name = self.what.measure.metric
        return next((each for each in metrics if each.name == name), metrics[0])

    def _try(self, trial: Trial, asked: Any, done: Sequence[Trial]) -> Trial:
        """Run a trial, which is in the plan as soon as its runs begin."""
        try:
            cases = self.what.cases(trial)
        except InputError as error:
            return _failed(trial, error)
        self.store.write_plan(self.what.plan([*done, trial]))
        attempt = _Attempt(self.what.measure, trial, cases, asked, self.store)
        try:
            return attempt.make(self.jobs, self.watch, self.stop, self.ray)
        except SettingsError as error:
            self._check_first()
            found = _failed(trial, error)
            for case in cases:
                self.store.fail(case.name, type(error).__name__, found.why)
            return found

    def _check_first(self) -> None:
        """Refuse a search whose first values cannot be run either, for example because its data are missing."""
        cases = self.what.cases(self.what.first)
        execute(cases, self.store.path, jobs=self.jobs, stop=PartStop(self.stop), dry=True, ray=self.ray)


def _tried_before(trial: Trial, done: Sequence[Trial], asked: Any) -> Trial | None:
    """The result of an earlier trial with the same settings, if there was one."""
    same = next((each for each in done if each.words == trial.words), None)
    if same is None:
        return None
    for step, value in same.steps.items():
        asked.report(same.metric.sign * value, step)
    return replace(same, number=trial.number, settings=trial.settings, repeats=same.number)


def _failed(trial: Trial, error: InputError) -> Trial:
    """A trial whose settings are refused; the message need not repeat them."""
    return replace(trial, state="failed", why=str(error).removeprefix(f"{place_of('', trial.variant)}: "))


class _Attempt:
    """The runs of one trial, stopped early if it falls behind."""

    def __init__(self, measure: Measure, trial: Trial, cases: Sequence[Case], asked: Any, store: Store) -> None:
        self._measure, self._trial, self._cases, self._asked, self._store = measure, trial, cases, asked, store
        self._steps: dict[int, float] = {}
        self._behind = False
        self._seen: tuple[Measured, bool] | None = None
        """The metric, and whether it was measured on a validation set, as soon as a run was tested."""

    def make(self, jobs: int | None, watch: Watcher, stop: Stop, ray: Outposts | None) -> Trial:
        part = PartStop(stop)

        def take(event: Begun | Moved | Lost | Ended) -> None:
            watch(event)
            if not isinstance(event, Begun):
                self._compare()
            part.asked = self._behind

        try:
            execute(self._cases, self._store.path, jobs=jobs, watch=take, stop=part, held=True, ray=ray)
        except StoppedError:
            if not self._behind:
                raise
        self._compare()
        if self._behind:
            return self._pruned()
        failures = [why for case in self._cases if (why := self._failure(case))]
        value = None if failures else self._value()
        if value is None and not failures:
            failures.append("its metric is not defined")
        state = "failed" if failures else "complete"
        return replace(self._trial, value=value, state=state, why="".join(failures[:1]), **self._told)

    @property
    def _told(self) -> dict[str, Any]:
        metric = {} if self._seen is None else {"metric": self._seen[0], "validated": self._seen[1]}
        return {"steps": self._steps, **metric}

    def _pruned(self) -> Trial:
        """All runs count as pruned, also those that ended or failed meanwhile: which do depends on the machine."""
        for case in self._cases:
            self._store.fail(case.name, PRUNED, "behind the median of earlier trials")
        return replace(self._trial, value=self._steps[max(self._steps)], state="pruned", **self._told)

    def _failure(self, case: Case) -> str | None:
        """Why a run failed, if it did; a failure that is not due to the settings ends the search."""
        why = self._store.failure(case.name)
        if why and self._store.kind(case.name) in _MISHAPS:
            raise MishapError(f"{case.name} failed: {why}; run the same command to try again")
        return why

    def _value(self) -> float | None:
        """The mean where trials are compared, or at the end of the runs where that is not known yet."""
        if self._steps:
            return self._steps[max(self._steps)]
        records = [RunRecord.read(self._store.folder(case.name)) for case in self._cases]
        found = sum(record.tuned(record.metric(self._measure.metric).name)[-1] for record in records) / len(records)
        return None if isnan(found) else found

    def _compare(self) -> None:
        """Report what all seeds have reached, step by step, until the trial falls behind."""
        if self._behind:
            return
        curves = [self._curve(case) for case in self._cases]
        for step in sorted({*curves[0]}.intersection(*curves[1:])):
            if self._behind or step in self._steps:
                continue
            self._steps[step] = sum(curve[step] for curve in curves) / len(curves)
            assert self._seen is not None
            self._asked.report(self._seen[0].sign * self._steps[step], step)
            self._behind = self._asked.should_prune()

    def _curve(self, case: Case) -> dict[int, float]:
        folder = self._store.folder(case.name)
        ended = complete(folder)  # asked first, so that the history is whole
        if not begun(folder):
            return {}
        record = RunRecord.begun(folder)
        if record.history:
            self._seen = record.metric(self._measure.metric), record.validated
        return steps(record, self._measure, ended)


def steps(record: RunRecord, measure: Measure, ended: bool) -> dict[int, float]:
    """A run's metric by round, or by the places of the virtual clock that it has passed, as runs are compared.

    It is that of the validation set where there is one. Empty where the place at which trials are compared is known
    only when all have ended.
    """
    found: dict[int, float] = {}
    with record.told_if_damaged("history.jsonl"):
        values = record.tuned(record.metric(measure.metric).name)
        if measure.at == "rounds":
            found = dict(zip((int(row["round"]) for row in record.history), values, strict=True))
        elif measure.at == "time" and measure.until is not None:
            found = _at_places([scale(row, "time") for row in record.history], values, measure.until, ended)
    return {step: value for step, value in found.items() if not isnan(value)}


def _at_places(times: Sequence[float], values: Sequence[float], until: float, ended: bool) -> dict[int, float]:
    """The last evaluation up to each place; while a run goes on, only where a later one shows that it was the last."""
    counts = {place: bisect_right(times, until * place / PLACES * (1 + 1e-12)) for place in range(1, PLACES + 1)}
    return {place: values[count - 1] for place, count in counts.items() if count and (ended or count < len(times))}


def _open(what: Search, store: Store) -> list[Trial]:
    """The trials that were made before; a folder that belongs to something else is refused."""
    place, told = store.path, json.loads(json.dumps(what.told()))
    if (place / SEARCH).exists():
        before = _parsed(place / SEARCH, lambda text: dict(json.loads(text)))
        part = next((name for name in told if before.get(name) != told[name]), None)
        if part is not None:
            raise InputError(
                f"out: {label(str(place))} belongs to another search (with another {part}); choose another folder"
            )
    elif store.holds_more_than(SEARCH):
        raise InputError(f"out: {label(str(place))} holds something else; choose a new or empty folder")
    store.write(SEARCH, told)
    if not (place / TRIALS).exists():
        return []
    found = _parsed(place / TRIALS, lambda text: [_trial(json.loads(row)) for row in text.splitlines()])
    return found[: what.trials]


def _trial(told: dict[str, Any]) -> Trial:
    steps = {int(round): value for round, value in told["steps"].items()}
    if "accuracy" in told:  # as an earlier version called it
        told["value"] = told.pop("accuracy")
    if "metric" in told:
        told["metric"] = Measured(**told["metric"])
    return Trial(**{**told, "steps": steps})


def _parsed(path: Path, parse: Callable[[str], _T]) -> _T:
    """What a file says; one that is damaged is refused."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise InputError(f"out: {label(str(path))} is damaged; choose another folder") from None


def _frozen(trial: Trial, space: Mapping[str, Any]) -> Any:
    import optuna

    state = optuna.trial.TrialState.COMPLETE if trial.score is not None else optuna.trial.TrialState.FAIL
    return optuna.trial.create_trial(
        params=trial.settings,
        distributions={**space},
        value=trial.score,
        intermediate_values={step: trial.metric.sign * value for step, value in trial.steps.items()},
        state=optuna.trial.TrialState.PRUNED if trial.state == "pruned" else state,
    )


def _tell_study(study: Any, asked: Any, found: Trial) -> None:
    import optuna

    if found.state == "pruned":
        study.tell(asked, None, state=optuna.trial.TrialState.PRUNED)
    elif found.score is None:
        study.tell(asked, None, state=optuna.trial.TrialState.FAIL)
    else:
        study.tell(asked, found.score)
