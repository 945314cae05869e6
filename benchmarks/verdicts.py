"""What is written by hand of the papers' results: verdicts.yaml, read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import studies

from fedkeel.config import yamltext
from fedkeel.config.section import Section, make
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.errors import InputError, unknown
from fedkeel.study.papers import catalogue
from fedkeel.study.papers.catalogue import Item

FILE = Path(__file__).parent / "verdicts.yaml"
Word = Literal["holds", "in part", "does not hold", "not run"]


class Covering(Section):
    """A study that stands for rows of an item."""

    name: str
    scenes: dict[str, str]
    """Rows of the item, by the scenes of the study; one without scenes has the scene ''."""
    variants: tuple[str, ...] = ()
    """That are shown; all if none are named."""
    differs: str = ""
    """From the paper, in half a sentence."""
    same_task: bool = True
    """Whether the data set, the model and the target are the paper's, so that its figures stand beside ours."""


class Verdict(Section):
    """Of an item."""

    verdict: Word = "not run"
    text: str = ""
    why: str = ""
    """Rows are not run for which the catalogue knows no reason, in half a sentence."""
    studies: tuple[Covering, ...] = ()


class OfPaper(Section):
    """What is said of a paper."""

    page: str
    """Where its method is described, below docs."""
    summary: str
    errata: tuple[str, ...] = ()
    """Of its results, in sentences."""


class Verdicts(Section):
    """The whole file."""

    overall: str
    absent: tuple[str, ...] = ()
    """Data sets that were not at hand: rows with them are not run."""
    papers: dict[str, OfPaper]
    items: dict[str, Verdict]

    def of(self, item: Item) -> Verdict:
        """An item's, which may have none."""
        return self.items.get(item.path, Verdict())


def check(found: Verdicts) -> None:
    """Data sets, items, rows, studies, scenes and variants must exist."""
    known = {item.path: item for paper in catalogue.papers() for item in paper.items}
    _all_in("data set", found.absent, ENTRIES)
    _all_in("paper", found.papers, catalogue.NAMES)
    _all_in("item", found.items, known)
    for path, verdict in found.items.items():
        for study in verdict.studies:
            rows = studies.results(study.name)
            _all_in(f"{path}: row", study.scenes.values(), known[path].rows)
            _all_in(f"{path}: scene of {study.name}", study.scenes, {row["scene"] for row in rows})
            _all_in(f"{path}: variant of {study.name}", study.variants, {row["variant"] for row in rows})


def _all_in(what: str, named: Iterable[str], there: Iterable[str]) -> None:
    names = sorted(there)
    for each in named:
        if each not in names:
            raise unknown(f"verdicts.yaml: {what}", each, names)


def read() -> Verdicts:
    """The file."""
    found = make(Verdicts, yamltext.read(FILE), "verdicts.yaml")
    check(found)
    for name in catalogue.NAMES:
        if name not in found.papers:
            raise InputError(
                f"verdicts.yaml: papers has no {name}; add an entry for each of {', '.join(catalogue.NAMES)}"
            )
    return found
