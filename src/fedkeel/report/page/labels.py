"""Who holds which labels, as the runs wrote it down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.config.usercode import GIVEN, is_own, short
from fedkeel.data.files import kinds
from fedkeel.errors import InputError, label
from fedkeel.record.schema import LABELS
from fedkeel.record.sites import real, sites
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number
from fedkeel.report.page.files import Version
from fedkeel.report.page.sites import names

MOST_MAPS = 12
SIZES = ("clients", "least", "median", "most")
"""All that there is of data without class labels."""
NUMBERS = (*SIZES, "classes", "distance")


def labels(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A map for each way in which clients hold labels; of several seeds, that of the first."""
    maps: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell.begun is not None:
            told = _map(cell)
            maps.setdefault(json.dumps(told), {"cells": [], **told})["cells"].append(cell.key)
    return list(maps.values())[:MOST_MAPS]


def _map(cell: Cell) -> dict[str, Any]:
    record = cell.begun
    assert record is not None
    version = Version.of(record.path / LABELS)
    if version is None:
        return {"why_not": "the run did not record them"}
    with record.told_if_damaged("experiment.yaml"):
        name, kind = (str(record.experiment[part][key]) for part, key in (("dataset", "name"), ("partition", "kind")))
        dealt = [] if is_own(name) else [short(kind)]  # the user's own data may have been dealt out before
        dealt += [f"seed {int(record.experiment['seed'])}"]
        title = ", ".join([kinds.short(name.removeprefix(GIVEN)), *([] if real(record) else dealt)])
    found = _read(version)
    here = real(record) and "counts" not in found
    untold = here and record.experiment.get("task", "classification") == "classification"
    if here:  # the file is of the beginning, and sites may have come later
        found = found | _sizes([site.samples for site in sites(record) if site.samples])
    shown = names(record, range(len(found.get("counts", ()))))
    return {"title": title, "untold": untold, "names": shown, **found}


def _sizes(samples: Sequence[int]) -> dict[str, Any]:
    """Of the sites that have been there."""
    if not samples:
        return {}
    told = (len(samples), min(samples), float(np.median(samples)), max(samples))
    return {name: number(float(value)) for name, value in zip(SIZES, told, strict=True)}


def class_names(folder: Path, count: int) -> list[str]:
    """What the classes of a run's data are called, or their numbers."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        names = json.loads((folder / LABELS).read_text(encoding="utf-8"))["class_names"]
        if len(names) == count:
            return [label(str(name)) for name in names]
    return [str(place) for place in range(count)]


@lru_cache(maxsize=1024)
def _read(version: Version) -> dict[str, Any]:
    try:
        told = json.loads(version.path.read_text(encoding="utf-8"))
        if "counts" not in told and "classes" not in told:
            return {name: number(float(told[name])) for name in SIZES}
        counts = np.array(told["counts"], dtype=np.int64)
        if counts.ndim != 2 or not counts.size:
            raise ValueError
        return {**{name: number(float(told[name])) for name in NUMBERS}, "counts": counts.tolist()}
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise InputError(
            f"run folder {label(str(version.path.parent))}: {LABELS} is damaged ({type(error).__name__}); "
            "run the experiment again"
        ) from None
