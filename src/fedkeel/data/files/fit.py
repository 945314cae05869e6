"""What is learnt of columns before they become features: what is filled in, how numbers are scaled, which categories
there are. Everything that is estimated, is estimated from training rows alone (`fedkeel.data.summaries`).

Where all clients' rows are here, their summaries are combined here. On a site of its own, a client has only its rows,
and a `Pool` brings in what the others tell. Which exchanges there are depends on the settings and on the kinds of the
columns, never on values: all sites must make the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files.settings import FileSettings
from fedkeel.data.partition import Assignment
from fedkeel.data.pool import Pool
from fedkeel.data.summaries import Floats, Summary, combine, medians, summarise
from fedkeel.errors import InputError

Owner = NDArray[np.int64]
"""[rows], the client that a row belongs to, or -1."""
Mask = NDArray[np.bool_]
"""[columns]."""
MOST_CATEGORIES = 1000


@dataclass(frozen=True, eq=False)
class Split:
    """Whose each row is, and which rows are for training."""

    owner: Owner
    train: Assignment
    """The training rows of each client."""
    names: Sequence[str]
    """What the clients are called, in messages."""
    site: int | None = None
    """The client whose rows are here, on its own site; None where all clients' are."""

    @property
    def here(self) -> Sequence[int]:
        """The clients whose rows are here."""
        return range(len(self.names)) if self.site is None else [self.site]


@dataclass(frozen=True, eq=False)
class Values:
    """Numbers and categories, column by column."""

    order: tuple[str, ...]
    numbers: Floats
    """[rows, columns of numbers], with NaN where one is missing."""
    numeric: tuple[str, ...]
    switches: frozenset[str]
    """Which of these are true or false: they are not scaled."""
    words: Mapping[str, NDArray[Any]]
    """By column of categories: a word for each row."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What training rows told: one line for all clients, or one for each that is here."""

    fill: Floats
    centre: Floats
    spread: Floats
    categories: Mapping[str, Sequence[str]]
    indicated: Mask


def fit(values: Values, split: Split, settings: FileSettings, pool: Pool | None = None) -> Fitted:
    """By the training rows that are here, and those of the pool if there is one."""
    rows = [split.train[client] for client in split.here]
    told = [
        summarise(values.numbers[own], {name: words[own].tolist() for name, words in values.words.items()})
        for own in rows
    ]
    _check_sizes(values, told, settings)
    whole = _whole(combine(told), values, settings, pool)
    federated = settings.statistics == "federated"
    groups = [whole] if federated else told
    held = [[values.numbers[own] for own in rows]] if federated else [[values.numbers[own]] for own in rows]
    others = pool if federated else None
    fill = np.stack([_fill(values, group, own, settings, others) for group, own in zip(groups, held, strict=True)])
    _check_fill(values, fill, split, settings)
    scales = [scale(group, settings.normalise) for group in groups]
    centre, spread = (np.stack([each[side] for each in scales]) for side in (0, 1))
    fixed = [name in values.switches for name in values.numeric]
    centre[:, fixed], spread[:, fixed] = 0.0, 1.0
    indicated = _filled(values, settings) & (whole.count < whole.rows) & settings.indicator
    return Fitted(fill, centre, spread, _known(values, whole), indicated)


def _whole(here: Summary, values: Values, settings: FileSettings, pool: Pool | None) -> Summary:
    """The summary of all clients; a site tells of its own only what is needed."""
    if pool is None:
        return here
    federated, scaled = settings.statistics == "federated", [name not in values.switches for name in values.numeric]
    deviations, ends = (np.array(scaled, bool) & federated & (settings.normalise == way) for way in _SCALINGS)
    rules = _rules(values, settings)
    means = deviations | (federated & (rules == "mean"))
    numbers = bool((means | ends).any()) or (federated and bool((rules == "median").any()))
    if not numbers and not values.words and not (settings.indicator and _filled(values, settings).any()):
        return here
    _known(values, here)  # refuses free text before any of it is told
    return pool.summary(disclosed(here, means, deviations, ends))


_SCALINGS = ("standard", "unit")
"""By what they need: means and squared deviations, or the smallest and the largest values."""


