"""The section about runs that were simulated to predict another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedkeel.errors import label
from fedkeel.record.runs import RunRecord
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import EXACT, number, thinned
from fedkeel.report.page.files import Version
from fedkeel.report.page.sites import names
from fedkeel.report.page.tables import judged
from fedkeel.study.prediction import FILE, Prediction

MOST_POINTS = 500
"""Clients whose jobs are drawn."""


def predictions(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every run that predicts another one, what both came to and how long their clients' jobs took."""
    found = []
    for cell in cells:
        for outcome in cell.outcomes:
            version = Version.of(outcome.folder / FILE)
            if version is not None:
                found.append({**cell.key, "seed": outcome.seed, **_told(_read(version))})
    return found


@lru_cache(maxsize=256)
def _read(version: Version) -> Prediction:
    return Prediction.read(version.path)


def _told(found: Prediction) -> dict[str, Any]:
    shown = thinned(found.clients, MOST_POINTS)
    called = names(RunRecord(Path(found.measured), {}, []), [each.client for each in shown])
    return {
        "measured": label(found.measured),
        "metric": judged(found.metric),
        "quantities": [
            [label(each.words), each.unit, number(each.measured, EXACT), number(each.predicted, EXACT)]
            for each in found.quantities
        ],
        "jobs": [
            [name, number(each.measured), number(each.predicted)] for name, each in zip(called, shown, strict=True)
        ],
        "of": len(found.clients),
        "notes": list(found.notes),
    }
