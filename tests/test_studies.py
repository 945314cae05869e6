"""The ready experiments and studies: every file loads, and every study makes a table."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import studies  # noqa: E402


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_loads(path: Path) -> None:
    assert Experiment.load(path).rounds >= 30


@pytest.mark.parametrize("name", studies.names())
def test_every_run_of_every_study_is_an_experiment_of_its_own(name: str, tmp_path: Path) -> None:
    study = studies.Study.read(name)
    cases = study.cases(2)
    assert study.reference is None or study.reference in study.variants
    assert len({case.experiment().to_yaml() for case in cases}) == len(cases)
    assert len({case.folder(tmp_path) for case in cases}) == len(cases)


def test_a_study_runs_once_and_makes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.yaml").write_text(
        "{model: linear, dataset: {train_limit: 60, test_limit: 50}, clients: 3, per_round: 2, rounds: 2, "
        "executor: serial, local: {epochs: 2}}\n"
    )
    (tmp_path / "tiny.yaml").write_text(
        "{about: a test, base: base.yaml, target: 0.01, last: 1, reference: plain, scenes: {one: [], two: [rounds=3]}, "
        "variants: {plain: [], agg: [algorithm=fedagg], wild: [model=mlp-400, local.lr=1.0e+30]}}\n"
    )
    for name in ("STUDIES", "RESULTS", "PAGES"):
        monkeypatch.setattr(studies, name, tmp_path)
    study = studies.Study.read("tiny")
    for _ in range(2):
        for case in study.cases(2):
            studies.run_one((case, tmp_path / "out"))
    (tmp_path / "page.md").write_text("before\n<!-- study tiny -->\nold\n<!-- end of tiny -->\nafter\n")
    rows: list[dict[str, Any]] = studies.collect(study, tmp_path / "out", 2)
    studies.publish(study, rows)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- study tiny -->\n")
    assert page.endswith("<!-- end of tiny -->\nafter\n")
    assert "old" not in page
    assert (
        page.count("| plain |")
        == page.count("| agg |")
        == page.count("| wild | stopped: seed 0: training diverged")
        == 2
    )
    gaps = [a["accuracy"] - b["accuracy"] for a, b in zip(rows_of(rows, "agg"), rows_of(rows, "plain"), strict=True)]
    assert studies.cell(gaps, sign=True) in page


def rows_of(rows: list[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["scene"], row["variant"]) == ("one", variant)]
