"""Devices as somebody measured them: the columns of a file, or of a function of the user's."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedkeel import streams, usercode
from fedkeel.errors import InputError, unknown
from fedkeel.fleet.generators import Column
from fedkeel.fleet.settings import Chance, Factor, Latency, Mbps, OnShare, Period, Seconds

_FINITE = ConfigDict(allow_inf_nan=False)
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
"""What a trace may hold, in the bounds of the settings of the same names."""


@dataclass(frozen=True)
class Table:
    """Columns as they were found, and where a row of them stands."""

    source: str
    columns: Mapping[str, Sequence[Any]]
    rows: int
    place: Callable[[int], str]


def told_columns(profile: str, clients: int, seed: int) -> dict[str, Column]:
    """Columns [N] of a trace or of `module:function`.

    Where a file has not as many rows as there are devices, these draw rows at random: each at most once if there are
    enough.
    """
    if profile.endswith(".csv"):
        return _dealt(_checked(read_csv(profile)), clients, seed)
    if profile.endswith(".parquet"):
        return _dealt(_checked(read_parquet(profile)), clients, seed)
    return _checked(call_function(profile, clients, seed))


def read_csv(path: str) -> Table:
    """A header and a line for each device."""
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise InputError(
                        f"fleet.profile: {path}, line {reader.line_num}: {len(row)} values are not accepted; accepted: "
                        f"{len(header)}, as many as the header has"
                    )
                lines.append(reader.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error, "a CSV file with a header") from None
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"fleet.profile: {path}, column {name}: stands twice; accepted: once")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return Table(path, columns, len(rows), lambda row: f"line {lines[row]}")


def read_parquet(path: str) -> Table:
    """The same in a Parquet file, through pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            f"fleet.profile: {path} is not accepted without pyarrow; accepted: pip install 'fedkeel[fleet]', or a file "
            "that ends in .csv"
        ) from None
    try:
        table = parquet.ParquetFile(path).read()
    except (OSError, ArrowException) as error:
        raise _unreadable(path, error, "a Parquet file") from None
    columns = {name: column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)}
    return Table(path, columns, table.num_rows, lambda row: f"row {row + 1}")


def call_function(name: str, clients: int, seed: int) -> Table:
    """What the user's function says, a value for each device in every column."""
    told = usercode.call(name, "fleet.profile", {"clients": clients, "seed": seed})
    if not isinstance(told, Mapping):
        raise InputError(
            f"fleet.profile: {name} returned {type(told).__name__}; accepted: a mapping from names of columns to "
            f"{clients} numbers each"
        )
    columns = {str(column): _listed(name, str(column), values, clients) for column, values in told.items()}
    return Table(name, columns, clients, lambda row: f"device {row}")


def _listed(name: str, column: str, values: Any, clients: int) -> Sequence[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != clients:
        found = f"{len(values)} values" if isinstance(values, Sequence) else f"a {type(values).__name__}"
        raise InputError(
            f"fleet.profile: {name}, column {column}: {found} is not accepted; accepted: {clients} numbers, one for "
            "each device"
        )
    return values


def _unreadable(path: str, error: Exception, accepted: str) -> InputError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return InputError(f"fleet.profile: {path} cannot be read ({reason}); accepted: {accepted}")


def _checked(table: Table) -> dict[str, Column]:
    """As numbers within their bounds."""
    for name in table.columns:
        if name not in COLUMNS:
            raise unknown(f"fleet.profile: {table.source}, column", name, COLUMNS)
    if not table.columns or not table.rows:
        raise InputError(
            f"fleet.profile: {table.source} has no {'rows' if table.columns else 'columns'}; accepted: one or more of "
            f"the columns {', '.join(COLUMNS)}, and a row for each device"
        )
    if "seconds_per_sample" in table.columns and "speed_factor" in table.columns:
        raise InputError(
            f"fleet.profile: {table.source} has both seconds_per_sample and speed_factor; accepted: one of them"
        )
    return {
        name: _numbers(table, name, [str(v) if isinstance(v, bool) else v for v in values])
        for name, values in table.columns.items()
    }


def _numbers(table: Table, name: str, values: list[Any]) -> Column:
    try:
        return np.array(COLUMNS[name].validate_python(values), dtype=np.float64)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        row = int(first["loc"][0])
        accepted = first["msg"].removeprefix("Input should be ").partition(", unable")[0]
        raise InputError(
            f"fleet.profile: {table.source}, {table.place(row)}, column {name}: {values[row]!r} is not accepted; "
            f"accepted: {accepted}"
        ) from None


def _dealt(columns: dict[str, Column], clients: int, seed: int) -> dict[str, Column]:
    rows = len(next(iter(columns.values())))
    if rows == clients:
        return columns
    drawn = streams.generator(seed, "fleet").choice(rows, clients, replace=rows < clients)
    return {name: values[drawn] for name, values in columns.items()}
