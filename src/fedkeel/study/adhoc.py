"""Run folders and comparisons that a user names, as something to compare."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.config.section import RULES
from fedkeel.config.spelling import dotted, flow
from fedkeel.config.usercode import is_own, short
from fedkeel.errors import InputError, label
from fedkeel.record.folder import begun
from fedkeel.record.runs import RunRecord
from fedkeel.study.plan import At, Comparison, Measure, default_at
from fedkeel.study.results import Listed, Results, collect, results
from fedkeel.study.store import Store, is_comparison

_ASIDE = {"name", "seed", "executor", "checkpoint", "threads", "device"}
"""Settings that do not tell one variant from another."""
_RULES = {f"algorithm.{side}" for side in RULES}


def gather(paths: Sequence[Path], at: At | None = None, target: float | None = None) -> Results:
    """A comparison as it was planned; run folders, grouped by their settings, seed by seed."""
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{label(str(path))}: there is no such folder; accepted: a run folder or a comparison")
    planned = [path for path in paths if is_comparison(path)]
    if planned and len(paths) > 1:
        raise InputError(
            f"{label(str(planned[0]))} is a comparison; accepted: one comparison by itself, or any number of run "
            "folders"
        )
    if planned:
        return collect(_seen_at(Store(planned[0]).plan(), at, target), planned[0])
    empty = [path for path in paths if not begun(path)]
    if empty:
        raise InputError(
            f"{label(str(empty[0]))} holds neither a run nor a comparison; accepted: a folder made by fedkeel run or "
            "fedkeel compare"
        )
    return _of_runs([RunRecord.begun(path) for path in paths], at, target)


def _seen_at(plan: Comparison, at: At | None, target: float | None) -> Comparison:
    """A plan as somebody else wants it compared; its own place on a scale is none on another."""
    before = plan.measure
    until = before.until if at in (None, before.at) else None
    measure = replace(before, at=at or before.at, until=until, target=target or before.target)
    return replace(plan, measure=measure)


def _of_runs(records: Sequence[RunRecord], at: At | None, target: float | None) -> Results:
    settings = [dotted(record.experiment, _ASIDE) for record in records]
    differ = [key for key in dict.fromkeys(k for each in settings for k in each) if _differs(key, settings)]
    listed = []
    taken = set[tuple[str, int]]()
    for record, each in zip(records, settings, strict=True):
        alone = all(
            each == other for twin, other in zip(records, settings, strict=True) if _name(twin) == _name(record)
        )
        variant, seed = _variant(record, each, differ, alone), _seed(record)
        while (variant, seed) in taken:  # the same run a second time
            variant = f"{variant} ({record.path.name})"
        taken.add((variant, seed))
        listed.append(Listed(record.path.name, "", variant, seed, record.path))
    measure = Measure(
        at=at or _default_at([record.experiment for record in records]), target=target or _target(records)
    )
    title = listed[0].variant if len(listed) == 1 else f"{len(listed)} runs"
    command = shlex.join(["fedkeel", "report", *(str(record.path) for record in records)])
    if len(listed) == 1:
        command = shlex.join(["fedkeel", "run", str(records[0].path / "experiment.yaml")])
    return results(title, listed, measure, command)


def _differs(key: str, settings: Sequence[dict[str, Any]]) -> bool:
    """Whether runs that both have a setting have it differently; settings of one method alone say nothing more."""
    values = [flow(each[key]) for each in settings if key in each]
    return len(set(values)) > 1


def _variant(record: RunRecord, settings: dict[str, Any], differ: Sequence[str], alone: bool) -> str:
    """A run's name, if runs with it have the same settings; or its method and what else it has differently."""
    if alone and (name := _name(record)):
        return label(name)
    told = [
        f"{key.removeprefix('algorithm.')}={flow(settings[key])}"
        for key in differ
        if key in settings and key != "algorithm.name" and not (key in _RULES and settings[key] is None)
    ]
    return ", ".join([short(_method(record)), *told])


def _name(record: RunRecord) -> Any:
    return record.experiment.get("name")


def _seed(record: RunRecord) -> int:
    with record.told_if_damaged("experiment.yaml"):
        return int(record.experiment.get("seed", 0))


def _method(record: RunRecord) -> str:
    with record.told_if_damaged("experiment.yaml"):
        return str(record.experiment["algorithm"]["name"])


def _target(records: Sequence[RunRecord]) -> float | None:
    targets = [record.experiment.get("target_accuracy") for record in records]
    same = all(target == targets[0] for target in targets)
    return targets[0] if same and isinstance(targets[0], float) and 0 < targets[0] <= 1 else None


def _default_at(experiments: Sequence[Mapping[str, Any]]) -> At:
    """By the methods of fedkeel among them: to look at runs imports no code of the user's."""
    found = list[Experiment]()
    for each in experiments:
        part = {name: each[name] for name in ("algorithm", "schedule") if name in each}
        method = part.get("algorithm")
        with suppress(InputError):
            if isinstance(method, dict) and not any(map(is_own, method.values())):
                found.append(Experiment.build(part))
    return default_at(found)
