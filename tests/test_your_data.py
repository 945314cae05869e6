"""docs/your-data.md: its code run and its commands carried out, in an empty folder, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedkeel import Experiment
from fedkeel.data.settings import DatasetSettings
from tests.helpers import pages
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8")
BLOCKS = pages.blocks(PAGE)
EXTRA = "import datasets"
"""Code that needs an extra has this line."""


@pytest.mark.slow
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    pages.carried_out(BLOCKS, tmp_path, lambda code: EXTRA not in code)
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {"patients-linear-fedavg-seed0", "samples-linear-fedavg-seed0", "scans-linear-fedavg-seed0"} <= runs
    assert (tmp_path / "patients-column.png").exists()


@pytest.mark.extras
def test_the_page_runs_with_its_extras(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    pages.carried_out(BLOCKS, tmp_path)
    assert (tmp_path / "saved").is_dir()


def test_every_setting_that_the_page_names_exists() -> None:
    named = {*re.findall(r"`dataset\.(\w+)", PAGE)}
    assert named <= {*DatasetSettings.model_fields}
    assert {*re.findall(r"`partition\.(\w+)", PAGE)} == {"kind"}
    assert named >= {*DatasetSettings.model_fields} - {"name", "train_limit", "test_limit", "augment", "target_type"}


def test_what_the_page_writes_in_flow_style_is_read() -> None:
    made = Experiment.load(
        overrides=[
            "dataset=a.csv",
            'dataset.missing={age: median, died: drop, "*": error}',
            "partition={kind: column, min_samples: 50}",
        ]
    )
    assert made.dataset.rule("age") == "median"
    assert made.partition.min_samples == 50  # type: ignore[union-attr]
