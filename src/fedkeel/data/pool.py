"""Statistics over sites that keep their rows: what a site asks for, and what the server does with the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedkeel.data.summaries import NUMBERS, Counts, Summary, combine
from fedkeel.errors import InputError, label


class Pool(Protocol):
    """All sites together. Each call waits until every site has made it; all sites make the same calls."""

    def summary(self, own: Summary) -> Summary:
        """The summary of all sites' training rows: `pooled_summary` of what each of them told."""
        ...

    def total(self, own: Counts) -> Counts:
        """The sum over all sites: `pooled_total` of what each of them told."""
        ...


def pooled_summary(told: Sequence[Summary], names: Sequence[str]) -> Summary:
    """At the server: what sites told, in the order of their numbers, and what they are called."""
    _check_alike([each.schema for each in told], names, "columns of other names or kinds, or in another order")
    _check_alike([str(each.count.shape) for each in told], names, "another number of columns")
    _check_alike([str(sorted(each.categories)) for each in told], names, "other columns of categories")
    _check_given(told, names)
    found = combine(told)
    if not found.sound:
        largest = max(range(len(told)), key=lambda site: float(np.nan_to_num(np.abs(told[site].mean)).max(initial=0)))
        raise InputError(
            f"data: the numbers of {label(names[largest])} are too large to be put together with those of other "
            "sites; mend them, or name their columns in dataset.ignore"
        )
    return found


def pooled_total(told: Sequence[Counts], names: Sequence[str]) -> Counts:
    """At the server: what sites told, and what they are called."""
    _check_alike([str(each.shape) for each in told], names, "counts of another shape")
    return np.sum(told, axis=0, dtype=np.int64)  # type: ignore[no-any-return]


def _check_given(told: Sequence[Summary], names: Sequence[str]) -> None:
    """Refuse sites that leave out numbers which others tell, or tell others; who has no value of a column tells none.

    Otherwise, the statistics of all would lack what one site left out.
    """
    there = np.stack([each.count > 0 for each in told])
    for name in NUMBERS:
        given = np.stack([~np.isnan(getattr(each, name)) for each in told])
        usual = 2 * (given & there).sum(axis=0) >= there.sum(axis=0)
        apart = ((given != usual) & there).any(axis=1)
        if apart.any():
            who = ", ".join(label(names[site]) for site in np.flatnonzero(apart).tolist())
            raise InputError(
                f"data: {who} tells other statistics of its columns than most sites; give all sites the same version "
                "of fedkeel and the same project"
            )


def _check_alike(told: Sequence[str], names: Sequence[str], what: str) -> None:
    """Refuse sites that differ from most of them, by their names."""
    if len({*told}) > 1:
        usual = Counter(told).most_common(1)[0][0]
        apart = [label(name) for name, each in zip(names, told, strict=True) if each != usual]
        raise InputError(
            f"data: {', '.join(apart)} has {what} than most sites; give all sites the same columns, and name those to "
            "learn from in dataset.features, and categories in dataset.categorical"
        )
