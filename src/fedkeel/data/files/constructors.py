"""The ways from files and tables to a `FederatedData`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from fedkeel.config.section import make
from fedkeel.data.dealing import as_partition
from fedkeel.data.files import hf, kinds, tables
from fedkeel.data.files.build import Dealt, Gathered, build
from fedkeel.data.files.frames import table_of
from fedkeel.data.files.load import load
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.partition import Partition
from fedkeel.errors import InputError, described

Paths = str | Path | Sequence[str | Path]
How = Partition | str | dict[str, Any] | None


DEFAULT_CLIENTS = 10


class FromFiles(ABC):
    """Constructors that take settings by the names that `dataset` has for them.

    `client=` names the column that says whose a row is; without it, `partition=` deals the rows out to `clients=`.
    """

    @classmethod
    @abstractmethod
    def _of_dealt(cls, dealt: Dealt) -> Self: ...

    @classmethod
    def from_csv(cls, path: Paths, *, target: str | Sequence[str], **how: Any) -> Self:
        """Rows of a CSV file, or of several, a folder or a glob of them with one file per client."""
        return cls._from_tables(path, kinds.CSV, target=target, **how)

    @classmethod
    def from_parquet(cls, path: Paths, *, target: str | Sequence[str], **how: Any) -> Self:
        """Rows of a Parquet file, or of several, a folder or a glob of them with one file per client."""
        return cls._from_tables(path, kinds.PARQUET, target=target, **how)

    @classmethod
    def from_table(cls, table: Any, *, target: str | Sequence[str], test: Any = None, **how: Any) -> Self:
        """A dict of columns, a pandas data frame or a pyarrow table; `test` is a share or such a table."""
        share = test if test is None or isinstance(test, int | float) else None
        settings, rest = _settings(target=target, test=share, **how)
        return cls._deal(tables.with_test(table_of(table), test if share is None else None, settings), settings, rest)

    @classmethod
    def from_huggingface(cls, dataset: Any, *, target: str | Sequence[str], test: Any = None, **how: Any) -> Self:
        """A `Dataset` or a `DatasetDict` of the package datasets; `test` is a share or another `Dataset`."""
        share = test if test is None or isinstance(test, int | float) else None
        settings, rest = _settings(target=target, test=share, **how)
        parts = hf.splits(dataset, test if share is None else None)
        return cls._deal(hf.gather(parts, settings, settings.name), settings, rest)

    @classmethod
    def from_partitions(
        cls, partitions: Any, *, target: str | Sequence[str], split: str = "train", test: Any = None, **how: Any
    ) -> Self:
        """One client per partition: of a `FederatedDataset` of flwr-datasets, or of a list of data sets.

        `test` is the share that each client holds out, or a `Dataset` that all are tested on.
        """
        share = test if test is None or isinstance(test, int | float) else None
        settings, rest = _settings(target=target, test=share, **how)
        parts = [*hf.partitions(partitions, split), *hf.tested(test if share is None else None)]
        return cls._deal(hf.gather(parts, settings, settings.name), settings, rest)

    @classmethod
    def from_settings(
        cls, settings: FileSettings, partition: How = None, clients: int = DEFAULT_CLIENTS, seed: int = 0
    ) -> Self:
        """The data that `dataset` names in an experiment, where that is a file, a folder or `hf:...`."""
        return cls._of_dealt(build(load(settings), settings, _partition(partition), clients, seed))

    @classmethod
    def _from_tables(cls, path: Paths, endings: tuple[str, ...], **how: Any) -> Self:
        given = [path] if isinstance(path, str | Path) else path
        if not given:
            raise InputError("path must name at least one file; got none")
        found = [each for one in given for each in kinds.found(str(one), "path")]
        for each in found:
            if not each.name.lower().endswith(endings):
                raise InputError(f"path must end in {' or '.join(endings)}; got {each.name}")
        settings, rest = _settings(**{"name": kinds.short(f"./{given[0]}"), **how})
        return cls._deal(tables.read(found, settings, settings.name), settings, rest)

    @classmethod
    def _deal(cls, rows: Gathered, settings: FileSettings, how: dict[str, Any]) -> Self:
        partition, asked = _partition(how.get("partition")), how.get("clients")
        dealt = build(rows, settings, partition, asked or DEFAULT_CLIENTS, how.get("seed", 0))
        if asked is not None and asked != len(dealt.assignment):
            raise InputError(f"clients must be {len(dealt.assignment)}, as many as the data names; got {asked}")
        return cls._of_dealt(dealt)


def _settings(**how: Any) -> tuple[FileSettings, dict[str, Any]]:
    """The settings of the files, and how their rows are dealt out."""
    rest: dict[str, Any] = {key: how.pop(key) for key in ("partition", "clients", "seed") if key in how}
    clients = rest.get("clients", DEFAULT_CLIENTS)
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise InputError(f"clients must be a whole number of at least 1; got {described(clients)}")
    return make(FileSettings, how), rest


def _partition(given: How) -> Partition | None:
    return None if given is None else as_partition(given)
