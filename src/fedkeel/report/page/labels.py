"""Who holds which labels: dealt out again as the experiment says, from data sets that are on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedkeel.config.experiment import Experiment
from fedkeel.data.datasets import canonical
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.data.sources.layout import find
from fedkeel.data.statistics import mean_wasserstein
from fedkeel.errors import FedkeelError, InputError, words
from fedkeel.report.page.cells import Cell
from fedkeel.report.page.compact import number
from fedkeel.runner.prepare import federate

MOST_CLIENTS, MOST_CLASSES, MOST_MAPS = 100, 100, 12


def labels(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A map for each way in which the runs deal out data; of several seeds, that of the first."""
    ways: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.described is not None:
            ways.setdefault(_way(cell.described), []).append(cell)
    found = []
    for way, same in list(ways.items())[:MOST_MAPS]:
        found.append({"cells": [cell.key for cell in same], **_map(way)})
    return found


def _way(experiment: dict[str, Any]) -> str:
    """All that decides who gets what, and nothing else: a method of the user's own is not looked at."""
    names = ("dataset", "partition", "clients", "seed")
    return json.dumps({name: experiment[name] for name in names if name in experiment}, sort_keys=True, default=str)


@lru_cache(maxsize=64)
def _map(way: str) -> dict[str, Any]:
    try:
        described = json.loads(way)
        _check(described)
        experiment = Experiment.build(described)
        counts = federate(experiment).label_counts()
    except (FedkeelError, OSError, MemoryError, AttributeError, TypeError) as error:
        return {"why_not": words(error) or type(error).__name__}
    clients, classes = counts.shape
    return {
        "dataset": experiment.dataset.name,
        "partition": experiment.partition.kind,
        "seed": experiment.seed,
        "clients": clients,
        "classes": classes,
        "counts": [[int(each) for each in row] for row in counts[:MOST_CLIENTS, :MOST_CLASSES]],
        "least": int(counts.sum(1).min()),
        "median": number(float(np.median(counts.sum(1)))),
        "most": int(counts.sum(1).max()),
        "distance": number(mean_wasserstein(counts)),
    }


def _check(described: dict[str, Any]) -> None:
    """Refuse what would run code that the run folder names, or go to the network."""
    dataset = str((described.get("dataset") or {}).get("name"))
    if ":" in dataset:
        raise InputError("the data comes from the user's own code, which a report does not run")
    if ":" in str((described.get("partition") or {}).get("kind")):
        raise InputError("the partition is the user's own code, which a report does not run")
    entry = ENTRIES[canonical(dataset)]
    if find(entry.root, entry.layouts) is None:
        raise InputError(f"{dataset} is not on this machine; fedkeel data get {dataset} fetches it")
