"""What there is for the rows of an item: runs of `fedkeel reproduce`, a study, or the reason why there is nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verdicts import Verdict, Verdicts, Word

from fedkeel.errors import label
from fedkeel.study.papers.catalogue import Item, Paper
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.plan import CORES
from fedkeel.study.papers.quantities import Name
from fedkeel.study.papers.scales import Scale, scaled
from fedkeel.study.statistics import Interval

SCALES: tuple[Scale, ...] = ("full", "small")
"""That are published, the better one first."""


@dataclass(frozen=True)
class Evidence:
    """Of an item."""

    item: Item
    root: Item
    """The item whose runs it shows: itself, if it has its own."""
    verdict: Verdict
    runs: Mapping[str, Mapping[str, Any]]
    """By row: what is stored at the best scale."""
    by_study: Mapping[str, str]
    """By row: a study that stands for it."""
    reasons: Mapping[str, str]
    """By row, of those with neither; empty where there is none."""

    @property
    def word(self) -> Word:
        """The verdict; where there is nothing, it is not that of the item whose runs are shown."""
        return self.verdict.verdict if self.found else "not run"

    @property
    def found(self) -> list[str]:
        """The rows that there is something for, in order."""
        return [row for row in self.item.rows if row in self.runs or row in self.by_study]

    def line(self, row: str, column: str, quantity: Name) -> Line | None:
        """A figure of the paper beside ours, if there is one."""
        kept = self.runs[row]["methods"].get(column, {}).get(quantity)
        if kept is None:
            return None
        cell = next(each for each in self.item.cells if (each.row, each.column) == (row, column))
        place = self.item.shows.index(quantity)
        interval = (kept["ours"], kept["low"], kept["high"], kept["measured"])
        ours = None if kept["ours"] is None else Interval(*interval)
        return Line(row, column, self.item.shows[place], cell.printed[place], ours, kept["seeds"], kept["state"])


def of_paper(paper: Paper, stored: Mapping[str, Any], said: Verdicts) -> dict[str, Evidence]:
    """Of all results of a paper, by item."""
    items = {item.name: item for item in paper.items if item.cells}
    return {item.path: _of_item(item, items[item.entry.like or item.name], stored, said) for item in items.values()}


def _of_item(item: Item, root: Item, stored: Mapping[str, Any], said: Verdicts) -> Evidence:
    kept = {row: stored.get(root.path, {}).get(row, {}) for row in item.rows}
    best = {row: [by[scale] for scale in SCALES if "methods" in by.get(scale, {})] for row, by in kept.items()}
    runs = {row: found[0] for row, found in best.items() if found}
    slow = {row for row, by in kept.items() if by and row not in runs}
    of_root = said.of(root)
    verdict = said.items.get(item.path) or of_root.model_copy(update={"text": ""})
    covering = (*of_root.studies, *(verdict.studies if item is not root else ()))
    by_study = {row: study.name for study in covering for row in study.scenes.values() if row in item.rows}
    why = verdict.why or of_root.why
    reasons = {
        row: _reason(root, row, row in slow, why, said.absent) for row in item.rows if row not in {**runs, **by_study}
    }
    return Evidence(item, root, verdict, runs, by_study, reasons)


def _reason(root: Item, row: str, slow: bool, why: str, absent: Collection[str]) -> str:
    dataset = next(cell.settings["dataset.name"] for cell in root.cells if cell.row == row)
    if dataset in absent:
        return f"we did not have the data set {dataset}; see [data.md](data.md)"
    return "too slow for the scale `small`, which allows two hours per item" if slow else why


def problems(made: Evidence, said: Verdicts) -> Iterator[str]:
    """What does not fit: rows with neither a result nor a reason, and words that are not about what there is."""
    path, word, own = made.item.path, made.verdict.verdict, made.item.path in said.items
    for row, reason in made.reasons.items():
        if not reason:
            yield f"{path}: {label(row)} has neither a result nor a reason; add a why, or a study that covers it"
    if made.found and word == "not run":
        yield f"{path}: there are results, but its verdict is not run; choose holds, in part or does not hold"
    if own and not made.found and word != "not run":
        yield f"{path}: there is no result, but its verdict is {word}; set it to not run"
    if own and made.verdict.why and made.verdict.why not in made.reasons.values():
        yield f"{path}: no row needs its why; remove it"


def hours(item: Item, row: str, scale: Scale) -> float:
    """Of a row's runs on two cores, about; none where nothing is trained."""
    if item.of_data:
        return 0.0
    each = (scaled(cell.settings, scale) for cell in item.cells if cell.row == row and cell.exists)
    return sum((made.seconds or 0.0) * made.seeds for made in each) / 3600 / CORES
