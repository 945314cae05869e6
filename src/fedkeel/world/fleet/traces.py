"""Measured devices: the columns of a file, or of a function of the user's."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedkeel import streams
from fedkeel.config import usercode
from fedkeel.config.files import open_file, reason
from fedkeel.config.section import must_be
from fedkeel.errors import InputError, described, label, shown, unknown
from fedkeel.world.fleet.generators import Column
from fedkeel.world.fleet.settings import Chance, Factor, Latency, Mbps, OnShare, Period, Seconds

_FINITE = ConfigDict(allow_inf_nan=False)
_AT_ONCE = 1000
COLUMNS: dict[str, TypeAdapter[list[float]]] = {
    "seconds_per_sample": TypeAdapter(list[Seconds], config=_FINITE),
    "speed_factor": TypeAdapter(list[Factor], config=_FINITE),
    "uplink_mbps": TypeAdapter(list[Mbps], config=_FINITE),
    "downlink_mbps": TypeAdapter(list[Mbps], config=_FINITE),
    "latency_seconds": TypeAdapter(list[Latency], config=_FINITE),
    "dropout": TypeAdapter(list[Chance], config=_FINITE),
    "availability": TypeAdapter(list[OnShare], config=_FINITE),
    "availability_period": TypeAdapter(list[Period], config=_FINITE),
    "availability_phase": TypeAdapter(list[Latency], config=_FINITE),
}
"""The columns that a trace may have, with the bounds of the settings of the same names."""


@dataclass(frozen=True)
class Table:
    """Columns as they were found, and the place of each row in the source."""

    source: str
    columns: Mapping[str, Sequence[Any]]
    rows: int
    place: Callable[[int], str]


def told_columns(profile: str, clients: int, seed: int) -> dict[str, Column]:
    """Columns [N] of a trace or of `module:function`.

    Where a file does not have as many rows as there are devices, devices draw rows at random: each row at most once if
    there are enough.
    """
    if profile.endswith(".csv"):
        return _dealt(_checked(read_csv(profile)), clients, seed)
    if profile.endswith(".parquet"):
        return _dealt(_checked(read_parquet(profile)), clients, seed)
    return _checked(call_function(profile, clients, seed))


def read_csv(path: str) -> Table:
    """A header, and one line per device."""
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        with TextIOWrapper(open_file(Path(path)), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise InputError(
                        f"fleet.profile: {label(path)}, line {reader.line_num} must have as many values as the header, "
                        f"{len(header)}; got {len(row)}"
                    )
                lines.append(reader.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error, "a readable CSV file with a header") from None
    _check_once(path, header)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return Table(label(path), columns, len(rows), lambda row: f"line {lines[row]}")


def read_parquet(path: str) -> Table:
    """The same in a Parquet file, through pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"fleet.profile: {label(path)} cannot be read without pyarrow; run pip install 'fedkeel[fleet]', or use a "
            "file that ends in .csv"
        ) from None
    try:
        with open_file(Path(path)) as file:
            table = parquet.ParquetFile(file).read()
        values = [column.to_pylist() for column in table.columns]
    except Exception as error:  # a damaged file can fail in any way
        raise _unreadable(path, error, "a readable Parquet file") from None
    _check_once(path, table.column_names)
    columns = dict(zip(table.column_names, values, strict=True))
    return Table(label(path), columns, table.num_rows, lambda row: f"row {row + 1}")


def call_function(name: str, clients: int, seed: int) -> Table:
    """What the user's function returns: one value per device in every column."""
    told = usercode.call(name, "fleet.profile", {"clients": clients, "seed": seed})
    if not isinstance(told, Mapping):
        raise InputError(
            f"fleet.profile: {name} must return a mapping from names of columns to {clients} numbers each, one per "
            f"device; got {described(told)}"
        )
    columns = {label(column): _listed(name, label(column), values, clients) for column, values in told.items()}
    return Table(name, columns, clients, lambda row: f"device {row}")


def _check_once(path: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"fleet.profile: {label(path)}, column {label(name)} is given twice; keep one of the two")


def _listed(name: str, column: str, values: Any, clients: int) -> Sequence[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != clients:
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        found = f"{len(values)} values" if listed else described(values)
        raise InputError(
            f"fleet.profile: {name}, column {column} must have {clients} numbers, one per device; got {found}"
        )
    return values


def _unreadable(path: str, error: Exception, wanted: str) -> InputError:
    return InputError(f"fleet.profile: {label(path)} cannot be read ({reason(error)}); give {wanted}")


def _checked(table: Table) -> dict[str, Column]:
    """As numbers within their bounds."""
    for name in table.columns:
        if name not in COLUMNS:
            raise unknown(f"fleet.profile: {table.source}, column", name, COLUMNS)
    if not table.columns or not table.rows:
        raise InputError(
            f"fleet.profile: {table.source} has no {'rows' if table.columns else 'columns'}; give one or more of the "
            f"columns {', '.join(COLUMNS)}, and one row per device"
        )
    if "seconds_per_sample" in table.columns and "speed_factor" in table.columns:
        raise InputError(
            f"fleet.profile: {table.source} has both seconds_per_sample and speed_factor; keep one of the two"
        )
    return {
        name: _numbers(table, name, [str(v) if isinstance(v, bool) else v for v in values])
        for name, values in table.columns.items()
    }


def _numbers(table: Table, name: str, values: list[Any]) -> Column:
    parts = [_some_numbers(table, name, values, first) for first in range(0, len(values), _AT_ONCE)]
    return np.concatenate(parts)


def _some_numbers(table: Table, name: str, values: list[Any], start: int) -> Column:
    """The numbers from row `start` on, a part at a time, because all the errors of a long column would be too many."""
    try:
        return np.array(COLUMNS[name].validate_python(values[start : start + _AT_ONCE]), dtype=np.float64)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        row = start + int(first["loc"][0])
        where = f"{table.source}, {table.place(row)}, column {name}"
        raise InputError(f"fleet.profile: {where} must be {must_be(first)}; got {shown(values[row])}") from None


def _dealt(columns: dict[str, Column], clients: int, seed: int) -> dict[str, Column]:
    rows = len(next(iter(columns.values())))
    if rows == clients:
        return columns
    drawn = streams.generator(seed, "fleet").choice(rows, clients, replace=rows < clients)
    return {name: values[drawn] for name, values in columns.items()}
