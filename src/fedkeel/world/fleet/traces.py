"""Devices as somebody measured them: the columns of a file, or of a function of the user's."""

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
from fedkeel.errors import InputError, label, shown, unknown
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
        with TextIOWrapper(open_file(Path(path)), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise InputError(
                        f"fleet.profile: {label(path)}, line {reader.line_num}: {len(row)} values are not accepted; "
                        f"accepted: {len(header)}, as many as the header has"
                    )
                lines.append(reader.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error, "a CSV file with a header") from None
    _check_once(path, header)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return Table(label(path), columns, len(rows), lambda row: f"line {lines[row]}")


def read_parquet(path: str) -> Table:
    """The same in a Parquet file, through pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"fleet.profile: {label(path)} is not accepted without pyarrow; accepted: pip install 'fedkeel[fleet]', or "
            "a file that ends in .csv"
        ) from None
    try:
        with open_file(Path(path)) as file:
            table = parquet.ParquetFile(file).read()
        values = [column.to_pylist() for column in table.columns]
    except Exception as error:  # a damaged file can fail in any way
        raise _unreadable(path, error, "a Parquet file") from None
    _check_once(path, table.column_names)
    columns = dict(zip(table.column_names, values, strict=True))
    return Table(label(path), columns, table.num_rows, lambda row: f"row {row + 1}")


def call_function(name: str, clients: int, seed: int) -> Table:
    """What the user's function says, a value for each device in every column."""
    told = usercode.call(name, "fleet.profile", {"clients": clients, "seed": seed})
    if not isinstance(told, Mapping):
        raise InputError(
            f"fleet.profile: {name} returned {type(told).__name__}; accepted: a mapping from names of columns to "
            f"{clients} numbers each"
        )
    columns = {label(column): _listed(name, label(column), values, clients) for column, values in told.items()}
    return Table(name, columns, clients, lambda row: f"device {row}")


def _check_once(path: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"fleet.profile: {label(path)}, column {label(name)}: it is given twice; accepted: once")


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
    return InputError(f"fleet.profile: {label(path)} cannot be read ({reason(error)}); accepted: {accepted}")


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
    parts = [_some_numbers(table, name, values, first) for first in range(0, len(values), _AT_ONCE)]
    return np.concatenate(parts)


def _some_numbers(table: Table, name: str, values: list[Any], start: int) -> Column:
    """Those from row `start` on: all the errors of a long column would be too many."""
    try:
        return np.array(COLUMNS[name].validate_python(values[start : start + _AT_ONCE]), dtype=np.float64)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        row = start + int(first["loc"][0])
        accepted = first["msg"].removeprefix("Input should be ").partition(", unable")[0]
        raise InputError(
            f"fleet.profile: {table.source}, {table.place(row)}, column {name}: {shown(values[row])} is not accepted; "
            f"accepted: {accepted}"
        ) from None


def _dealt(columns: dict[str, Column], clients: int, seed: int) -> dict[str, Column]:
    rows = len(next(iter(columns.values())))
    if rows == clients:
        return columns
    drawn = streams.generator(seed, "fleet").choice(rows, clients, replace=rows < clients)
    return {name: values[drawn] for name, values in columns.items()}
