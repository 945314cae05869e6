"""The table of a comparison: one line per scene and variant, with intervals, differences and a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import counted, one_of
from fedkeel.record.measured import Measured
from fedkeel.study import statistics
from fedkeel.study.aggregates import bootstrap, performance_profile, probability_of_improvement
from fedkeel.study.results import LEFT, Outcome, Results
from fedkeel.study.statistics import Difference, Interval, Leaders

Standing = Literal["best", "level", ""]
THRESHOLDS = 41
"""The number of values in a performance profile."""
SETTING = re.compile(r"[a-z_.]+=")
"""How a variant's name begins that says which setting it has, as in a sweep."""
MOST_NAMES = 4
"""The most variants that a sentence names."""
FEWEST = 3
"""The fewest runs in a scene for which a bootstrap makes intervals; with two, they would be far too narrow."""


@dataclass(frozen=True)
class Line:
    """The results of a variant in a scene, over its finished runs."""

    scene: str
    variant: str
    finished: int
    failed: int
    pruned: int
    """Runs that a search stopped early."""
    pending: int
    """Runs that have not ended yet."""
    value: Interval | None
    """The metric on the test set."""
    validation: Interval | None
    """The same on the validation set, where settings are chosen by that."""
    best: Interval | None
    """The best value on the test set in the course of a run."""
    loss: Interval | None
    difference: Difference | None
    """The difference to the reference, seed by seed."""
    standing: Standing
    """In its scene: `best` if it is clearly better than all others, `level` if it cannot be told from the best mean.

    It is neither if a run failed or was stopped early, or if it is clearly worse than the reference."""
    reached: int
    """Runs that reached the target."""
    rounds_to_target: Interval | None
    """The mean over those runs, as for the following."""
    seconds_to_target: Interval | None
    uploads_to_target: Interval | None
    bytes_to_target: Interval | None
    clients: Interval | None
    """Mean of the metric over clients."""
    worst_decile: Interval | None
    """Mean over the worst tenth of the clients."""
    sentence: str


@dataclass(frozen=True)
class TaskLine:
    """The results of a variant over all scenes."""

    variant: str
    middle: Interval
    """The interquartile mean of the metric."""
    improvement: Interval | None
    """How probable it is that a run beats one of the reference in the same scene."""
    profile: Sequence[tuple[float, Interval]]
    """(Value, share of runs that are better)."""


def lines(results: Results) -> list[Line]:
    """One for each scene and variant, in the order of the plan."""
    found = []
    for scene in results.scenes:
        cells = [(variant, results.of(scene, variant)) for variant in results.variants]
        leaders, _ = judged(results, scene)
        found += [_line(results, scene, variant, runs, leaders) for variant, runs in cells if runs]
    return found


def judged(results: Results, scene: str) -> tuple[Leaders, str]:
    """(Which variants lead in a scene, why none is best); the reason is empty if one is, or if nothing is compared."""
    nobody, values = Leaders(None, ()), _values(results, scene)
    if sum(map(bool, values.values())) < 2:
        return nobody, ""
    if scene in results.stopped:
        return nobody, "runs stopped at their target, so their results are not compared"
    if any(run.state in LEFT for variant in values for run in results.of(scene, variant)):
        return nobody, "some runs have not ended yet"
    if sum(len(seeds) > 1 for seeds in values.values()) < 2:
        return nobody, "it takes several seeds to tell a difference from noise"
    early = next((run for variant in values for run in results.of(scene, variant) if run.early), None)
    if early is not None and results.limits[scene] < (results.measure.until or inf):
        count = counted(early.kept, "evaluation")
        return nobody, f"{early.variant} is judged by its first {count}; another run ended too soon after that"
    leaders = statistics.best(values, results.metric.better)
    if leaders.best is None:
        level = tuple(variant for variant in leaders.level if _may_be_best(results, scene, variant))
        whose = f" between {_some(level)}" if len(level) > 1 else ""
        at_once = "" if whose else " when all are compared at once (Holm's correction)"
        return Leaders(None, level), f"the differences{whose} may be noise{at_once}; more seeds would tell more"
    if any(run.broken for run in results.of(scene, leaders.best)):
        return nobody, f"not all runs of {leaders.best}, which has the best mean, ended well"
    return leaders, ""


def verdict(results: Results, scene: str) -> str:
    """A sentence on why no variant is best in a scene; empty if one is, or if nothing is compared."""
    _, why = judged(results, scene)
    what = "setting" if all(SETTING.match(variant) for variant in results.variants) else "method"
    return f"No {what} is clearly best: {why}." if why else ""


def _some(names: Sequence[str]) -> str:
    """`a and b`, or of many the first ones."""
    more = len(names) - MOST_NAMES
    return one_of([*names[:MOST_NAMES], f"{more} more"] if more > 1 else names, "and")


