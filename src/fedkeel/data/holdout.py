"""Rows of each client that are kept away from training, for a test or for validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.data.partition import Assignment
from fedkeel.data.partition.apportion import apportion
from fedkeel.errors import InputError, described

Labels = NDArray[np.int64] | None
DEFAULT_TEST = 0.2
"""The share of its own rows that a client holds out for a test, unless it is told otherwise."""


@dataclass(frozen=True)
class Split:
    """Each client's rows, divided; the sample numbers are those of the whole."""

    train: Assignment
    test: Assignment
    validation: Assignment


def check_share(field: str, share: object) -> float:
    """The share, if it is one."""
    if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 < float(share) < 1:
        raise InputError(f"{field} must be a share between 0 and 1, such as 0.2, or data; got {described(share)}")
    return float(share)


def hold_out(
    assignment: Assignment, labels: Labels, test: float, validation: float, seed: int, whole: bool = True
) -> Split:
    """Hold out a share of each client's own rows for a test and another for validation; 0 holds out none.

    The rows are drawn at random, and where there are class labels, each class is held out in proportion. Of n rows,
    share * n are held out, rounded; at least one is left for training, so a client with few rows may hold out none.
    Where that would be true of every client, some of them hold out one, so that all together hold out their share;
    but not where these rows are not the `whole`, as others' rows are on other sites.
    """
    if test + validation >= 1:
        raise InputError(f"test={test:g} and validation={validation:g} leave nothing to train on; lower one of them")
    parts: dict[str, list[NDArray[np.int64]]] = {"train": [], "test": [], "validation": []}
    tested = _counts(test, assignment.sizes, assignment.sizes - 1, whole)
    validated = _counts(validation, assignment.sizes, assignment.sizes - 1 - tested, whole)
    for client in range(len(assignment)):
        rows = assignment[client]
        mine = None if labels is None else labels[rows]
        order = _stratified(len(rows), mine, streams.generator(seed, "hold out", client))
        places = np.split(order, np.cumsum([tested[client], validated[client]]))
        for name, some in zip(("test", "validation", "train"), places, strict=True):
            parts[name].append(rows[np.sort(some)])
    split = Split(**{name: joined(rows) for name, rows in parts.items()})
    for name, share in (("test", test), ("validation", validation)):
        if whole and share and not getattr(split, name).sizes.any():
            raise InputError(
                f"{name}={share:g} holds out no row, as clients have too few; give more rows or {name} data"
            )
    return split


def joined(rows: Sequence[NDArray[np.int64]]) -> Assignment:
    """One client's rows after the other's."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in rows])]).astype(np.int64)
    return Assignment(np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64, copy=False), offsets)


def renumbered(assignment: Assignment) -> Assignment:
    """For samples that lie client after client."""
    return Assignment(np.arange(len(assignment.indices), dtype=np.int64), assignment.offsets)


def _counts(share: float, sizes: NDArray[np.int64], most: NDArray[np.int64], whole: bool) -> NDArray[np.int64]:
    """[clients], how many rows each holds out."""
    counts = np.rint(share * sizes).astype(np.int64)
    if whole and share and not counts.any() and sizes.any():
        counts = apportion(max(1, round(share * int(sizes.sum()))), sizes.astype(np.float64))
    kept: NDArray[np.int64] = np.minimum(counts, np.maximum(most, 0))
    return kept


def _stratified(rows: int, labels: Labels, draw: np.random.Generator) -> NDArray[np.int64]:
    """The rows in an order of which every beginning has all classes in proportion, as nearly as whole numbers can."""
    order = draw.permutation(rows)
    if labels is None or not rows:
        return order
    _, place, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    by_class = np.argsort(place, kind="stable")
    rank = np.empty(rows, dtype=np.int64)
    rank[by_class] = np.concatenate([np.arange(count) for count in counts])
    # The r-th row of a class of n comes at (r + 1/2) / n of the way; the permutation decides between equals.
    return order[np.argsort((rank + 0.5) / counts[place], kind="stable")]
