"""Features before and after statistics: tables of columns, and arrays such as images.

Everything that is estimated, is estimated from training rows alone (`fedkeel.data.summaries`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Table, refusal
from fedkeel.data.partition import Assignment
from fedkeel.data.summaries import Floats, Summary, combine, medians, summarise
from fedkeel.errors import InputError

Owner = NDArray[np.int64]
"""[rows], the client that a row belongs to, or -1."""
MOST_CATEGORIES = 1000
MISSING = "(missing)"
UNKNOWN = "(unknown)"
CHUNK = 4_000_000
"""Numbers of an array that are summarised at a time."""


@dataclass(frozen=True, eq=False)
class Split:
    """Whose each row is, and which rows are for training."""

    owner: Owner
    train: Assignment
    """The training rows of each client."""
    names: Sequence[str]
    """What the clients are called, in messages."""


class Features(Protocol):
    """Samples that are not scaled yet."""

    def __len__(self) -> int:
        """How many rows there are."""

    def take(self, rows: NDArray[np.int64]) -> Features:
        """These rows alone."""

    def encode(self, split: Split, settings: FileSettings) -> tuple[NDArray[Any], tuple[str, ...] | None]:
        """Samples [rows, ...] by what the training rows tell, and the names of their features."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Numbers and categories, column by column."""

    order: tuple[str, ...]
    numbers: Floats
    """[rows, columns of numbers], with NaN where one is missing."""
    numeric: tuple[str, ...]
    switches: frozenset[str]
    """Which of these are true or false: they are not scaled."""
    words: Mapping[str, NDArray[Any]]
    """By column of categories: a word for each row."""

    @classmethod
    def of(cls, table: Table, order: Sequence[str], settings: FileSettings) -> Columns:
        """The features of a table; refuses what cannot be one."""
        numeric, words = [], {}
        for name in order:
            column = table.columns[name]
            if name in settings.categorical or (column.kind == "text" and not refusal(name, column)):
                words[name] = np.array([MISSING if w is None else w for w in column.words()], object)
            elif why := refusal(name, column):
                raise InputError(f"dataset.features: {why}")
            else:
                numeric.append(name)
        found = [table.columns[name].numbers for name in numeric]
        numbers = np.stack([each for each in found if each is not None], 1) if found else np.empty((len(table), 0))
        switches = frozenset(name for name in numeric if table.columns[name].kind == "boolean")
        return cls(tuple(order), numbers, tuple(numeric), switches, words)

    @classmethod
    def of_matrix(cls, x: NDArray[Any]) -> Columns:
        """An array [rows, columns] of numbers, whose columns are called x0, x1, ..."""
        names = tuple(f"x{place}" for place in range(x.shape[1]))
        return cls(names, x.astype(np.float64), names, frozenset(), {})

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """These rows alone."""
        words = {name: values[rows] for name, values in self.words.items()}
        return Columns(self.order, self.numbers[rows], self.numeric, self.switches, words)

    def lacking(self) -> dict[str, NDArray[np.bool_]]:
        """By column that lacks values: where."""
        gaps = {name: np.isnan(self.numbers[:, place]) for place, name in enumerate(self.numeric)}
        gaps |= {name: values == MISSING for name, values in self.words.items()}
        return {name: gaps[name] for name in self.order if gaps[name].any()}

    def encode(self, split: Split, settings: FileSettings) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Gaps are filled in, numbers scaled, categories spread over columns; columns keep their order."""
        fitted = _fit(self, split, settings)
        gaps = np.isnan(self.numbers)
        numbers = np.where(gaps, _lines(fitted.fill, split), self.numbers) if gaps.any() else self.numbers
        if settings.normalise != "none":
            numbers = (numbers - _lines(fitted.centre, split)) / _lines(fitted.spread, split)
        parts: list[NDArray[Any]] = []
        names: list[str] = []
        for name in self.order:
            if name in self.words:
                encoded, labels = _categories(name, self.words[name], fitted.categories[name], settings)
                parts.append(encoded)
                names += labels
            else:
                parts.append(numbers[:, [self.numeric.index(name)]])
                names.append(name)
        for place in np.flatnonzero(fitted.indicated):
            parts.append(gaps[:, [place]])
            names.append(f"{self.numeric[place]} is missing")
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe"), tuple(names)


@dataclass(frozen=True, eq=False)
class Array:
    """Images [rows, C, H, W], series and the like: scaled per channel if they are images, else by one number."""

    x: NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: NDArray[np.int64]) -> Array:
        """These rows alone."""
        return Array(self.x[rows])

    def encode(self, split: Split, settings: FileSettings) -> tuple[NDArray[Any], None]:
        """Scaled, unless they are token ids; they have no names."""
        if settings.vocabulary is not None:
            return self.x, None
        scaled = self.x.astype(np.float32)
        if not np.isfinite(scaled).all():
            raise InputError("dataset.missing: values are missing in arrays that are no tables; fill them in first")
        if settings.normalise == "none":
            return scaled, None
        if settings.normalise == "unit" and self.x.dtype == np.uint8:
            return scaled / np.float32(255), None
        told = [combine([*self._summaries(split.train[client])]) for client in range(len(split.names))]
        for which, (centre, spread) in _scales(told, split, settings.normalise, settings.statistics):
            shape = (1, -1, 1, 1) if self.x.ndim == 4 else (1,) * self.x.ndim
            scaled[which] = (scaled[which] - centre.reshape(shape)) / spread.reshape(shape)
        return scaled, None

    def _summaries(self, rows: NDArray[np.int64]) -> list[Summary]:
        """Of so many rows at a time that memory lasts."""
        step = max(1, CHUNK // max(1, int(np.prod(self.x.shape[1:]))))
        starts = range(0, max(1, len(rows)), step)
        return [summarise(self._per_channel(self.x[rows[start : start + step]])) for start in starts]

    def _per_channel(self, x: NDArray[Any]) -> Floats:
        columns = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]) if x.ndim == 4 else x.reshape(-1, 1)
        return columns.astype(np.float64)


def _scales(told: Sequence[Summary], split: Split, scaling: str, statistics: str) -> list[tuple[Any, Any]]:
    """(Rows, (what is subtracted, what they are divided by)) for all rows, or client by client."""
    if statistics == "federated":
        return [(slice(None), _scale(combine(told), scaling))]
    return [(split.owner == client, _scale(each, scaling)) for client, each in enumerate(told)]


def _scale(summary: Summary, scaling: str) -> tuple[Floats, Floats]:
    """What is subtracted, and what is divided by; constant columns are divided by 1."""
    centre, spread = (summary.mean, summary.std) if scaling == "standard" else (summary.low, summary.high - summary.low)
    return np.nan_to_num(centre), np.where(np.nan_to_num(spread) > 0, spread, 1.0)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """What training rows told: one line for all clients, or one for each."""

    fill: Floats
    centre: Floats
    spread: Floats
    categories: Mapping[str, Sequence[str]]
    indicated: NDArray[np.bool_]


def _lines(told: Floats, split: Split) -> Floats:
    """What each row is told: [rows, columns], or [1, columns] where it is the same for all."""
    return told if len(told) == 1 else told[split.owner]


def _fit(columns: Columns, split: Split, settings: FileSettings) -> _Fitted:
    rows = [split.train[client] for client in range(len(split.names))]
    told = [
        summarise(columns.numbers[own], {name: words[own].tolist() for name, words in columns.words.items()})
        for own in rows
    ]
    whole = combine(told)
    federated = settings.statistics == "federated"
    groups = [whole] if federated else told
    held = [[columns.numbers[own] for own in rows]] if federated else [[columns.numbers[own]] for own in rows]
    fill = np.stack([_fill(columns, group, own, settings) for group, own in zip(groups, held, strict=True)])
    _check_fill(columns, fill, split, settings)
    scales = [_scale(group, settings.normalise) for group in groups]
    centre, spread = (np.stack([scale[side] for scale in scales]) for side in (0, 1))
    fixed = [name in columns.switches for name in columns.numeric]
    centre[:, fixed], spread[:, fixed] = 0.0, 1.0
    filled = np.array([settings.rule(name) not in ("error", "drop") for name in columns.numeric], bool)
    indicated = filled & (whole.count < whole.rows) & settings.indicator
    return _Fitted(fill, centre, spread, _known(columns, whole), indicated)


def _fill(columns: Columns, summary: Summary, held: Sequence[Floats], settings: FileSettings) -> Floats:
    """[columns], what is filled in where a value is missing; NaN where there is nothing to fill in."""
    rules = np.array([settings.rule(name) for name in columns.numeric], object)
    fill = np.where(rules == "constant", settings.fill, np.where(rules == "mean", summary.mean, np.nan))
    middle = rules == "median"
    if middle.any():
        fill[middle] = medians([rows[:, middle] for rows in held], summary.count[middle])
    return fill.astype(np.float64)


def _check_fill(columns: Columns, fill: Floats, split: Split, settings: FileSettings) -> None:
    """Refuse a column that has gaps but nothing to fill them with."""
    common = len(fill) == 1
    for place, name in enumerate(columns.numeric):
        open_ = np.isnan(columns.numbers[:, place]) & np.isnan(_lines(fill, split)[:, place])
        open_ &= common | (split.owner >= 0)
        if open_.any():
            whose = "no client has" if common else f"client {split.names[split.owner[open_.argmax()]]!r} has not"
            rule = settings.rule(name)
            hint = "" if common else "dataset.statistics=federated, or "
            raise InputError(
                f"dataset.missing: {rule} of column {name!r} cannot be computed, as {whose} a single value of it in "
                f"its training rows; use {hint}dataset.missing=constant, or name the column in dataset.ignore"
            )


def _known(columns: Columns, whole: Summary) -> dict[str, list[str]]:
    """The categories of all clients' training rows, which all must share, sorted."""
    known = {name: sorted(whole.categories.get(name, ())) for name in columns.words}
    for name, categories in known.items():
        if len(categories) > MOST_CATEGORIES:
            raise InputError(
                f"dataset.features: column {name!r} has {len(categories):,} different words, which looks like names or "
                "free text; name it in dataset.ignore"
            )
    return known


def _categories(
    name: str, words: NDArray[Any], known: Sequence[str], settings: FileSettings
) -> tuple[NDArray[Any], list[str]]:
    """One column per known category and one for all others; or one column of codes from 1, with 0 for all others."""
    places = {word: place for place, word in enumerate(known)}
    codes = np.array([places.get(word, -1) for word in words], np.int64)
    if settings.encode == "codes":
        return (codes + 1)[:, None], [name]
    width = len(known) + 1
    codes = np.where(codes < 0, len(known), codes)
    return np.eye(width, dtype=np.float32)[codes], [f"{name}={word}" for word in (*known, UNKNOWN)]
