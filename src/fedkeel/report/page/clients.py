"""How well the model serves each client: on its own test rows, or as estimated from a common test set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import InputError, label
from fedkeel.record.measured import Measured
from fedkeel.record.schema import CLIENT_METRICS
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number
from fedkeel.report.page.files import Version

BARS = 25
OLD = "client_accuracy.jsonl"
"""As earlier versions called the file; all of it was estimated."""
FINETUNED = "finetuned"
MOST_NAMED = 60
"""Clients with names that a table lists."""


@dataclass(frozen=True)
class _File:
    """What a run says of its clients."""

    rows: tuple[dict[str, Any], ...]
    estimated: bool

    def column(self, name: str) -> NDArray[np.float64]:
        """Of the clients that could be tested."""
        return np.array([float(row[name]) for row in self.rows if row.get(name) is not None])


def client_values(cells: Sequence[Cell], metric: Measured) -> list[dict[str, Any]]:
    """Of every cell and column a histogram over the clients of all seeds, with the mean and that of the worst tenth."""
    found = []
    for cell in cells:
        files = _files(cell)
        for column, name in (("value", metric.name), (FINETUNED, FINETUNED)):
            values = [told for each in files if len(told := each.column(name))]
            if values:
                estimated = any(each.estimated for each in files)
                found.append(({**cell.key, "column": column, "estimated": estimated}, values))
    least, most = _range([each for _, values in found for each in values], metric)
    return [{**told, **_distribution(values, metric, least, most)} for told, values in found]


def _range(columns: Sequence[NDArray[np.float64]], metric: Measured) -> tuple[float, float]:
    """Of the bars: shares lie between 0 and 1, other metrics between the least and the most that occur."""
    if metric.share or not columns:
        return 0.0, 1.0
    together = np.concatenate(columns)
    least, most = float(together.min()), float(together.max())
    return (least, most) if most > least else (least - 0.5, most + 0.5)


def _distribution(runs: Sequence[NDArray[np.float64]], metric: Measured, least: float, most: float) -> dict[str, Any]:
    """The worst tenth is that of each run, then averaged: so it is what the summaries say."""
    together = np.concatenate(runs)
    bars, _ = np.histogram(together, BARS, (least, most))
    worst = [np.sort(metric.sign * run)[: max(1, len(run) // 10)].mean() * metric.sign for run in runs]
    return {
        "bars": [int(bar) for bar in bars],
        "least": number(least),
        "most": number(most),
        "mean": number(float(np.mean([run.mean() for run in runs]))),
        "worst": number(float(np.mean(worst))),
        "clients": len(together),
        "runs": len(runs),
    }


def named_clients(cells: Sequence[Cell], metric: Measured) -> list[dict[str, Any]]:
    """Of every cell the clients that have names, each with its test rows and the mean of its values over seeds."""
    found = []
    for cell in cells:
        clients: dict[str, list[dict[str, Any]]] = {}
        for each in _files(cell):
            for row in each.rows:
                if isinstance(row.get("name"), str):
                    clients.setdefault(row["name"], []).append(row)
        if clients:
            told = [_named(name, rows, metric) for name, rows in list(clients.items())[:MOST_NAMED]]
            found.append({**cell.key, "clients": told, "all": len(clients)})
    return found


def _named(name: str, rows: Sequence[dict[str, Any]], metric: Measured) -> dict[str, Any]:
    values = [float(row[metric.name]) for row in rows if row.get(metric.name) is not None]
    mean = number(float(np.mean(values))) if values else None
    return {"name": label(name), "rows": rows[0].get("rows"), "value": mean}


def _files(cell: Cell) -> list[_File]:
    return [told for each in cell.outcomes if (told := _of(each.folder)) is not None]


def _of(folder: Path) -> _File | None:
    version = Version.of(folder / CLIENT_METRICS) or Version.of(folder / OLD)
    return None if version is None else _read(version)


@lru_cache(maxsize=1024)
def _read(version: Version) -> _File:
    try:
        rows = tuple(json.loads(line) for line in version.path.read_text(encoding="utf-8").splitlines())
        for row in rows:
            for name, value in row.items():
                if name != "name" and value is not None:
                    float(value)
        estimated = version.path.name == OLD or any(row.get("estimated") for row in rows)
        return _File(rows, estimated)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"run folder {label(str(version.path.parent))}: {version.path.name} is damaged ({type(error).__name__}); "
            "run the experiment again"
        ) from None
