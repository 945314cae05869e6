"""How well the model does on each class or label alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkeel.record.measured import Measured, known
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number
from fedkeel.report.page.labels import class_names

MOST = 60
"""Classes that a table lists."""


def classes(cells: Sequence[Cell], metric: Measured) -> list[dict[str, Any]]:
    """Of every cell with a finished run, the metric of each class at the end, the mean over seeds.

    It is another metric where the one that runs are compared by is not defined for a class.
    """
    found = []
    for cell in cells:
        columns = [told for each in cell.outcomes if isinstance(told := each.summary.get("by_class"), dict) and told]
        if not columns or cell.begun is None:
            continue
        name = metric.name if metric.name in columns[0] else next(iter(columns[0]))
        runs = [column[name] for column in columns if isinstance(column.get(name), list)]
        count = min(map(len, runs))
        if 1 < count <= MOST:
            judge = known(name)
            values = [_mean([run[place] for run in runs]) for place in range(count)]
            names = class_names(cell.begun.path, count)
            told = {"words": judge.words, "share": judge.share, "names": names, "values": values}
            found.append({**cell.key, **told})
    return found


def _mean(values: Sequence[Any]) -> float | int | None:
    """Over the runs in which it is defined."""
    defined = [float(value) for value in values if isinstance(value, int | float)]
    return number(sum(defined) / len(defined)) if defined else None
