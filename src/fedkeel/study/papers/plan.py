"""From tables and figures to runs: which ones, how small, on which data. Items share equal runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.config.spelling import put
from fedkeel.data import datasets
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.data.sources.layout import find
from fedkeel.errors import InputError, label
from fedkeel.study.papers import few, standin
from fedkeel.study.papers.catalogue import Cell, Item, Settings, matching
from fedkeel.study.papers.scales import Scale, Scaled, scaled, scales
from fedkeel.study.plan import Case
from fedkeel.study.settle import key

CORES = 2
"""The number of cores by which the hours of a small item are counted."""
_DIGEST = 10


@dataclass(frozen=True)
class Planned:
    """A cell of an item, and its runs: one for each seed, and none where the row is left out."""

    cell: Cell
    cases: tuple[Case, ...]
    smaller: tuple[str, ...]
    """What was scaled down, in words."""
    stand_in: str = ""
    """What replaces the data set, if something does."""
    seconds: float | None = None
    """Estimated seconds of all its runs on one core."""
    left_out: str = ""
    """Why it is not run, if that is so."""

    @property
    def dataset(self) -> str:
        """The paper's data set."""
        return str(self.cell.settings["dataset.name"])


@dataclass(frozen=True)
class ItemPlan:
    """An item, and what is run for it."""

    item: Item
    scale: Scale
    cells: tuple[Planned, ...]

    @property
    def of_data(self) -> bool:
        """Whether it is about data alone, so that nothing is trained."""
        return self.item.of_data

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of all its runs on one core, if that can be said."""
        each = [cell.seconds for cell in self.cells if not cell.left_out]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if known and len(known) == len(each) else None


def plan(
    items: Sequence[Item], scale: Scale, rows: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> list[ItemPlan]:
    """What is run for the items; with words in `rows`, only the rows that have all of them, however long they take.

    Items that are not results, or that cannot be reproduced, have no plan.
    """
    results = [item for item in items if item.cells]
    chosen = {item.path: matching(item.rows, rows) for item in results}
    if results and not any(chosen.values()):
        known = dict.fromkeys(row for item in results for row in item.rows)
        raise InputError(
            f"--rows: no row has {' and '.join(map(label, rows))}; choose words of these rows: {'; '.join(known)}"
        )
    plans = []
    for item in results:
        cells = [cell for cell in item.cells if cell.row in chosen[item.path]]
        if cells:
            made = ItemPlan(item, scale, tuple(_planned(cell, item, scale, seeds) for cell in cells))
            plans.append(made if rows or scale != "small" else _within_hours(made))
    return plans


def cases(plans: Iterable[ItemPlan]) -> tuple[Case, ...]:
    """The runs of all plans that are trained; each once."""
    found = {
        case.name: case
        for made in plans
        if not made.of_data
        for cell in made.cells
        if not cell.left_out
        for case in cell.cases
    }
    return tuple(found.values())


def fetched(plans: Sequence[ItemPlan]) -> list[ItemPlan]:
    """Fetch missing data sets; rows whose data cannot be fetched are left out, and say why.

    It is an error if no row is left.
    """
    names = {c.dataset for made in plans for c in made.cells if not (c.left_out or c.stand_in) and c.cases}
    refused = {name: reason for name in sorted(names) if (reason := _refusal(name))}
    if refused and refused.keys() == names:
        raise InputError("; ".join(refused.values()))
    return [
        replace(made, cells=tuple(_without(cell, _lacking(cell, refused)) for cell in made.cells)) for made in plans
    ]


def is_cached(name: str) -> bool:
    """Whether a data set is on this machine."""
    entry = ENTRIES[name]
    return find(entry.root, entry.layouts) is not None


def _refusal(name: str) -> str | None:
    try:
        datasets.get(name)
    except InputError as error:
        return str(error)
    return None


def _lacking(cell: Planned, refused: Mapping[str, str]) -> str:
    return "" if cell.stand_in else refused.get(cell.dataset, "")


def _without(cell: Planned, why: str) -> Planned:
    return replace(cell, left_out=why) if why and not cell.left_out else cell


def _planned(cell: Cell, item: Item, scale: Scale, seeds: Sequence[int] | None) -> Planned:
    if not cell.exists:
        return Planned(cell, (), (), left_out="the paper has no such run")
    smaller = scaled(cell.settings, scale, item.entry.keep)
    dataset = cell.settings["dataset.name"]
    settings, absent = smaller.settings, False
    if scale == "tiny":
        absent = not is_cached(dataset)
        scaling = settings.get("dataset.normalise", "standard")  # these functions return data that is ready
        source = standin.function(dataset, scaling) if absent else few.function(dataset, scaling)
        settings = {**settings, "dataset.name": source, "dataset.normalise": "standard"}
    runs = tuple(_case(cell, settings, seed) for seed in seeds or range(smaller.seeds))
    told = standin.about(dataset) if absent else ""
    return Planned(cell, runs, _marks(smaller, absent), told, _times(smaller.seconds, len(runs)))


def _marks(smaller: Scaled, absent: bool) -> tuple[str, ...]:
    """What was scaled down; where data is missing, without how much of it is used."""
    return tuple(mark for mark in smaller.smaller if not (absent and "samples" in mark))


def _times(seconds: float | None, count: int) -> float | None:
    return None if seconds is None else seconds * count


def _case(cell: Cell, settings: Settings, seed: int) -> Case:
    values: dict[str, Any] = {}
    for name in sorted(settings, key=lambda name: name.count(".")):
        put(values, name.split("."), settings[name])
    experiment = Experiment.build({**values, "seed": seed})
    words = [cell.settings["dataset.name"], experiment.model.name, experiment.partition.kind, experiment.algorithm.name]
    return Case(f"{'-'.join(words)}-{key(experiment)[:_DIGEST]}-seed{seed}", cell.row, cell.column, seed, experiment)


def _within_hours(made: ItemPlan) -> ItemPlan:
    """The quickest rows that fit into the hours of a small item, at least one; the others are left out."""
    budget = scales().small.hours * 3600 * CORES
    each: dict[str, float] = {}
    for cell in made.cells:
        each[cell.cell.row] = each.get(cell.cell.row, 0.0) + (cell.seconds or 0.0)
    left_out, used = {}, 0.0
    for place, (row, seconds) in enumerate(sorted(each.items(), key=lambda pair: pair[1])):
        used += seconds
        if place and used > budget:
            left_out[row] = (
                f"left out: it takes about {seconds / 3600 / CORES:.2g} hours; --rows with its words runs it"
            )
    return replace(made, cells=tuple(_without(cell, left_out.get(cell.cell.row, "")) for cell in made.cells))
