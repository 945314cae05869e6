"""From rows that were read to data that is dealt out: clients, held-out rows, statistics, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.examples import Examples
from fedkeel.data.dealing import deal
from fedkeel.data.files.clients import LEFT_OUT, grouped
from fedkeel.data.files.features import Features
from fedkeel.data.files.fit import Split
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.holdout import DEFAULT_TEST, hold_out, renumbered
from fedkeel.data.partition import Assignment, Column, Iid, Partition
from fedkeel.data.pool import Pool
from fedkeel.errors import InputError

OPEN, TEST, VALIDATION = 0, 1, 2
"""What a row is for: `OPEN` rows are for training, but for those that are held out of them."""
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Gathered:
    """Everything that was read, row by row: the one value in which all readers end."""

    features: Features
    y: NDArray[Any]
    part: NDArray[np.int8]
    whose: Sequence[str] | None = None
    """The name of each row's client, where rows have one; '' for nobody's."""
    classes: tuple[str, ...] | None = None
    """The names of the classes."""
    name: str = "table"

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """[rows], where there is one class per row."""
        return self.y if self.y.dtype.kind == "i" and self.y.ndim == 1 else None

    def take(self, rows: Rows) -> Gathered:
        """These rows alone."""
        whose = None if self.whose is None else [self.whose[row] for row in rows.tolist()]
        return replace(self, features=self.features.take(rows), y=self.y[rows], part=self.part[rows], whose=whose)


@dataclass(frozen=True, eq=False)
class Dealt:
    """The fields of a `FederatedData`."""

    train: Examples
    test: Examples
    assignment: Assignment
    classes: int
    vocabulary: int | None
    name: str
    test_rows: Assignment | None
    validation: Examples | None
    validation_rows: Assignment | None
    client_names: tuple[str, ...] | None
    class_names: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    site: int | None = None


def build(rows: Gathered, settings: FileSettings, partition: Partition | None, clients: int, seed: int) -> Dealt:
    """Deal rows out, hold some of each client's out, fit what is to be fitted on the others, and make samples."""
    kind: Partition = partition or (Iid() if rows.whose is None else Column())
    owner, names = _owners(rows, kind, clients, seed)
    if (owner == LEFT_OUT).any():
        stay = np.flatnonzero(owner != LEFT_OUT)
        rows, owner = rows.take(stay), owner[stay]
    dealt = Split(owner, _by_owner(owner, rows.part == OPEN, len(names)), names)
    return replace(_divided(rows, dealt, settings, seed), client_names=names if isinstance(kind, Column) else None)


def build_site(
    rows: Gathered, settings: FileSettings, client: int, names: tuple[str, ...], seed: int, pool: Pool
) -> Dealt:
    """The same for one client's rows on its own site, by what it and the others in the pool tell."""
    owner = np.full(len(rows.part), client, np.int64)
    dealt = Split(owner, _by_owner(owner, rows.part == OPEN, len(names)), names, client)
    return replace(_divided(rows, dealt, settings, seed, pool), client_names=names)


def _divided(rows: Gathered, dealt: Split, settings: FileSettings, seed: int, pool: Pool | None = None) -> Dealt:
    """Hold some rows of each client out, fit what is to be fitted on the others, and make samples."""
    owner, names = dealt.owner, dealt.names
    test = _share(rows, TEST, settings.test, DEFAULT_TEST, "dataset.test")
    validation = _share(rows, VALIDATION, settings.validation, 0.0, "dataset.validation")
    split = hold_out(dealt.train, rows.labels, test, validation, seed, whole=dealt.site is None)
    held = {TEST: split.test if test else None, VALIDATION: split.validation if validation else None}
    for which in held:
        given = rows.part == which
        if given.any():
            held[which] = None if (owner[given] < 0).any() else _by_owner(owner, given, len(names))
    _check_owned(rows, owner, settings)
    x, features = rows.features.encode(replace(dealt, train=split.train), settings, pool)
    return _made(rows, x, features, split.train, held, settings, dealt.site)


def _made(
    rows: Gathered,
    x: NDArray[Any],
    features: tuple[str, ...] | None,
    train: Assignment,
    held: dict[int, Assignment | None],
    settings: FileSettings,
    site: int | None,
) -> Dealt:
    from fedkeel.data.given import count_outputs, count_tokens, examples

    def some(which: Rows) -> Examples:
        return examples(x[which], rows.y[which], settings.vocabulary)

    parts = [some(train.indices)]
    for which, own in held.items():
        indices = np.flatnonzero(rows.part == which) if own is None else own.indices
        parts.append(some(indices))
    full = [part for part in parts if len(part)]
    known = rows.classes if rows.labels is not None or settings.classes is not None else None
    return Dealt(
        train=parts[0],
        test=parts[1],
        assignment=renumbered(train),
        classes=len(known) if known else count_outputs(full or parts),
        vocabulary=count_tokens(full, settings.vocabulary),
        name=rows.name,
        test_rows=_renumbered(held[TEST]),
        validation=parts[2] if len(parts[2]) or (site is not None and held[VALIDATION] is not None) else None,
        validation_rows=_renumbered(held[VALIDATION]),
        client_names=None,
        class_names=rows.classes,
        feature_names=features,
        site=site,
    )


def _renumbered(rows: Assignment | None) -> Assignment | None:
    return None if rows is None else renumbered(rows)


def _owners(rows: Gathered, kind: Partition, clients: int, seed: int) -> tuple[Rows, tuple[str, ...]]:
    """[rows], the client of each, -1 or LEFT_OUT; and what the clients are called."""
    open_ = np.flatnonzero(rows.part == OPEN)
    owner = np.full(len(rows.part), -1, np.int64)
    if isinstance(kind, Column) and rows.whose is not None:
        number, names = grouped([rows.whose[row] for row in open_.tolist()], kind)
        return np.array([number.get(name, -1) for name in rows.whose], np.int64), names
    labels = rows.labels
    dealt = deal(kind, None if labels is None else labels[open_], len(open_), clients, seed)
    owner[open_[dealt.indices]] = np.repeat(np.arange(clients), dealt.sizes)
    return owner, tuple(map(str, range(clients)))


def _share(rows: Gathered, which: int, given: float | str | None, usual: float, field: str) -> float:
    """The share of its rows that each client holds out; 0 where the data has rows for that."""
    if not (rows.part == which).any():
        return float(given) if isinstance(given, int | float) else usual
    if isinstance(given, int | float):
        raise InputError(f"{field}={given:g} is given, but the data has such rows of its own; remove one of the two")
    return 0.0


def _by_owner(owner: Rows, which: NDArray[np.bool_], clients: int) -> Assignment:
    """Those rows that belong to a client, client after client."""
    rows = np.flatnonzero(which & (owner >= 0))
    found = Assignment.from_owner(owner[rows], clients)
    return Assignment(rows[found.indices], found.offsets)


def _check_owned(rows: Gathered, owner: Rows, settings: FileSettings) -> None:
    if settings.statistics == "client" and ((rows.part != OPEN) & (owner < 0)).any():
        raise InputError(
            "dataset.statistics: 'client' needs test rows that belong to clients, but some belong to nobody; use "
            "federated, or name the client of each test row"
        )
