"""A search for good settings with Optuna: trials one after the other, all seeds of a trial side by side.

A trial that falls behind the median of earlier ones is stopped early. The search depends on nothing but its seed, so
one that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedkeel.errors import FedkeelError, InputError, StoppedError, label
from fedkeel.record.folder import begun, complete
from fedkeel.record.runs import RunRecord
from fedkeel.runner.stopping import Stop
from fedkeel.study.engine import Begun, Watcher, execute
from fedkeel.study.plan import Case
from fedkeel.study.space import Search, Trial, distribution
from fedkeel.study.store import PRUNED, Store
from fedkeel.study.tasks import Ended, Moved

_T = TypeVar("_T")
SEARCH, TRIALS = "search.json", "trials.jsonl"
WARM = 5
"""Trials before any is stopped early."""


def search(
    what: Search, place: Path, *, jobs: int | None, watch: Watcher, tell: Callable[[Trial], None], stop: Stop
) -> list[Trial]:
    """Try settings until there are as many as asked for; what was tried before is read, not tried again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    done = _open(what, place)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=WARM, n_warmup_steps=0, n_min_trials=2)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    space = {key: distribution(each) for key, each in what.space.items()}
    for trial in done:
        study.add_trial(_frozen(trial, space))
    while len(done) < what.trials:
        number = len(done)
        study.sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=WARM)
        asked = study.ask(space)
        found = _Attempt(what, Trial(number, {**asked.params}, 0.0, ""), asked, Store(place)).make(jobs, watch, stop)
        _tell_study(study, asked, found)
        done.append(found)
        _keep(what, place, done)
        tell(found)
    return done


class _Attempt:
    """The runs of one trial, stopped early if it falls behind."""

    def __init__(self, what: Search, trial: Trial, asked: Any, store: Store) -> None:
        self._trial, self._asked, self._store = trial, asked, store
        self._cases = what.cases(trial)
        self._steps: dict[int, float] = {}
        self._behind = False
        self._stop = Stop()

    def make(self, jobs: int | None, watch: Watcher, stop: Stop) -> Trial:
        def take(event: Begun | Moved | Ended) -> None:
            watch(event)
            if not self._behind and not isinstance(event, Begun):
                self._compare()
            self._stop.asked = self._stop.asked or stop.asked or self._behind

        stop.heard = True
        try:
            execute(self._cases, self._store.path, jobs=jobs, watch=take, stop=self._stop)
        except StoppedError:
            if not self._behind:
                raise
        finally:
            stop.heard = False
        self._compare()
        if not self._behind:
            self._check_final()
        failed = any(self._store.failure(case.name) for case in self._cases)
        for case in self._cases if self._behind else ():
            if not complete(self._store.folder(case.name)) and not self._store.failure(case.name):
                self._store.fail(case.name, PRUNED, "behind the median of earlier trials")
        return self._found("pruned" if self._behind else "failed" if failed else "complete")

    def _check_final(self) -> None:
        """Refuse to judge settings by a run that failed for another reason than them."""
        for case in self._cases:
            why = self._store.failure(case.name)
            if why and not self._store.final(case.name):
                raise FedkeelError(f"{case.name} failed: {why}; the same command tries again")

    def _found(self, state: str) -> Trial:
        accuracy = 0.0 if state == "failed" or not self._steps else self._steps[max(self._steps)]
        return Trial(self._trial.number, self._trial.settings, accuracy, state, {**self._steps})

    def _compare(self) -> None:
        """Report what all seeds have reached, evaluation by evaluation, until the trial falls behind."""
        curves = [self._curve(case) for case in self._cases]
        rounds = sorted({*curves[0]}.intersection(*curves[1:]))
        for round in rounds:
            if self._behind or round in self._steps:
                continue
            self._steps[round] = sum(curve[round] for curve in curves) / len(curves)
            self._asked.report(self._steps[round], round)
            self._behind = self._asked.should_prune()

    def _curve(self, case: Case) -> dict[int, float]:
        folder = self._store.folder(case.name)
        if not begun(folder):
            return {}
        record = RunRecord.begun(folder)
        return dict(zip((int(row["round"]) for row in record.history), record.column("accuracy"), strict=True))


def _open(what: Search, place: Path) -> list[Trial]:
    """The trials that were made before; a folder that belongs to something else is refused."""
    store, told = Store(place), json.loads(json.dumps(what.told()))
    store.check_writable()
    if (place / SEARCH).exists():
        before = _parsed(place / SEARCH, lambda text: dict(json.loads(text)))
        part = next((name for name in told if before.get(name) != told[name]), None)
        if part is not None:
            raise InputError(
                f"out: {label(str(place))} belongs to another search (with another {part}); accepted: another folder"
            )
    elif store.holds_more_than(SEARCH):
        raise InputError(f"out: {label(str(place))} holds something else; accepted: a new or empty folder")
    store.write(SEARCH, told)
    if not (place / TRIALS).exists():
        return []
    found = _parsed(place / TRIALS, lambda text: [_trial(json.loads(row)) for row in text.splitlines()])
    return found[: what.trials]


def _trial(told: dict[str, Any]) -> Trial:
    return Trial(**{**told, "steps": {int(round): accuracy for round, accuracy in told["steps"].items()}})


def _parsed(path: Path, parse: Callable[[str], _T]) -> _T:
    """What a file says; one that is damaged is refused."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise InputError(f"out: {label(str(path))} is damaged; accepted: another folder") from None


def _keep(what: Search, place: Path, trials: Sequence[Trial]) -> None:
    store = Store(place)
    store.write_text(TRIALS, "".join(json.dumps(vars(trial)) + "\n" for trial in trials))
    store.write_plan(what.plan(trials))


def _frozen(trial: Trial, space: Mapping[str, Any]) -> Any:
    import optuna

    states = {"pruned": optuna.trial.TrialState.PRUNED}
    return optuna.trial.create_trial(
        params=trial.settings,
        distributions={**space},
        value=trial.accuracy,
        intermediate_values=trial.steps,
        state=states.get(trial.state, optuna.trial.TrialState.COMPLETE),
    )


def _tell_study(study: Any, asked: Any, found: Trial) -> None:
    import optuna

    pruned = found.state == "pruned"
    study.tell(asked, None if pruned else found.accuracy, state=optuna.trial.TrialState.PRUNED if pruned else None)