def _may_be_best(results: Results, scene: str, variant: str) -> bool:
    """Whether it has no run that failed and is not clearly worse than the reference."""
    difference = _difference(results, scene, variant)
    worse = difference is not None and difference.clear and difference.gain < 0
    return not worse and not any(run.broken for run in results.of(scene, variant))


def _difference(results: Results, scene: str, variant: str) -> Difference | None:
    """Against the reference, seed by seed."""
    reference = results.measure.reference
    if reference is None or reference == variant or scene in results.stopped:
        return None
    ours, theirs = (results.scores(scene, each) for each in (variant, reference))
    return statistics.paired(ours, theirs, results.metric.better)


def _values(results: Results, scene: str) -> dict[str, dict[int, float]]:
    return {variant: results.scores(scene, variant) for variant in results.variants}


def by_scene(results: Results) -> dict[str, list[Line]]:
    """The lines of each scene."""
    found: dict[str, list[Line]] = {scene: [] for scene in results.scenes}
    for line in lines(results):
        found[line.scene].append(line)
    return found


def _line(results: Results, scene: str, variant: str, runs: Sequence[Outcome], leaders: Leaders) -> Line:
    done = [run for run in runs if run.state == "finished"]
    reference, difference = results.measure.reference, _difference(results, scene, variant)
    broken = [run for run in runs if run.broken]
    pruned = sum(run.state == "pruned" for run in runs)
    standing: Standing = "best" if variant == leaders.best else "level" if variant in leaders.level else ""
    return Line(
        scene=scene,
        variant=variant,
        finished=len(done),
        failed=len(broken) - pruned,
        pruned=pruned,
        pending=len(runs) - len(done) - len(broken),
        value=_over(done, lambda run: run.value),
        validation=_over(done, lambda run: run.validation) if results.on_validation else None,
        best=_over(done, lambda run: run.best),
        loss=_over(done, lambda run: run.loss),
        difference=difference,
        standing=standing,
        reached=sum(run.rounds_to_target is not None for run in done),
        rounds_to_target=_over(done, lambda run: run.rounds_to_target),
        seconds_to_target=_over(done, lambda run: run.seconds_to_target),
        uploads_to_target=_over(done, lambda run: run.uploads_to_target),
        bytes_to_target=_over(done, lambda run: run.bytes_to_target),
        clients=_over(done, lambda run: _of_clients(run, "mean")),
        worst_decile=_over(done, lambda run: _of_clients(run, "worst_decile")),
        sentence=_sentence(variant, reference, difference, standing, runs, results.metric),
    )


def _of_clients(run: Outcome, what: str) -> float | None:
    spread = run.of_clients
    return None if spread is None else spread.get(what)


def _over(runs: Sequence[Outcome], value: Callable[[Outcome], float | None]) -> Interval | None:
    known = [found for run in runs if (found := value(run)) is not None]
    return statistics.interval(known) if known else None


def _sentence(
    variant: str,
    reference: str | None,
    difference: Difference | None,
    standing: Standing,
    runs: Sequence[Outcome],
    metric: Measured,
) -> str:
    """What can be said about a variant, in one sentence."""
    broken = [run for run in runs if run.broken]
    pending = sum(run.state in LEFT for run in runs)
    parts = []
    if standing == "best":
        parts.append("best here")
    if difference is not None and reference is not None:
        told = statistics.sentence("", reference, difference, metric.unit, metric.scale, fine=not metric.share)
        where = f"over the {difference.count} seeds of {len(runs)} that both finished: " if broken else ""
        parts.append(where + told)
    elif reference == variant and len(runs) > len(broken):
        parts.append("the reference")
    if broken:
        what = "stopped early" if broken[0].state == "pruned" else "failed"
        parts.append(f"{len(broken)} of {counted(len(runs), 'run')} {what}: {broken[0].failure}")
    if pending:
        parts.append(f"{pending} of {counted(len(runs), 'run')} to come")
    return "; ".join(parts)


