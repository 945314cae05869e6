"""What the columns of a table are: targets, clients, features; and what becomes of rows that lack values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.files import csvfile, frames, kinds, targets
from fedkeel.data.files.build import OPEN, TEST, Gathered
from fedkeel.data.files.features import Columns
from fedkeel.data.files.missing import complete
from fedkeel.data.files.settings import OTHERS, FileSettings
from fedkeel.data.files.table import Table, joined, listed
from fedkeel.errors import InputError

FILE = "file"
"""As `dataset.client`: every file is a client's."""


def read(paths: Sequence[Path], settings: FileSettings, name: str) -> Gathered:
    """Tables in files, and the file of test rows if there is one."""
    tests = kinds.found(settings.test, "dataset.test") if isinstance(settings.test, str) else []
    table, counts = read_files([*paths, *tests], settings)
    part = np.repeat([OPEN] * len(paths) + [TEST] * len(tests), counts).astype(np.int8)
    by_file = settings.client == FILE or (settings.client is None and len(paths) > 1)
    names = _names(paths) + ["" for _ in tests] if by_file else []
    whose = [each for each, count in zip(names, counts, strict=True) for _ in range(count)] if by_file else None
    return gather(table, settings, part, whose, name)


def with_test(table: Table, test: Any, settings: FileSettings) -> Gathered:
    """A table in memory, and the table of test rows if there is one."""
    if test is None:
        return gather(table, settings, name=settings.name)
    other = frames.table_of(test, "test")
    if apart := other.columns.keys() ^ table.columns.keys():
        raise InputError(f"test must have the columns of the table; {listed(sorted(apart))} is only in one of them")
    columns = {name: joined(name, column, other.columns[name]) for name, column in table.columns.items()}
    part = np.repeat([OPEN, TEST], [len(table), len(other)]).astype(np.int8)
    return gather(Table(columns, table.source), settings, part, name=settings.name)


def gather(
    table: Table,
    settings: FileSettings,
    part: NDArray[np.int8] | None = None,
    whose: Sequence[str] | None = None,
    name: str = "table",
) -> Gathered:
    """A table's features, targets and clients, without the rows that are to be dropped."""
    part = np.zeros(len(table), np.int8) if part is None else part
    features = _roles(table, settings, whose is not None)
    assert settings.target
    columns = Columns.of(table, features, settings)
    needed = [*settings.target, *([settings.client] if settings.client and whose is None else [])]
    gaps = columns.lacking() | {name: gap for name in needed if (gap := table.columns[name].missing).any()}
    rows = complete(gaps, needed, part, settings)
    y, classes = targets.read(table.take(rows), settings)
    if whose is None and settings.client is not None:
        whose = [word or "" for word in table.columns[settings.client].names()]
    whose = None if whose is None else [whose[row] for row in rows.tolist()]
    return Gathered(columns.take(rows), y, part[rows], whose, classes, name)


def read_files(paths: Sequence[Path], settings: FileSettings) -> tuple[Table, list[int]]:
    """One table of all files, and how many rows each of them has."""
    parquet = [path.name.lower().endswith(kinds.PARQUET) for path in paths]
    if any(parquet) and not all(parquet):
        raise InputError("dataset.name: CSV and Parquet files cannot be mixed; convert them to one format")
    return frames.read_parquet(paths) if all(parquet) else csvfile.read(paths, frozenset(settings.missing_values))


def _names(paths: Sequence[Path]) -> list[str]:
    """What the clients are called that have one file each: the file without its ending, or the path if need be."""
    short = [kinds.short(f"./{path.name}") for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _roles(table: Table, settings: FileSettings, named: bool) -> list[str]:
    """The names of the features, after all settings that name columns were checked."""
    if not settings.target:
        raise InputError(f"dataset.target must name the column to predict; choose {listed(table.columns)}")
    by_column = settings.client is not None and not named
    roles = {"target": settings.target, "client": (settings.client,) if by_column and settings.client else ()}
    lists = {"features": settings.features or (), "ignore": settings.ignore, "categorical": settings.categorical}
    missing = () if isinstance(settings.missing, str) else tuple(n for n in settings.missing if n != OTHERS)
    for field, names in {**roles, **lists, "missing": missing}.items():
        for name in names:
            table.find(name, f"dataset.{field}")
    taken = [name for names in roles.values() for name in names]
    for name in taken:
        if name in lists["features"] or taken.count(name) > 1:
            raise InputError(f"dataset: column {name!r} is named as target, client and feature; give it one role")
    others = [name for name in table.columns if name not in taken]
    features = [name for name in settings.features or others if name not in settings.ignore]
    if not features:
        raise InputError("dataset.features must leave at least one column to learn from; got none")
    return features
