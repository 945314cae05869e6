"""Features before and after statistics (`fit`): tables of columns, and arrays such as images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files.fit import Split, Values, disclosed, fit, lines, scale
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Table, refusal
from fedkeel.data.pool import Pool
from fedkeel.data.summaries import Floats, Summary, combine, summarise
from fedkeel.errors import InputError

MISSING = "(missing)"
UNKNOWN = "(unknown)"
CHUNK = 4_000_000
"""Numbers of an array that are summarised at a time."""


class Features(Protocol):
    """Samples that are not scaled yet."""

    def __len__(self) -> int:
        """How many rows there are."""

    def take(self, rows: NDArray[np.int64]) -> Features:
        """These rows alone."""

    def encode(
        self, split: Split, settings: FileSettings, pool: Pool | None = None
    ) -> tuple[NDArray[Any], tuple[str, ...] | None]:
        """Samples [rows, ...] by what the training rows tell, here and in the pool; and the names of their features."""


@dataclass(frozen=True, eq=False)
class Columns(Values):
    """Numbers and categories, which become features."""

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

    def arranged(self, order: Sequence[str], switches: Collection[str], words: Collection[str]) -> Columns:
        """Columns in this order; those without values may become switches or words."""
        nothing = np.full(len(self), MISSING, object)
        numeric = tuple(name for name in order if name not in words)
        numbers = self.numbers[:, [self.numeric.index(name) for name in numeric]]
        found = {name: self.words.get(name, nothing) for name in order if name in words}
        return Columns(tuple(order), np.ascontiguousarray(numbers), numeric, frozenset(switches), found)

    def lacking(self) -> dict[str, NDArray[np.bool_]]:
        """By column that lacks values: where."""
        gaps = {name: np.isnan(self.numbers[:, place]) for place, name in enumerate(self.numeric)}
        gaps |= {name: values == MISSING for name, values in self.words.items()}
        return {name: gaps[name] for name in self.order if gaps[name].any()}

    def encode(
        self, split: Split, settings: FileSettings, pool: Pool | None = None
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Gaps are filled in, numbers scaled, categories spread over columns; columns keep their order."""
        fitted = fit(self, split, settings, pool)
        gaps = np.isnan(self.numbers)
        numbers = np.where(gaps, lines(fitted.fill, split), self.numbers) if gaps.any() else self.numbers
        if settings.normalise != "none":
            numbers = (numbers - lines(fitted.centre, split)) / lines(fitted.spread, split)
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

    def encode(self, split: Split, settings: FileSettings, pool: Pool | None = None) -> tuple[NDArray[Any], None]:
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
        told = [combine([*self._summaries(split.train[client])]) for client in split.here]
        for which, (centre, spread) in _scales(told, split, settings, pool):
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


def _scales(
    told: Sequence[Summary], split: Split, settings: FileSettings, pool: Pool | None
) -> list[tuple[Any, tuple[Floats, Floats]]]:
    """(Rows, (what is subtracted, what they are divided by)) for all rows, or client by client."""
    scaling = settings.normalise
    if settings.statistics == "client":
        return [(split.owner == client, scale(each, scaling)) for client, each in zip(split.here, told, strict=True)]
    whole = combine(told)
    if pool is not None:
        standard = np.full(whole.count.shape, scaling == "standard")
        whole = pool.summary(disclosed(whole, standard, standard, ~standard))
    return [(slice(None), scale(whole, scaling))]


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
