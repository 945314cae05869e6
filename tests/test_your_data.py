"""docs/your-data.md: its code run and its commands carried out, in an empty folder, in their order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedkeel import Experiment
from fedkeel.data.settings import DatasetSettings
from tests.helpers import commands
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
EXTRA = "import datasets"
"""Code that needs an extra has this line."""


def carried_out(place: Path, extra: bool) -> str:
    """What the page's code and commands print: first all code, then the commands."""
    code = [text for kind, text in BLOCKS if kind == "python" and (extra or EXTRA not in text)]
    (place / "page.py").write_text("\n".join(code))
    done = subprocess.run([sys.executable, "page.py"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [done.stdout]
    for line in "".join(text for kind, text in BLOCKS if kind == "bash").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "fedkeel"
        ran = commands.fedkeel(*arguments, cwd=place)
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        printed.append(ran.stdout)
    return "\n".join(printed)


@pytest.mark.slow
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    printed = carried_out(tmp_path, extra=False)
    promised = [
        line.partition("  # ")[2] for _, text in BLOCKS for line in text.splitlines() if line.startswith("print(")
    ]
    for line in filter(None, promised):
        assert line in printed
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {"patients-linear-fedavg-seed0", "samples-linear-fedavg-seed0", "scans-linear-fedavg-seed0"} <= runs
    assert (tmp_path / "patients-column.png").exists()


@pytest.mark.extras
def test_the_page_runs_with_its_extras(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    carried_out(tmp_path, extra=True)
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
