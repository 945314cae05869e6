"""Traces of devices as they may reach us."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedkeel import InputError
from fedkeel.world.fleet.traces import COLUMNS, told_columns
from tests.helpers import promise
from tests.helpers.damage import damaged

often = settings(max_examples=60, suppress_health_check=list(HealthCheck))
CSV = b"speed_factor, uplink_mbps,dropout\n1.0,10,0\n2.5,20,0.1\n\n3,1e1,0.25\n"


def _parquet() -> bytes:
    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.table({"speed_factor": [1.0, 2.0, 3.0], "dropout": [0.0, 0.5, None]}), buffer)
    return buffer.getvalue().to_pybytes()


PARQUET = _parquet()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def told(profile: str) -> str:
    """Columns that can be used, or what is said of the file."""
    try:
        columns = told_columns(profile, 5, 0)
    except InputError as error:
        promise.check_message(str(error), ["fleet.profile"], [])
        promise.check_remedy(str(error))
        return str(error)
    assert columns.keys() <= COLUMNS.keys()
    assert all(column.shape == (5,) and np.isfinite(column).all() for column in columns.values())
    return ""


@often
@given(content=damaged(CSV) | st.binary(max_size=100))
def test_damaged_csv(folder: Path, content: bytes) -> None:
    (folder / "t.csv").write_bytes(content)
    told(str(folder / "t.csv"))


@often
@given(content=damaged(PARQUET))
def test_damaged_parquet(folder: Path, content: bytes) -> None:
    (folder / "t.parquet").write_bytes(content)
    told(str(folder / "t.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no columns"),
        (b"\n\n", "has no columns"),
        (b"speed_factor\n", "has no rows"),
        (b"\0", "column: '\\x00' is not known"),
        (b"speed_factor\n\0\n", "line 2, column speed_factor must be a number; got '\\x00'"),
        (b"speed_factor\n1\xff\n", "cannot be read ('utf-8' codec"),
        (b"speed_factor\n" + b"9" * 200_000, "field larger than field limit"),
        (b"speed_factor\n" + b"9" * 100_000, "'99999"),
        (b"x" * 100_000, "column: 'xxx"),
        (b",".join(b"c%d" % i for i in range(20_000)), "column: 'c0' is not known"),
        (b"dropout," * 20_000, "column dropout is given twice"),
        (b"speed_factor\n" + b"x\n" * 50_000, "line 2, column speed_factor must be a number; got 'x'"),
        (
            b"speed_factor\n" + b"1\n" * 5000 + b"-1\n",
            "line 5002, column speed_factor must be greater than 0; got '-1'",
        ),
        (b"speed_factor\n1e999\n", "a finite number"),
        (b"speed_factor\nnan\n", "a finite number"),
        (b"speed_factor\nTrue\n", "must be a number; got 'True'"),
        (b'"speed_factor\n1\n', "column: 'speed_factor\\n1' is not known"),
        (b"speed_factor,speed_factor\n1,2\n", "is given twice"),
        (b"speed_factor,\n1,2\n", "column: '' is not known"),
        (b"a\rb\rc", "column: 'a' is not known"),
    ],
)
def test_odd_csv(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert said in told(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "has no columns"),
        ({"speed_factor": pa.array([], pa.float64())}, "has no rows"),
        ({"speed_factor": pa.array([None, 1.0])}, "row 1, column speed_factor must be a number; got None"),
        ({"speed_factor": pa.array([[1.0], [2.0]])}, "row 1, column speed_factor must be a number; got [1.0]"),
        ({"speed_factor": pa.array([{"a": 1}])}, "{'a': 1}"),
        ({"speed_factor": pa.array([b"\xff"])}, "b'\\xff'"),
        ({"speed_factor": pa.array([True])}, "must be a number; got 'True'"),
        ({"speed_factor": pa.array([10**18], pa.timestamp("ns"))}, "speed_factor"),
        ({"speed_factor": pa.array([1], pa.decimal128(3))}, ""),
        ({"speed_factor": pa.array(["1"]).dictionary_encode()}, ""),
    ],
)
def test_odd_parquet(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    path = str(tmp_path / "t.parquet")
    parquet.write_table(pa.table(columns), path)
    assert said in told(path) if said else not told(path)


def test_parquet_with_a_column_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    column = pa.array([1.0])
    parquet.write_table(pa.Table.from_arrays([column, column], ["dropout", "dropout"]), path)
    assert "column dropout is given twice" in told(path)


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_what_is_no_file(tmp_path: Path, end: str) -> None:
    (tmp_path / f"folder{end}").mkdir()
    os.mkfifo(tmp_path / f"pipe{end}")
    for name, said in {
        f"folder{end}": "Is a directory",
        f"pipe{end}": "named pipe",
        f"none{end}": "No such file",
        f"a\0b{end}": "no file can have such a name",
        f"{'x' * 5000}{end}": "File name too long",
    }.items():
        assert said in told(str(tmp_path / name))


class Odd:
    def tolist(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "must return a mapping from names of columns to 5 numbers each, one per device; got None"),
        ([], "must return a mapping from names of columns to 5 numbers each, one per device; got ("),
        ({}, "has no columns"),
        ({1: [1] * 5}, "column: '1' is not known"),
        ({"speed_factor": 3}, "must have 5 numbers, one per device; got 3"),
        ({"speed_factor": "12345"}, "must have 5 numbers, one per device; got '12345'"),
        ({"speed_factor": [1, 2]}, "must have 5 numbers, one per device; got 2 values"),
        ({"speed_factor": [None] * 5}, "device 0, column speed_factor must be a number; got None"),
        ({"speed_factor": [10**400] * 5}, "device 0"),
        ({"speed_factor": [10**5000] * 5}, "device 0"),
        ({"speed_factor": np.ones((5, 2))}, "device 0, column speed_factor must be a number; got [1.0, 1.0]"),
        ({"speed_factor": np.array(3.0)}, "must have 5 numbers, one per device; got 3.0"),
        ({"speed_factor": Odd()}, "must have 5 numbers, one per device; got 3"),
        ({"speed_factor": np.array([1, 2, 3, 4, np.inf])}, "device 4"),
        ({"speed_factor": [1j] * 5}, "; got 1j"),
        ({"speed_factor": np.ones(5)}, ""),
    ],
)
def test_what_a_function_returns(monkeypatch: pytest.MonkeyPatch, returned: object, said: str) -> None:
    monkeypatch.setattr("fedkeel.config.usercode.call", lambda *_: returned)
    assert said in told("my:devices") if said else not told("my:devices")
