"""Changing settings of a run that is resumed: what may change, and when that is sound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.config.experiment import Experiment, contradiction
from fedkeel.errors import InputError
from fedkeel.local.settings import PLACES, ExecutorSettings
from fedkeel.record.checkpoints import Loaded
from fedkeel.record.ends import CHANGEABLE, ENDS
from fedkeel.record.folder import RunFolder, complete


def changed(path: Path, stored: Experiment, changes: Mapping[str, Any]) -> Experiment | None:
    """The experiment with other settings; None where nothing is to be done with it that was not done before.

    The result of a run must be that of one with these settings from the start, so most settings cannot change.
    """
    for name in changes:
        if name not in CHANGEABLE:
            raise InputError(
                f"{name} cannot change when a run is resumed; start a new run, or change one of {', '.join(CHANGEABLE)}"
            )
    before, new = stored.model_dump(), {name: _merged(stored, name, value) for name, value in changes.items()}
    well_formed = isinstance(new.get("executor"), Mapping)
    if well_formed and (kind := _other_kind(before["executor"], new["executor"])):
        raise InputError(
            f"executor.kind: the run trains {kind[0]}, which executor.kind={new['executor']['kind']} does not; when it "
            f"is resumed, use {kind[1]}"
        )
    if well_formed and (reason := contradiction({"executor": before["executor"]}, new)):
        raise InputError(
            f"executor: the run was started with {reason}; when a run is resumed, only {', '.join(PLACES)} may change"
        )
    experiment = stored.replace(**new)
    kinds = {stored.executor.kind, experiment.executor.kind}
    if experiment.threads > 1 and len(kinds) > 1 and "processes" in kinds:
        raise InputError(
            f"executor.kind: a run with threads={experiment.threads} cannot move from {stored.executor.kind} to "
            f"{experiment.executor.kind}, as worker processes use one thread each"
        )
    after = experiment.model_dump()
    differ = [name for name in CHANGEABLE if before[name] != after[name]]
    if "rounds" in differ and (reason := stored.plans_ahead):
        raise InputError(f"rounds cannot change when this run is resumed, as {reason}; start a new run")
    matters = [name for name in differ if name not in ("checkpoint", "limit_wall_seconds", "executor")]
    return experiment if matters or (differ and not complete(path)) else None


def check(experiment: Experiment, folder: RunFolder, found: Loaded | None) -> None:
    """Refuse changes by which the run would have ended before the checkpoint from which it goes on."""
    if found is None:
        if complete(folder.path) and folder.history()[-1].round > 1:
            raise InputError(
                f"resume: the run in {folder.path} has no checkpoint from before its last round, so it cannot be "
                f"extended; run it again from the start: fedkeel run {folder.path / 'experiment.yaml'}"
            )
        return
    if found.state["over"]:  # it ends as it did
        return
    done, now = found.number, found.state["world"]["flights"]["queue"]["now"]
    if experiment.rounds <= done:
        raise InputError(
            f"rounds must be greater than {done}, the rounds that the run in {folder.path} has done; got "
            f"{experiment.rounds}"
        )
    if experiment.limit_seconds is not None and experiment.limit_seconds <= now:
        raise InputError(
            f"limit_seconds must be greater than {now:g}, the virtual seconds that the run in {folder.path} has done; "
            f"got {experiment.limit_seconds:g}"
        )
    aim = experiment.aim
    for row in folder.history() if experiment.stop_at_target else ():
        if row.round <= done and aim.reached(row.tuned(aim.metric)):
            name = "target" if experiment.target_accuracy is None else "target_accuracy"
            raise InputError(
                f"{name}: {aim.target:g} was reached in round {row.round}, before the checkpoint of round {done}; "
                "choose a harder one or set stop_at_target=false"
            )


def _other_kind(before: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str] | None:
    """(How a run trains, what can go on with it), if that kind of executor cannot."""
    if before["stack"] and new["kind"] == "serial":
        return f"{before['stack']} clients at once", "vectorised, processes or ray"
    if before["stack"] == 0 and new["kind"] in ("vectorised", "threads"):
        return "one client after the other", "serial, processes or ray"
    return None


def words(stored: Experiment, experiment: Experiment) -> list[str]:
    """A sentence for each setting that changes when a run ends."""
    before, after = stored.model_dump(), experiment.model_dump()
    return [f"{name} was {before[name]} and is now {after[name]}" for name in ENDS if before[name] != after[name]]


def _merged(stored: Experiment, name: str, value: Any) -> Any:
    """Of a section, settings that are not given stay as they are."""
    before = stored.model_dump()[name]
    if name == "executor":
        given = {"kind": value} if isinstance(value, str) else value
        given = given.model_dump(exclude_unset=True) if isinstance(given, ExecutorSettings) else given
        if not isinstance(given, Mapping):
            return value
        given = {k: v for k, v in given.items() if (k, v) != ("kind", "auto") and (v is not None or k in PLACES)}
        moved = given.get("kind", before["kind"]) != before["kind"]
        return {key: each for key, each in before.items() if not (moved and key in PLACES)} | given
    return {**before, **value} if isinstance(before, dict) and isinstance(value, Mapping) else value
