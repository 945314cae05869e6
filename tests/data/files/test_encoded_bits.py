"""What tables and arrays become, bit by bit: a change of how statistics are computed must not change a run."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from fedkeel.data.federated import FederatedData
from fedkeel.data.files.arrays import gather
from fedkeel.data.files.build import build
from fedkeel.data.files.settings import FileSettings
from tests.helpers.tables import patients

TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "standard mean": ("adae54488be2f323", {"missing": "mean"}),
    "standard median": ("c03e899b67c7648a", {"missing": "median", "indicator": True, "validation": 0.1}),
    "unit constant": ("df81a24291ae6524", {"missing": "constant", "fill": 3.5, "normalise": "unit", "indicator": True}),
    "none median": ("a68a9dd28423ac72", {"missing": "median", "normalise": "none", "encode": "codes"}),
    "drop": ("ccb99488814de84f", {"missing": "drop", "categorical": ["pressure"]}),
    "own median": ("03a1e1c8869397fd", {"missing": "median", "statistics": "client", "indicator": True}),
    "own unit": ("1953026b1aea0818", {"missing": "mean", "statistics": "client", "normalise": "unit"}),
}
ARRAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "standard": ("5f0e9a6af07a11ad", {}),
    "unit": ("c127d2b9ff4e02bc", {"normalise": "unit"}),
    "none": ("4728b979d259e72a", {"normalise": "none"}),
    "own": ("2bada46939c0d5d8", {"statistics": "client"}),
}


def digest(data: FederatedData) -> str:
    """Of all samples, their order and their owners."""
    found = hashlib.blake2b(digest_size=8)
    for part in (data.train, data.test, data.validation):
        if part is not None:
            found.update(part.x.numpy().tobytes() + part.y.numpy().tobytes())
    for rows in (data.assignment, data.test_rows, data.validation_rows):
        if rows is not None:
            found.update(rows.indices.tobytes() + rows.offsets.tobytes())
    found.update(repr((data.feature_names, data.class_names, data.client_names)).encode())
    return found.hexdigest()


@pytest.mark.parametrize("how", TABLES)
def test_tables(how: str) -> None:
    expected, settings = TABLES[how]
    data = FederatedData.from_table(patients(), target="outcome", client="hospital", seed=2, **settings)
    assert digest(data) == expected


@pytest.mark.parametrize("how", ARRAYS)
def test_images(how: str) -> None:
    expected, settings = ARRAYS[how]
    rng = np.random.default_rng(5)
    x, whose = rng.normal(3, 2, (40, 3, 4, 4)), np.arange(40) % 3
    held = {"x": x, "y": np.arange(40) % 2, "client": whose}
    how_ = FileSettings(name="images.npz", **settings)
    data = FederatedData(**vars(build(gather(held, how_, "here", "images"), how_, None, 3, 2)))
    assert digest(data) == expected
