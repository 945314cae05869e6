"""How well the model serves each client: the distribution of accuracies on clients' own shares of the test set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.errors import InputError, label
from fedkeel.record.schema import CLIENT_METRICS
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number
from fedkeel.report.page.files import Version

BARS = 25
"""From 0 to 1."""
COLUMNS = ("accuracy", "finetuned")


def client_accuracies(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every cell and column a histogram over the clients of all seeds, with the mean and that of the worst tenth."""
    found = []
    for cell in cells:
        files = [told for each in cell.outcomes if (told := _of(each.folder)) is not None]
        for column in COLUMNS:
            values = [np.array(told[column]) for told in files if told.get(column)]
            if values:
                found.append({**cell.key, "column": column, **_distribution(values)})
    return found


def _distribution(runs: Sequence[Any]) -> dict[str, Any]:
    """The worst tenth is that of each run, then averaged: so it is what the summaries say."""
    together = np.concatenate(runs)
    bars, _ = np.histogram(together, BARS, (0.0, 1.0))
    worst = [np.sort(run)[: max(1, len(run) // 10)].mean() for run in runs]
    return {
        "bars": [int(bar) for bar in bars],
        "mean": number(float(np.mean([run.mean() for run in runs]))),
        "worst": number(float(np.mean(worst))),
        "clients": len(together),
        "runs": len(runs),
    }


def _of(folder: Path) -> dict[str, tuple[float, ...]] | None:
    version = Version.of(folder / CLIENT_METRICS)
    return None if version is None else _read(version)


@lru_cache(maxsize=1024)
def _read(version: Version) -> dict[str, tuple[float, ...]]:
    try:
        rows = [json.loads(line) for line in version.path.read_text(encoding="utf-8").splitlines()]
        known = {name: [row.get(name) for row in rows] for name in COLUMNS}
        return {name: tuple(float(value) for value in column if value is not None) for name, column in known.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"run folder {label(str(version.path.parent))}: {CLIENT_METRICS} is damaged ({type(error).__name__}); "
            "run the experiment again"
        ) from None
