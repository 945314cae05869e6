"""Compares run folders and comparisons that a user names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.config.section import RULES
from fedkeel.config.spelling import dotted, flow
from fedkeel.config.usercode import is_own, short
from fedkeel.errors import InputError, counted, label
from fedkeel.record.divergence import divergence
from fedkeel.record.folder import begun
from fedkeel.record.measured import canonical
from fedkeel.record.places import repetition
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import real
from fedkeel.study.plan import At, Measure, default_at, goal
from fedkeel.study.results import Listed, Results, results, runs_of
from fedkeel.study.store import Store, is_comparison

ASIDE = {"name", "seed", "executor", "checkpoint", "threads", "device"}
"""Settings that do not tell one variant from another: they differ between seeds or machines."""
_RULES = {f"algorithm.{side}" for side in RULES}


@dataclass(frozen=True)
class _Group:
    """Runs that belong together, and how they would be compared by themselves."""

    name: str
    title: str
    runs: list[Listed]
    measure: Measure
    command: str
    planned: bool = False
    """Whether the command also continues runs that were stopped."""


def gather(
    paths: Sequence[Path],
    at: At | None = None,
    target: float | None = None,
    reference: str | None = None,
    metric: str | None = None,
) -> Results:
    """Comparisons as they were planned; run folders, grouped by their settings, seed by seed."""
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{label(str(path))}: there is no such folder; name a run folder or a comparison")
    planned = [path for path in paths if is_comparison(path)]
    single = [path for path in paths if path not in planned]
    empty = next((path for path in single if not begun(path)), None)
    if empty is not None:
        inside = any(begun(path) or is_comparison(path) for path in empty.iterdir() if path.is_dir())
        hint = f"; inside it are some: {label(str(empty))}/*" if inside else ""
        raise InputError(
            f"{label(str(empty))} holds neither a run nor a comparison; name a folder made by fedkeel run or fedkeel "
            f"compare{hint}"
        )
    groups = [_planned(path) for path in planned]
    if single:
        groups.append(_of_runs([RunRecord.begun(path) for path in single]))
    found = groups[0] if len(groups) == 1 else _together(groups, paths)
    measure = _seen(found.measure, at, target, reference, metric and canonical(metric))
    variants = dict.fromkeys(each.variant for each in found.runs)
    if reference is not None and reference not in variants:
        raise InputError(f"reference: {label(reference)} is not a variant; choose one of {', '.join(variants)}")
    return results(found.title, found.runs, measure, found.command, found.planned)


def _seen(before: Measure, at: At | None, target: float | None, reference: str | None, metric: str | None) -> Measure:
    """The measure as the user wants it; a place on one scale and a target of one metric mean nothing on others."""
    until = before.until if at in (None, before.at) else None
    if metric is not None and metric != before.metric:
        before = replace(before, metric=metric, target=None)
    return replace(
        before,
        at=at or before.at,
        until=until,
        target=before.target if target is None else target,
        reference=reference or before.reference,
    )


def _planned(path: Path) -> _Group:
    plan = Store(path).plan()
    return _Group(path.name, plan.title, runs_of(plan, path), plan.measure, plan.command, planned=True)


def _together(groups: Sequence[_Group], paths: Sequence[Path]) -> _Group:
    """All runs; where two groups have the same variant in the same scene with the same seed, each is a scene."""
    runs = [each for group in groups for each in group.runs]
    if len({(each.scene, each.variant, each.seed) for each in runs}) < len(runs):
        names = [group.name for group in groups]
        told = [f"{name} ({names[:place].count(name) + 1})" if names.count(name) > 1 else name
                for place, name in enumerate(names)]  # fmt: skip
        runs = [
            replace(each, scene=", ".join(filter(None, (name, each.scene))))
            for name, group in zip(told, groups, strict=True)
            for each in group.runs
        ]
    command = shlex.join(["fedkeel", "report", *map(str, paths)])
    measure = _common([group.measure for group in groups])
    if measure.reference is None:
        measure = replace(measure, reference=_reference({each.variant: each.variant.lower() for each in runs}))
    return _Group("", counted(len(runs), "run"), runs, measure, command)


def _common(measures: Sequence[Measure]) -> Measure:
    """What all measures have in common; equal time if one of them uses it."""
    first = measures[0]
    scales = {each.at for each in measures}
    at = first.at if len(scales) == 1 else "time" if "time" in scales else "rounds"

    def same(name: str) -> bool:
        return all(getattr(each, name) == getattr(first, name) for each in measures)

    return Measure(
        at=at,
        until=first.until if same("at") and same("until") else None,
        last=first.last if same("last") else 1,
        target=first.target if same("target") else None,
        reference=next((each.reference for each in measures if each.reference is not None), None),
        metric=first.metric if same("metric") else None,
        tuning=all(each.tuning for each in measures),
    )


def _of_runs(records: Sequence[RunRecord]) -> _Group:
    datasets: dict[str, list[RunRecord]] = {}
    for record in records:
        datasets.setdefault(_dataset(record), []).append(record)
    listed = [
        each for dataset, some in datasets.items() for each in _listed(some, dataset if len(datasets) > 1 else "")
    ]
    records = [record for some in datasets.values() for record in some]
    methods = {each.variant: _method(record) for each, record in zip(listed, records, strict=True)}
    measure = Measure(
        at=_default_at([record.experiment for record in records]),
        target=_target(records),
        reference=_reference(methods),
    )
    title = listed[0].variant if len(listed) == 1 else f"{len(listed)} runs"
    command = shlex.join(["fedkeel", "report", *(str(record.path) for record in records)])
    if len(listed) == 1:
        command = repetition(records[0].path)
    return _Group("runs", title, listed, measure, command)


def _listed(records: Sequence[RunRecord], scene: str) -> list[Listed]:
    """Runs on the same data set."""
    settings = [dotted(record.experiment, ASIDE) for record in records]
    differ = differing(settings)
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
        listed.append(Listed(record.path.name, scene, variant, seed, record.path, divergence(record.path)))
    return listed


def _reference(methods: Mapping[str, str]) -> str | None:
    """The first variant of FedAvg, else the first; none where there is one variant."""
    if len(methods) < 2:
        return None
    return next((variant for variant, method in methods.items() if method == "fedavg"), next(iter(methods)))


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that two runs have differently; those that only one method has say nothing more."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({flow(each[name]) for each in settings if name in each}) > 1]


_SIMULATED = ("fleet", "faults")
"""Settings that say nothing of a run on real machines."""


def _variant(record: RunRecord, settings: dict[str, Any], differ: Sequence[str], alone: bool) -> str:
    """A run's name, if all runs of that name have the same settings; or its method and the settings that differ."""
    if alone and (name := _name(record)):
        return label(name)
    told = [
        f"{key.removeprefix('algorithm.')}={flow(settings[key])}"
        for key in differ
        if key in settings
        and key != "algorithm.name"
        and not (key in _RULES and settings[key] is None)
        and not (real(record) and key.partition(".")[0] in _SIMULATED)
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


def _dataset(record: RunRecord) -> str:
    found = record.experiment.get("dataset")
    return label(str(found.get("name"))) if isinstance(found, dict) else ""


def _target(records: Sequence[RunRecord]) -> float | None:
    """The runs', where all have the same and mean their first metric."""
    goals = set()
    for record in records:
        with record.told_if_damaged("experiment.yaml"):
            goals.add((record.metrics[0].name, *goal(record.experiment, record.metrics[0].name)))
    first, name, target = goals.pop()
    if goals or name != first:
        return None
    with suppress(InputError):
        records[0].metrics[0].check_target(target)
        return target
    return None


def _default_at(experiments: Sequence[Mapping[str, Any]]) -> At:
    """By the methods of fedkeel among them, because looking at runs imports no code of the user's."""
    found = list[Experiment]()
    for each in experiments:
        part = {name: each[name] for name in ("algorithm", "schedule") if name in each}
        method = part.get("algorithm")
        with suppress(InputError):
            if isinstance(method, dict) and not any(map(is_own, method.values())):
                found.append(Experiment.build(part))
    return default_at(found)
