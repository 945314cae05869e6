"""Devices from files and from functions: what they become, and how each bad cell is refused."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pytest
import torch
from pyarrow import parquet

from fedkeel import InputError
from fedkeel.world.fleet import traces
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings
from fedkeel.world.fleet.traces import COLUMNS, told_columns

TRACE = {
    "speed_factor": [1.0, 2.5, 8.0],
    "uplink_mbps": [1.0, 2.0, 4.0],
    "downlink_mbps": [8.0, 16.0, 80.0],
    "latency_seconds": [0.0, 0.5, 1.0],
    "dropout": [0.0, 0.25, 0.5],
    "availability": [1.0, 0.5, 0.25],
    "availability_period": [10.0, 20.0, 40.0],
    "availability_phase": [0.0, 5.0, 50.0],
}
ALL = np.arange(3)


def csv_text(columns: dict[str, Any]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


def write_csv(path: Path, columns: dict[str, Any]) -> str:
    path.with_suffix(".csv").write_text(csv_text(columns))
    return str(path.with_suffix(".csv"))


def write_parquet(path: Path, columns: dict[str, Any]) -> str:
    parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"))
    return str(path.with_suffix(".parquet"))


WRITERS = [write_csv, write_parquet]
Writer = Callable[[Path, dict[str, Any]], str]


def fleet(profile: str, clients: int = 3, epochs: int = 2, seed: int = 0, **settings: Any) -> Fleet:
    return Fleet.of(FleetSettings(profile=profile, **settings), np.full(clients, 100), epochs, seed)


@pytest.mark.parametrize("write", WRITERS)
def test_every_column_is_used(write: Writer, tmp_path: Path) -> None:
    devices = fleet(write(tmp_path / "trace", TRACE), bandwidth_divisor=2, dropout=0.9, latency_seconds=7)
    assert devices.train_seconds(ALL, np.full(3, 200)).tolist() == [10, 25, 80]
    assert devices.upload_seconds(ALL, 1_000_000).tolist() == [16, 8, 4]
    assert devices.download_seconds(ALL, 1_000_000).tolist() == [2, 1.5, 1.2]
    assert devices.dropout.tolist() == TRACE["dropout"]
    assert devices.available(16.0) is not None
    # On always; in [5, 15) of 20 s; in [50, 60), which is [10, 20), of 40 s.
    assert [np.flatnonzero(devices.available(t)).tolist() for t in (1.0, 5.0, 12.0, 16.0, 30.0, 55.0)] == [
        [0], [0, 1], [0, 1, 2], [0, 2], [0, 1], [0, 2],
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [2, 3, 5, 9])
def test_csv_and_parquet_are_the_same(rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(rows)
    columns = {name: rng.uniform(0.01, 0.99, rows).tolist() for name in COLUMNS if name != "speed_factor"}
    one, other = (fleet(write(tmp_path / "trace", columns), 5) for write in WRITERS)
    for name, value in vars(one).items():
        assert np.array_equal(getattr(other, name), value), name


def test_seconds_per_sample_are_absolute(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace", {"seconds_per_sample": [0.5, 1, 2]})
    devices = fleet(path, fastest_job_seconds=77)
    assert devices.train_seconds(ALL, np.array([2, 3, 4])).tolist() == [1, 3, 8]


def test_fixed_jobs_take_factors_and_refuse_seconds_for_a_sample(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace", {"speed_factor": [1, 3, 0.5]})
    assert fleet(path, job="fixed").train_seconds(ALL, np.full(3, 200)).tolist() == [10, 30, 5]
    path = write_csv(tmp_path / "trace", {"seconds_per_sample": [0.5, 1, 2]})
    with pytest.raises(
        InputError, match=r"trace\.csv has the column seconds_per_sample, .*; use the column speed_factor "
    ):
        fleet(path, job="fixed")


def test_a_factor_multiplies_the_settings_seconds_per_sample(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace", {"speed_factor": [1, 3, 0.5]})
    assert fleet(path, seconds_per_sample=0.25).train_seconds(ALL, np.full(3, 8)).tolist() == [2, 6, 1]


def test_what_is_missing_comes_from_the_settings(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace", {"dropout": [0, 0.1, 0.2]})
    settings = {"uplink_mbps": 1, "latency_seconds": 3, "availability": 0.5, "availability_period": 60}
    devices, plain = fleet(path, **settings), fleet("uniform", **settings)
    assert devices.dropout.tolist() == [0, 0.1, 0.2]
    for name in ("seconds", "uplink", "downlink", "latency", "availability", "period", "phase"):
        assert getattr(devices, name).tolist() == getattr(plain, name).tolist()


def test_as_many_rows_as_devices_are_taken_in_order_and_others_drawn(tmp_path: Path) -> None:
    values = [float(n) for n in range(1, 41)]
    path = write_csv(tmp_path / "trace", {"speed_factor": values})
    assert told_columns(path, 40, 0)["speed_factor"].tolist() == values
    few, many = (told_columns(path, n, 0)["speed_factor"].tolist() for n in (30, 400))
    assert len({*few}) == 30  # without replacement
    assert {*few} < {*values}
    assert few != sorted(few)
    assert len(many) == 400
    assert {*many} == {*values}
    assert (
        few == told_columns(path, 30, 0)["speed_factor"].tolist() != told_columns(path, 30, 1)["speed_factor"].tolist()
    )


def test_rows_are_drawn_whole(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace", {"speed_factor": [1, 2, 3], "uplink_mbps": [10, 20, 30]})
    drawn = told_columns(path, 50, 4)
    assert (drawn["uplink_mbps"] == 10 * drawn["speed_factor"]).all()


def test_spaces_blank_lines_quotes_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text('\ufeffspeed_factor , "dropout"\r\n 1.5, "0.25"\r\n\r\n2e0,0\r\n')
    columns = told_columns(str(path), 2, 0)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "speed_factor": [1.5, 2],
        "dropout": [0.25, 0],
    }


BAD_CSV: list[tuple[str, list[str]]] = [
    ("dropout\n0\n\n1\n", ["line 4, column dropout must be less than 1; got '1'"]),
    ("dropout\n-0.1\n", ["line 2, column dropout must be at least 0; got '-0.1'"]),
    ("availability\n0\n", ["line 2, column availability must be greater than 0; got '0'"]),
    ("availability\n1.01\n", ["column availability must be at most 1; got '1.01'"]),
    ("availability_period\n0\n", ["column availability_period must be at least 0.001; got '0'"]),
    ("availability_phase\n-1\n", ["column availability_phase must be at least 0; got '-1'"]),
    ("seconds_per_sample\n0\n", ["column seconds_per_sample must be greater than 0; got '0'"]),
    ("speed_factor\n0\n", ["column speed_factor must be greater than 0; got '0'"]),
    ("uplink_mbps\n1\n2\n0\n", ["line 4, column uplink_mbps must be at least 1e-06; got '0'"]),
    ("downlink_mbps\ninf\n", ["column downlink_mbps must be a finite number; got 'inf'"]),
    ("latency_seconds\nnan\n", ["column latency_seconds must be a finite number; got 'nan'"]),
    ("dropout,latency_seconds\n0.5,soon\n", ["line 2, column latency_seconds must be a number; got 'soon'"]),
    ('dropout\n""\n', ["line 2, column dropout must be a number; got ''"]),
    ("droput\n0\n", ["column: 'droput' is not known; did you mean dropout?"]),
    ("0.5\n0.5\n", ["column: '0.5' is not known; choose one of availability, availability_period, "]),
    ("dropout,dropout\n0,0\n", ["column dropout is given twice; keep one of the two"]),
    ("dropout,availability\n0,1\n0\n", ["line 3 must have as many values as the header, 2; got 1"]),
    ("dropout\n0,1\n", ["line 2 must have as many values as the header, 1; got 2"]),
    ("dropout\n", ["has no rows; give ", "one row per device"]),
    ("", ["has no columns", "one or more of the columns seconds_per_sample"]),
    ("speed_factor,seconds_per_sample\n1,1\n", ["both seconds_per_sample and speed_factor; keep one of the two"]),
]


@pytest.mark.parametrize(("text", "words"), BAD_CSV)
def test_bad_cells_are_refused_with_file_line_and_column(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError) as told:
        fleet(str(path))
    for word in ["fleet.profile: ", str(path), *words]:
        assert word in str(told.value)


BAD_PARQUET: list[tuple[dict[str, Any], list[str]]] = [
    ({"dropout": [0.5, 1.0]}, ["row 2, column dropout must be less than 1; got 1.0"]),
    ({"dropout": [0.5, None]}, ["row 2, column dropout must be a number; got None"]),
    ({"dropout": [float("nan")]}, ["row 1, column dropout must be a finite number; got nan"]),
    ({"dropout": [False]}, ["row 1, column dropout must be a number; got 'False'"]),
    ({"uplink_mbps": ["fast"]}, ["row 1, column uplink_mbps must be a number; got 'fast'"]),
    ({"uplink_mbps": [[1.0]]}, ["row 1, column uplink_mbps must be a number; got [1.0]"]),
    ({"device": [1]}, ["column: 'device' is not known; choose one of availability, availability_period, "]),
    ({"dropout": pyarrow.array([], type=pyarrow.float64())}, ["has no rows"]),
    ({}, ["has no columns"]),
]


@pytest.mark.parametrize(("columns", "words"), BAD_PARQUET)
def test_bad_cells_of_parquet_likewise(columns: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "trace", columns)
    with pytest.raises(InputError) as told:
        fleet(path)
    for word in ["fleet.profile: ", path, *words]:
        assert word in str(told.value)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00not this", "folder"])
def test_files_that_cannot_be_read_are_refused(name: str, content: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"fleet.profile: .*{name} cannot be read \(.+\); give a readable (CSV|Parquet) file"
    ):
        fleet(str(path))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "trace", TRACE)
    for module in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"trace.parquet cannot be read without pyarrow; .*fedkeel\[fleet\].*\.csv"):
        traces.read_parquet(path)


@pytest.mark.parametrize("write", WRITERS)
def test_a_divisor_needs_a_link_in_the_trace_or_the_settings(write: Writer, tmp_path: Path) -> None:
    without = write(tmp_path / "without", {"speed_factor": [1, 2, 3]})
    with pytest.raises(InputError, match=r"fleet.bandwidth_divisor=10 .*; .*fleet.uplink_mbps"):
        fleet(without, bandwidth_divisor=10)
    assert fleet(without, bandwidth_divisor=10, uplink_mbps=1).upload_seconds(ALL, 125_000) == pytest.approx([10] * 3)
    links = write(tmp_path / "links", {"downlink_mbps": [1, 2, 4]})
    assert fleet(links, bandwidth_divisor=10).download_seconds(ALL, 125_000) == pytest.approx([10, 5, 2.5])


FUNCTIONS = """
import numpy as np, torch
def good(clients, seed): return {"speed_factor": range(1, clients + 1), "dropout": np.full(clients, seed / 10)}
def tensor(clients, seed): return {"speed_factor": torch.ones(clients)}
def short(clients, seed): return {"dropout": [0.5] * (clients - 1)}
def one(clients, seed): return {"dropout": 0.5}
def word(clients, seed): return {"dropout": "abc"}
def nan(clients, seed): return {"dropout": [0.5, float("nan"), 0.5]}
def negative(clients, seed): return {"uplink_mbps": np.array([5, 1, -1])}
def wrong(clients, seed): return {"speed_factors": [1] * clients}
def nothing(clients, seed): return None
def empty(clients, seed): return {}
def fails(clients, seed): raise KeyError("oh")
def leaves(clients, seed): raise SystemExit(3)
def needs(clients): return {}
"""
BAD_FUNCTIONS = {
    "short": ["column dropout must have 3 numbers, one per device; got 2 values"],
    "one": ["column dropout must have 3 numbers, one per device; got 0.5"],
    "word": ["column dropout must have 3 numbers, one per device; got 'abc'"],
    "nan": ["device 1, column dropout must be a finite number; got nan"],
    "negative": ["device 2, column uplink_mbps must be at least 1e-06; got -1"],
    "wrong": ["column: 'speed_factors'", "did you mean speed_factor"],
    "nothing": ["must return a mapping from names of columns to 3 numbers each", "; got None"],
    "empty": ["has no columns"],
    "fails": ["failed (fleet_functions.py, line 13, in fails: KeyError: 'oh')"],
    "leaves": ["failed (fleet_functions.py, line 14, in leaves: SystemExit: 3)"],
    "needs": ["failed (TypeError", "seed"],
    "absent": ["cannot be imported (AttributeError", "; ", "module:function"],
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "fleet_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "fleet_functions"
    sys.modules.pop("fleet_functions", None)


def test_a_function_says_what_devices_are_like(module: str) -> None:
    devices = fleet(f"{module}:good", seed=4)
    assert devices.train_seconds(ALL, np.full(3, 200)).tolist() == [10, 20, 30]
    assert devices.dropout.tolist() == [0.4] * 3
    assert fleet(f"{module}:tensor").seconds.tolist() == torch.full((3,), 10.0).tolist()


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_bad_functions_are_refused(name: str, module: str) -> None:
    with pytest.raises(InputError) as told:
        fleet(f"{module}:{name}")
    for word in ["fleet.profile: ", f"{module}:{name}", *BAD_FUNCTIONS[name]]:
        assert word in str(told.value)