def disclosed(own: Summary, means: Mask, deviations: Mask, ends: Mask) -> Summary:
    """What a site tells of its own summary: the rest of the numbers is NaN."""
    return replace(
        own,
        mean=np.where(means, own.mean, np.nan),
        squares=np.where(deviations, own.squares, np.nan),
        low=np.where(ends, own.low, np.nan),
        high=np.where(ends, own.high, np.nan),
    )


def scale(summary: Summary, scaling: str) -> tuple[Floats, Floats]:
    """What is subtracted, and what is divided by; constant columns are divided by 1."""
    centre, spread = (summary.mean, summary.std) if scaling == "standard" else (summary.low, summary.high - summary.low)
    return np.nan_to_num(centre), np.where(np.nan_to_num(spread) > 0, spread, 1.0)


def lines(told: Floats, split: Split) -> Floats:
    """What each row is told: [rows, columns], or [1, columns] where it is the same for all."""
    return told if len(told) == 1 else told[split.owner]


def _rules(values: Values, settings: FileSettings) -> NDArray[Any]:
    return np.array([settings.rule(name) for name in values.numeric], object)


def _filled(values: Values, settings: FileSettings) -> Mask:
    """The columns of numbers whose gaps are filled in."""
    return np.array([settings.rule(name) not in ("error", "drop") for name in values.numeric], bool)


def _fill(
    values: Values, summary: Summary, held: Sequence[Floats], settings: FileSettings, pool: Pool | None
) -> Floats:
    """[columns], what is filled in where a value is missing; NaN where there is nothing to fill in."""
    rules = _rules(values, settings)
    fill = np.where(rules == "constant", settings.fill, np.where(rules == "mean", summary.mean, np.nan))
    middle = rules == "median"
    if middle.any():
        total = {} if pool is None else {"total": pool.total}
        fill[middle] = medians([rows[:, middle] for rows in held], summary.count[middle], **total)
    return fill.astype(np.float64)


def _check_sizes(values: Values, told: Sequence[Summary], settings: FileSettings) -> None:
    """Refuse numbers that are so large that what is needed of them cannot be computed."""
    scaled = np.array([name not in values.switches for name in values.numeric], bool)
    standard, unit = (scaled & (settings.normalise == way) for way in _SCALINGS)
    means = standard | (_rules(values, settings) == "mean")
    for each in told:
        with np.errstate(over="ignore"):
            width = each.high - each.low
        sizes = np.where(means, each.mean, 0.0), np.where(standard, each.squares, 0.0), np.where(unit, width, 0.0)
        large = (each.count > 0) & ~np.isfinite(sizes).all(axis=0)
        if large.any():
            place = int(large.argmax())
            raise InputError(
                f"dataset.features: column {values.numeric[place]!r} has numbers from {each.low[place]:g} to "
                f"{each.high[place]:g}, which are too large to be scaled; mend them, or name the column in "
                "dataset.ignore"
            )


def _check_fill(values: Values, fill: Floats, split: Split, settings: FileSettings) -> None:
    """Refuse a column that has gaps but nothing to fill them with."""
    common = settings.statistics == "federated"
    for place, name in enumerate(values.numeric):
        open_ = np.isnan(values.numbers[:, place]) & np.isnan(lines(fill, split)[:, place])
        open_ &= common | (split.owner >= 0)
        if open_.any():
            whose = "no client has" if common else f"client {split.names[split.owner[open_.argmax()]]!r} has not"
            rule = settings.rule(name)
            hint = "" if common else "dataset.statistics=federated, or "
            raise InputError(
                f"dataset.missing: {rule} of column {name!r} cannot be computed, as {whose} a single value of it in "
                f"its training rows; use {hint}dataset.missing=constant, or name the column in dataset.ignore"
            )


def _known(values: Values, whole: Summary) -> dict[str, list[str]]:
    """The categories of all clients' training rows, which all must share, sorted."""
    known = {name: sorted(whole.categories.get(name, ())) for name in values.words}
    for name, categories in known.items():
        if len(categories) > MOST_CATEGORIES:
            raise InputError(
                f"dataset.features: column {name!r} has {len(categories):,} different words, which looks like names or "
                "free text; name it in dataset.ignore"
            )
    return known
