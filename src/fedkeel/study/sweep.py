"""Settings to try: a grid of them as a plan of runs, and their ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from fedkeel.errors import InputError, label
from fedkeel.study.files import StudyFile, comparison, values
from fedkeel.study.plan import At, Comparison
from fedkeel.study.results import Results
from fedkeel.study.table import Line, lines


def tried(grid: Sequence[str]) -> dict[str, list[str]]:
    """Every combination of the values of a grid, by the name of its variant."""
    if not grid:
        raise InputError("grid: there is nothing to try; give --grid KEY=VALUE,VALUE, such as local.lr=0.01,0.1")
    lists = [values(word) for word in grid]
    keys = [key for key, _ in lists]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise InputError(f"grid: {label(twice)} is given twice; give all its values at once")
    combinations = product(*([f"{key}={value}" for value in each] for key, each in lists))
    return {", ".join(settings): [*settings] for settings in combinations}


def sweep_plan(
    given: StudyFile,
    overrides: Sequence[str],
    grid: Sequence[str],
    seeds: Sequence[int],
    at: At | None,
    command: str,
    metric: str | None = None,
) -> Comparison:
    """Every combination of the values of a grid is a variant."""
    if given.variants:
        raise InputError("sweep: the file has variants of its own; give an experiment, or use fedkeel compare")
    variants = tried(grid)
    about = given.about or f"Sweep over {' and '.join(word.partition('=')[0] for word in grid)}"
    wide = given.model_copy(update={"variants": variants, "about": about, "reference": None})
    plan = comparison(wide, overrides, seeds=seeds, at=at, command=command, metric=metric)
    return replace(plan, measure=replace(plan.measure, reference=None, tuning=True))


def ranking(results: Results) -> list[Line]:
    """The settings whose runs ended with all seeds, the best mean first, on the validation set where there is one."""
    deciding = {line: line.validation if results.on_validation else line.value for line in lines(results)}
    found = {line: each.mean for line, each in deciding.items() if each is not None and not line.failed}
    return sorted(found, key=lambda line: -results.metric.sign * found[line])
