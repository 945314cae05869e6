"""What the papers print: every table and figure, and for each result its rows, its columns and the figures in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fedkeel.config import yamltext
from fedkeel.config.section import Section, make
from fedkeel.errors import InputError, unknown
from fedkeel.study.papers.quantities import Name

NAMES = ("fedagg-journal", "fedagg-conference", "fedent", "fedlga", "fedasmu-fedssmu")
Word = Literal["none", "not printed", "not-reached", "unreadable"]
"""The word in place of a figure: the paper has no such run; it shows a curve without numbers; it prints that the target
was not reached; or our text of the paper is garbled there."""
Printed = float | Word
Settings = Mapping[str, Any]
"""By dotted keys, as on the command line."""
_PARTS = ", "


class Citation(Section):
    """A paper's authors, title and venue, as its text has them."""

    authors: str
    title: str
    venue: str
    year: int

    def __str__(self) -> str:
        return f"{self.authors}: {self.title}. {self.venue[0].upper()}{self.venue[1:]}, {self.year}"


class Part(Section):
    """Settings that a row or a column consists of."""

    settings: dict[str, Any]
    with_: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings for one method only, by its name."""
    differs: str = ""
    """How it differs from the paper, in half a sentence."""

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, values: Any) -> Any:
        """In a file, the settings themselves are beside the other keys."""
        own = {"with_": "with", "differs": "differs"}
        found = {field: values[key] for field, key in own.items() if key in values}
        return {"settings": {k: v for k, v in values.items() if k not in own.values()}, **found}


class Entry(Section):
    """A table or a figure, as a file has it."""

    caption: str
    kind: Literal["result", "not a result"] = "result"
    why: str = ""
    """Why it is not a result, in a sentence."""
    claim: str = ""
    """What the paper says about it, in a sentence."""
    shows: tuple[Name, ...] = ()
    like: str | None = None
    """The table whose rows, columns and figures it shows."""
    only: tuple[str, ...] = ()
    """Words that select some of those rows."""
    also: tuple[Name, ...] = ()
    """Further quantities, for which no figure is printed."""
    differs: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Settings that are the same at every scale, because the item is about them."""
    columns: tuple[str, ...] = ()
    rows: dict[str, Any] = Field(default_factory=dict)
    """By their names: a list with a figure for each column (null: there is no such run), figures by column, or null
    where none are printed. Where several quantities are shown, a list for each column has one figure for each."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        rows = values.get("rows", {})
        return {**values, "rows": dict.fromkeys(rows) if isinstance(rows, list) else rows}


class File(Section):
    """A paper, as a file has it."""

    cite: Citation
    parts: dict[str, Part]
    items: dict[str, Entry]


@dataclass(frozen=True)
class Cell:
    """A row's figures in a column, and the settings of the run behind them."""

    row: str
    column: str
    printed: tuple[Printed, ...]
    """One for each quantity that the item shows."""
    settings: Settings
    differs: tuple[str, ...]
    """How it differs from the paper, in half sentences."""

    @property
    def parts(self) -> list[str]:
        """The names of the settings that its row and column consist of."""
        return _names(self.row, self.column)

    @property
    def exists(self) -> bool:
        """Whether the paper has such a run."""
        return self.printed[0] != "none"


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    paper: str
    name: str
    entry: Entry
    shows: tuple[Name, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def path(self) -> str:
        """The name that a user gives."""
        return f"{self.paper}/{self.name}"

    @property
    def title(self) -> str:
        """`Table 3` or `Figure 5`."""
        found = re.fullmatch(r"([a-z]+)(\d+)", self.name)
        return f"{found[1].capitalize()} {found[2]}" if found else self.name

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def of_data(self) -> bool:
        """Whether it is about data alone, so that nothing is trained."""
        return self.shows == ("Wasserstein distance",)

    @property
    def curves(self) -> bool:
        """Whether the paper prints no figure at all."""
        return all(printed == "not printed" for cell in self.cells for printed in cell.printed)


@dataclass(frozen=True)
class Paper:
    """A paper, and all its tables and figures."""

    name: str
    cite: Citation
    items: tuple[Item, ...]
    differs: Mapping[str, str]
    """How settings differ from the paper, in half a sentence, by the part of a row or column."""


@cache
def papers() -> tuple[Paper, ...]:
    """All papers."""
    return tuple(_read(name) for name in NAMES)


def find(words: Sequence[str]) -> list[Item]:
    """The items that are named: `all`, a paper, or `paper/item`; each once, in the papers' order."""
    known = {item.path: item for paper in papers() for item in paper.items}
    found: set[str] = set()
    for word in words:
        name = word.strip("/").lower()
        paper = name.partition("/")[0]
        inside = [path for path in known if name in ("all", path.partition("/")[0], path)]
        if not inside and paper in NAMES:
            items = [path.partition("/")[2] for path in known if path.startswith(f"{paper}/")]
            raise unknown(f"item of {paper}", name.partition("/")[2], items)
        if not inside:
            raise unknown("item", word, [*NAMES, "all"], also="PAPER/ITEM, such as fedagg-journal/table3")
        found.update(inside)
    return [item for path, item in known.items() if path in found]


def matching(rows: Sequence[str], words: Sequence[str]) -> list[str]:
    """The rows that have all words: as whole words if any row has them so, otherwise as parts of words."""
    left = list(rows)
    for word in (each.lower() for each in words):
        whole = [row for row in rows if word in re.split(r"[\s,+]+", row.lower())]
        having = whole or [row for row in rows if word in row.lower()]
        left = [row for row in left if row in having]
    return left


def _read(name: str) -> Paper:
    path = Path(str(resources.files(__package__) / f"{name}.yaml"))
    file = make(File, yamltext.read(path), name)
    differs = {part: given.differs for part, given in file.parts.items() if given.differs}
    return Paper(name, file.cite, tuple(_item(name, item, file) for item in file.items), differs)


def _item(paper: str, name: str, file: File) -> Item:
    entry = file.items[name]
    if entry.kind != "result":
        return Item(paper, name, entry)
    shared = entry if entry.like is None else file.items[entry.like]
    chosen = list(entry.rows) or matching(list(shared.rows), entry.only)
    shows = (*shared.shows, *entry.also)
    cells = (
        _cell(file, entry, row, column, (*printed, *("not printed" for _ in entry.also)))
        for row in chosen
        for column, printed in _figures(shared, row, len(shared.shows))
    )
    return Item(paper, name, entry, shows, tuple(cells))


def _figures(entry: Entry, row: str, count: int) -> Iterator[tuple[str, tuple[Printed, ...]]]:
    """A row's columns, and what is printed there for each of `count` quantities."""
    given = entry.rows[row]
    listed = isinstance(given, list)
    if listed and len(given) != len(entry.columns):
        raise InputError(f"{row} must have {len(entry.columns)} figures, one per column; got {len(given)}")
    found = dict(zip(entry.columns, given, strict=True)) if listed else given or {}
    for column in entry.columns:
        value = found.get(column)
        if value is None:
            yield column, ("none" if listed else "not printed",) * count
        else:
            several = value if isinstance(value, list) else [value]
            yield column, tuple("not printed" if each is None else each for each in several)


def _cell(file: File, entry: Entry, row: str, column: str, printed: tuple[Any, ...]) -> Cell:
    parts = [_part(file, name) for name in _names(row, column)]
    settings: dict[str, Any] = {}
    for part in parts:
        settings |= part.settings
    for part in parts:
        settings |= part.with_.get(settings.get("algorithm.name", ""), {})
    differs = dict.fromkeys(each for each in (*(part.differs for part in parts), *entry.differs) if each)
    return Cell(row, column, printed, settings, tuple(differs))


def _names(row: str, column: str) -> list[str]:
    """The names of the parts; a column about data has none."""
    return [*row.split(_PARTS), *(column.split(_PARTS) if column != "labels" else [])]


def _part(file: File, name: str) -> Part:
    if name not in file.parts:
        raise unknown("part", name, file.parts)
    return file.parts[name]
