"""Tables that are in memory or in Parquet files: dicts of columns, pandas data frames, pyarrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.config.files import reason
from fedkeel.data.files.table import Column, Table, column_of
from fedkeel.errors import InputError, described, label, words


def table_of(data: Any, source: str = "table") -> Table:
    """From a dict of columns, a pandas data frame or a pyarrow table."""
    if isinstance(data, Table):
        return data
    if hasattr(data, "column_names") and hasattr(data, "schema"):
        columns = {str(name): _arrow_column(str(name), data.column(name)) for name in data.column_names}
    elif hasattr(data, "columns") and hasattr(data, "to_numpy"):
        columns = {str(name): column_of(str(name), data[name].to_numpy()) for name in data.columns}
    elif isinstance(data, Mapping):
        columns = {str(name): column_of(str(name), _plain(values)) for name, values in data.items()}
    else:
        raise InputError(
            f"table must be a dict of columns, a pandas DataFrame or a pyarrow Table; got {described(data)}"
        )
    lengths = {name: len(column.raw) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{label(name)} {length}" for name, length in list(lengths.items())[:5])
        raise InputError(f"table must have columns of one length; got {told}")
    if not columns or not max(lengths.values()):
        raise InputError(f"{label(source)} has no rows; add at least one")
    return Table(columns, source)


def read_parquet(paths: Sequence[Path]) -> tuple[Table, list[int]]:
    """One table of all files, and how many rows each of them has."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(
            "dataset.name: Parquet files need the package pyarrow; install it with pip install 'fedkeel[parquet]', or "
            "save the table as CSV"
        ) from error
    parts = []
    for path in paths:
        try:
            parts.append(pq.ParquetFile(path).read())
        except OSError as error:
            raise InputError(f"{label(str(path))} cannot be read ({reason(error)})") from error
        except pa.ArrowException as error:
            raise InputError(f"{label(str(path))} is not a Parquet file ({words(error)})") from error
    for path, part in zip(paths, parts, strict=True):
        if apart := {*part.column_names} ^ {*parts[0].column_names}:
            raise InputError(
                f"{label(str(path))} and {label(str(paths[0]))} have different columns "
                f"({', '.join(sorted(apart)[:5])}); give all files the same columns"
            )
    try:
        whole = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"the files {label(str(paths[0]))}, ... have different types ({words(error)})") from error
    source = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return table_of(whole, source), [len(part) for part in parts]


def _plain(values: Any) -> Any:
    """Arrays and tensors as NumPy has them; lists as they are."""
    if isinstance(values, list | tuple):
        return values
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"table: a column must be an array or a list; got {described(values)}") from error


def _arrow_column(name: str, values: Any) -> Column:
    """Numbers without a way by Python objects; the rest by its values."""
    import pyarrow as pa

    if isinstance(values.type, pa.DictionaryType):
        values = values.cast(values.type.value_type)
    numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if numeric and values.null_count == 0:
        return column_of(name, values.to_numpy())
    return column_of(name, values.to_pylist())
