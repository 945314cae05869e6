"""The data of one site, read from its own files: all rows are this client's, and none of them leaves the site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedkeel.data.federated import FederatedData
from fedkeel.data.files import arrays, images, kinds, tables
from fedkeel.data.files.build import Gathered, build_site
from fedkeel.data.files.features import MISSING, Columns
from fedkeel.data.files.load import holds_tables
from fedkeel.data.files.schema import SWITCH, WORDS, Schema, agree, schema_of
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.table import Table, listed
from fedkeel.data.pool import Pool
from fedkeel.data.summaries import Counts, Summary
from fedkeel.errors import InputError, label

_SIDES = ("the other sites", "this site")


@dataclass(frozen=True, eq=False)
class Site:
    """Rows that were read. No statistics are exchanged yet, so that the `schema` can be compared with others first."""

    rows: Gathered
    settings: FileSettings
    client: int
    names: tuple[str, ...]
    schema: Schema

    def load(self, seed: int, pool: Pool, agreed: Schema | None = None) -> FederatedData:
        """Hold rows out, exchange statistics with the pool, and make samples.

        `agreed` is what `schema.agree` made of all sites' schemas, or of those that came first; without it, all must
        have the same digest. Refuses data that does not fit it.
        """
        rows, schema = self.rows, self.schema if agreed is None else agree([agreed, self.schema], _SIDES)
        if isinstance(rows.features, Columns):
            by_kind = {which: [n for n in schema.columns if schema.columns[n][0] == which] for which in (SWITCH, WORDS)}
            words = [n for n in schema.columns if n in by_kind[WORDS] or n in self.settings.categorical]
            switches = [n for n in by_kind[SWITCH] if n not in words]
            rows = replace(rows, features=rows.features.arranged([*schema.columns], switches, words))
        dealt = build_site(rows, self.settings, self.client, self.names, seed, _Signed(pool, schema.digest))
        return FederatedData(**vars(dealt))


def read_site(settings: FileSettings, path: str, client: int, names: Sequence[str]) -> Site:
    """Read a table, arrays or a folder of images; refuses what only the sites together could tell."""
    if not 0 <= client < len(names):
        raise InputError(f"client must be a number from 0 to {len(names) - 1}; got {client}")
    _check(settings)
    settings = settings.model_copy(update={"client": settings.client if _by_column(settings) else None})
    rows, table = _read(settings, path)
    _check_classes(rows, settings)
    _check_words(rows, settings)
    return Site(rows, settings, client, tuple(names), schema_of(rows, table, settings))


@dataclass(frozen=True)
class _Signed:
    """A pool that is told with each summary which columns it is about."""

    pool: Pool
    schema: str

    def summary(self, own: Summary) -> Summary:
        return self.pool.summary(replace(own, schema=self.schema))

    def total(self, own: Counts) -> Counts:
        return self.pool.total(own)


def _read(settings: FileSettings, path: str) -> tuple[Gathered, Table | None]:
    where, called = Path(path).expanduser(), kinds.short(settings.name)
    kind = "folder" if where.is_dir() else kinds.kind(path)
    if kind == "folder" and where.is_dir() and not holds_tables(where):
        return images.read(where, settings.model_copy(update={"client": None}), called), None
    if kind == "arrays":
        return _arrays(settings, where, called), None
    if kind not in ("table", "folder"):
        raise InputError(
            f"the data of a site must be a file (.csv, .parquet, .npz, .npy) or a folder; got {label(path)}"
        )
    table, _ = tables.read_files(kinds.found(path, "the data of the site"), settings)
    table = _own(table, settings.client)
    settings = settings.model_copy(update={"client": None})
    return tables.gather(table, settings, whose=[""] * len(table), name=called), table


def _arrays(settings: FileSettings, where: Path, called: str) -> Gathered:
    """Targets in an `.npy` file of their own are beside the samples."""
    beside = {"target": (str(where.parent / settings.target[0]),)} if settings.target else {}
    rows = arrays.read(where, settings.model_copy(update={"client": None, **beside}), called)
    _check_one({name for name in rows.whose or () if name}, "client")
    return replace(rows, whose=None)


def _own(table: Table, client: str | None) -> Table:
    """Without the column that names clients: all rows are one client's."""
    if client is None or client not in table.columns:
        return table
    _check_one({name for name in table.columns[client].names() if name}, client)
    return Table({name: column for name, column in table.columns.items() if name != client}, table.source)


def _by_column(settings: FileSettings) -> bool:
    return settings.client not in (None, tables.FILE, images.FOLDER)


def _check(settings: FileSettings) -> None:
    if isinstance(settings.test, str):
        raise InputError(
            f"dataset.test must be a share on a site, such as 0.2, as the rows of {label(settings.test)} belong to no "
            "site; arrays and folders of images may bring test rows of their own"
        )
    if settings.vocabulary == "auto":
        raise InputError("dataset.vocabulary must be a number on a site, as token ids of other sites cannot be counted")


def _check_one(names: set[str], column: str) -> None:
    if len(names) > 1:
        raise InputError(
            f"dataset.client: the data of a site must hold its own rows alone, but {column!r} names "
            f"{len(names)} clients, {listed(sorted(names), 3)}; give each site its own file"
        )


def _check_words(rows: Gathered, settings: FileSettings) -> None:
    """Categories are told to others, so names of people must not be taken for them."""
    for name, words in rows.features.words.items() if isinstance(rows.features, Columns) else ():
        told = [word for word in words.tolist() if word != MISSING]
        found = len({*told})
        if name not in settings.categorical and found > len(told) / 2:
            raise InputError(
                f"dataset.features: column {name!r} has {found} different words in {len(told)} rows, which looks like "
                "names or free text, and categories leave the site; name it in dataset.ignore, or in "
                "dataset.categorical if these are categories"
            )


def _check_classes(rows: Gathered, settings: FileSettings) -> None:
    """A site may not have samples of all classes, so it cannot tell how they are numbered."""
    if settings.classes is not None or rows.y.dtype.kind != "i":
        return
    if rows.y.ndim == 1 or not np.isin(rows.y, (0, 1)).all():
        raise InputError(
            "dataset.classes must name all classes in their order, as a site may not have samples of each; or set "
            "task=regression if the target is a quantity"
        )
