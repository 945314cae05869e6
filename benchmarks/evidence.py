"""What there is for the rows of an item: runs of `fedkeel reproduce`, a study, or the reason why there is nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verdicts import Verdict, Verdicts, Word

from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.errors import InputError, label
from fedkeel.study.papers.catalogue import Item, Paper
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.plan import CORES
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
    """By row, of those with neither."""

    @property
    def word(self) -> Word:
        """The verdict; where there is nothing, it is not that of the item whose runs are shown."""
        return self.verdict.verdict if self.found else "not run"

    @property
    def found(self) -> list[str]:
        """The rows that there is something for, in order."""
        return [row for row in self.item.rows if row in self.runs or row in self.by_study]

    def line(self, row: str, column: str, quantity: str) -> Line | None:
        """A figure of the paper beside ours, if there is one."""
        kept = self.runs[row]["methods"].get(column, {}).get(quantity)
        if kept is None:
            return None
        cell = next(each for each in self.item.cells if (each.row, each.column) == (row, column))
        place = self.item.shows.index(quantity)  # type: ignore[arg-type]
        interval = (kept["ours"], kept["low"], kept["high"], kept["measured"])
        ours = None if kept["ours"] is None else Interval(*interval)
        return Line(row, column, self.item.shows[place], cell.printed[place], ours, kept["seeds"], kept["state"])


def of_paper(paper: Paper, stored: Mapping[str, Any], said: Verdicts) -> dict[str, Evidence]:
    """Of all results of a paper, by item; an item with neither a result nor a reason is refused."""
    items = {item.name: item for item in paper.items if item.cells}
    found = {}
    for item in items.values():
        root = items[item.entry.like or item.name]
        family = [root, *(each for each in items.values() if each.entry.like == root.name)]
        found[item.path] = _of_item(item, root, family, stored, said)
    return found


def _of_item(item: Item, root: Item, family: list[Item], stored: Mapping[str, Any], said: Verdicts) -> Evidence:
    runs: dict[str, Mapping[str, Any]] = {}
    slow = set()
    for row in item.rows:
        for member in (item, *family):
            kept = stored.get(member.path, {}).get(row, {})
            best = next((kept[scale] for scale in SCALES if "methods" in kept.get(scale, {})), None)
            if best is not None:
                runs.setdefault(row, best)
            elif kept:
                slow.add(row)
    of_root = said.of(root)
    verdict = said.items.get(item.path) or of_root.model_copy(update={"text": ""})
    covering = (*of_root.studies, *(verdict.studies if item is not root else ()))
    by_study = {row: study.name for study in covering for row in study.scenes.values() if row in item.rows}
    reasons = {row: _reason(root, row, row in slow, verdict) for row in item.rows if row not in {**runs, **by_study}}
    made = Evidence(item, root, verdict, runs, by_study, reasons)
    _check(made, said)
    return made


def _reason(root: Item, row: str, slow: bool, verdict: Verdict) -> str:
    dataset = next(cell.settings["dataset.name"] for cell in root.cells if cell.row == row)
    if not (ENTRIES[dataset].sources or ENTRIES[dataset].home):
        return f"the data set {dataset} cannot be fetched, its files must be brought (docs/data.md)"
    if slow:
        return "too slow to fit into the hours that the scale small gives an item"
    if not verdict.why:
        raise InputError(
            f"{root.path}, {label(row)} has neither a result nor a reason; accepted: papers.py publish, a study in "
            f"verdicts.yaml, or a why there"
        )
    return verdict.why


def _check(made: Evidence, said: Verdicts) -> None:
    """A verdict that does not fit what there is."""
    path, verdict = made.item.path, made.verdict
    if made.found and verdict.verdict == "not run":
        raise InputError(f"verdicts.yaml: {path} has results, but its verdict is not run; accepted: another verdict")
    if not made.found and verdict.verdict != "not run" and path in said.items:
        raise InputError(
            f"verdicts.yaml: {path} has no result, but its verdict is {verdict.verdict}; accepted: not run"
        )
    if path in said.items and verdict.why and verdict.why not in made.reasons.values():
        raise InputError(f"verdicts.yaml: {path} has a why that no row needs; accepted: without it")


def hours(item: Item, row: str, scale: Scale) -> float:
    """Of a row's runs on two cores, about."""
    each = (scaled(cell.settings, scale) for cell in item.cells if cell.row == row and cell.exists)
    return sum((made.seconds or 0.0) * made.seeds for made in each) / 3600 / CORES