def many_tasks(results: Results) -> list[TaskLine]:
    """Lines over all scenes, for variants with a finished run in each and no broken one; empty for a single scene."""
    scenes, reference = results.scenes, results.measure.reference
    if len(scenes) < 2 or results.stopped:
        return []
    scores: dict[str, list[list[float]]] = {}
    for variant in results.variants:
        tasks = [list(results.scores(scene, variant).values()) for scene in scenes]
        broken = any(run.broken for scene in scenes for run in results.of(scene, variant))
        if all(tasks) and not broken:
            scores[variant] = tasks
    if not scores:
        return []
    thresholds = _thresholds([x for tasks in scores.values() for task in tasks for x in task], results.metric)
    few = any(len(task) < FEWEST for tasks in scores.values() for task in tasks)

    def told(found: Interval) -> Interval:
        return Interval(found.mean, None, None, found.count) if few else found

    found = []
    for variant, tasks in scores.items():
        theirs = scores.get(reference or "") if variant != reference else None
        upward = [[results.metric.sign * score for score in task] for task in tasks]
        improvement = None
        if theirs is not None:
            others = [[results.metric.sign * score for score in task] for task in theirs]
            improvement = told(probability_of_improvement(upward, others))
        profile = [told(each) for each in performance_profile(upward, results.metric.sign * thresholds, resamples=500)]
        above = list(zip(thresholds.tolist(), profile, strict=True))
        found.append(TaskLine(variant, told(bootstrap(tasks)), improvement, above))
    return found


def _thresholds(scores: Sequence[float], metric: Measured) -> NDArray[np.float64]:
    """From where all runs are better to where none is, in rising order."""
    least, most = min(scores), max(scores)
    beyond = 0.01 if metric.share else 0.01 * (most - least or abs(most) or 1.0)
    if metric.better == "lower":
        return np.linspace(least, most + beyond, THRESHOLDS)
    return np.linspace(least - beyond, most, THRESHOLDS)


def columns(results: Results) -> list[dict[str, Any]]:
    """The lines as plain values under the names used in files, without real times."""
    measure, name = results.measure, results.metric.name
    of_clients = f"client_{name}{'_estimated' if any(run.estimated for run in results.outcomes) else ''}"
    told = []
    for line in lines(results):
        gap = line.difference
        told.append(
            {
                "scene": line.scene,
                "variant": line.variant,
                "compared_at": measure.at,
                "compared_where": _finite(results.limits.get(line.scene)),
                "finished": line.finished,
                "failed": line.failed,
                "pruned": line.pruned,
                "pending": line.pending,
                "better": results.metric.better,
                **_bounds(name, line.value),
                **(_bounds(f"validation_{name}", line.validation) if results.on_validation else {}),
                f"best_{name}": _mean(line.best),
                "loss": _mean(line.loss),
                "judged_by": results.judged_by,
                "standing": line.standing,
                "reference": measure.reference,
                "difference": gap and gap.mean,
                "difference_low": gap and gap.low,
                "difference_high": gap and gap.high,
                "better_in": gap and gap.wins,
                "compared_in": gap and gap.count,
                f"target_{name}": measure.target,
                "reached": line.reached if measure.target is not None else None,
                "rounds_to_target": _mean(line.rounds_to_target),
                "virtual_seconds_to_target": _mean(line.seconds_to_target),
                "uploads_to_target": _mean(line.uploads_to_target),
                "bytes_to_target": _mean(line.bytes_to_target),
                of_clients: _mean(line.clients),
                "client_worst_decile": _mean(line.worst_decile),
            }
        )
    return told


def _finite(limit: float | None) -> float | None:
    """None where all runs stopped at their target, so that each counts at its own end."""
    return None if limit is None or isinf(limit) else limit


def _mean(found: Interval | None) -> float | None:
    return None if found is None else found.mean


def _bounds(name: str, found: Interval | None) -> dict[str, float | None]:
    values = (None, None, None) if found is None else (found.mean, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def run_columns(results: Results) -> list[dict[str, Any]]:
    """The same for every run."""
    return [
        {
            "run": run.name,
            "scene": run.scene,
            "variant": run.variant,
            "seed": run.seed,
            "state": run.state,
            run.metric.name: run.value,
            f"{run.metric.name}_at_its_end": run.last,
            **({f"validation_{run.metric.name}": run.validation} if results.on_validation else {}),
            f"best_{run.metric.name}": run.best,
            "loss": run.loss,
            **{name: run.position.get(name) for name in ("round", "virtual_seconds", "updates")},
            **{name: run.position.get(name) for name in ("bytes_up", "bytes_down")},
            "rounds_to_target": run.rounds_to_target,
            "virtual_seconds_to_target": run.seconds_to_target,
            "uploads_to_target": run.uploads_to_target,
            "bytes_to_target": run.bytes_to_target,
        }
        for run in results.outcomes
    ]


def evaluations(results: Results) -> list[dict[str, Any]]:
    """Every evaluation of every run, in long form."""
    return [
        {"run": run.name, "scene": run.scene, "variant": run.variant, "seed": run.seed, **_flat(row)}
        for run in results.outcomes
        for row in run.history
    ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """By the names of keys joined by an underscore; lists, as of classes, by the places in them."""
    found = {}
    for name, value in row.items():
        inside = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else None
        if inside is None:
            found[name] = value
        else:
            found |= {f"{name}_{key}": each for key, each in _flat({str(k): v for k, v in inside.items()}).items()}
    return found
