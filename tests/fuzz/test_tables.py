"""Damaged tables, archives and images of the user's: they are read, or refused with a sentence."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedkeel import FederatedData, InputError
from fedkeel.data.settings import DatasetSettings
from tests.helpers.damage import damaged
from tests.helpers.tables import patients, write_csv

often = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def read_or_refused(make: Callable[[], FederatedData]) -> None:
    """Samples are numbers, or one line says what is wrong."""
    said = ""
    try:
        assert np.isfinite(make().train.x.numpy()).all()
    except InputError as error:
        said = str(error)
    assert "\n" not in said


def _csv(folder: Path) -> bytes:
    return write_csv(folder / "whole.csv", patients(12)).read_bytes()


def _parquet(folder: Path) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(patients(12)), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


def _npz(_: Path) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones((12, 2)), y=np.arange(12) % 2, client=np.arange(12) % 3)
    return buffer.getvalue()


@often
@given(data=st.data())
@pytest.mark.parametrize(
    ("name", "whole", "how"),
    [
        ("a.csv", _csv, {"target": "outcome", "client": "hospital", "missing": "mean"}),
        ("a.parquet", _parquet, {"target": "outcome", "client": "hospital", "missing": "mean"}),
        ("a.npz", _npz, {}),
    ],
)
def test_damaged_files_are_read_or_refused(tmp_path_factory, data, name, whole, how):
    folder = tmp_path_factory.mktemp("damaged")
    (folder / name).write_bytes(data.draw(damaged(whole(folder))))
    read_or_refused(lambda: FederatedData.from_settings(DatasetSettings(name=str(folder / name), **how)))


@often
@given(data=st.data())
def test_damaged_images_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("images")
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(buffer, "PNG")
    for kind in "ab":
        (folder / kind).mkdir()
        for number in range(3):
            (folder / kind / f"{number}.png").write_bytes(buffer.getvalue())
    (folder / "a" / "0.png").write_bytes(data.draw(damaged(buffer.getvalue())))
    read_or_refused(lambda: FederatedData.from_settings(DatasetSettings(name=f"{folder}/"), clients=1))


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.dates(),
    st.lists(st.integers(), max_size=2),
    st.binary(max_size=3),
)


@often
@given(
    st.integers(1, 8).flatmap(
        lambda rows: st.lists(st.lists(CELLS, min_size=rows, max_size=rows), min_size=2, max_size=3)
    ),
    st.sampled_from(["drop", "mean", "median", "constant", "error"]),
    st.sampled_from(["client", "federated"]),
)
def test_any_table_is_read_or_refused(columns, missing, statistics):
    table = dict(zip(("y", "a", "b"), columns, strict=False))
    how = {"missing": missing, "statistics": statistics, "clients": 2, "test": 0.5}
    read_or_refused(lambda: FederatedData.from_table(table, target="y", **how))
