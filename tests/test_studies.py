"""The ready experiments and studies: every file loads, and every study makes a table."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedkeel import Experiment
from tests.helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import studies


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_loads(path: Path) -> None:
    assert Experiment.load(path).rounds >= 30


@pytest.mark.slow
@pytest.mark.parametrize("name", studies.names())
def test_every_run_of_every_study_is_an_experiment_of_its_own(name: str, tmp_path: Path) -> None:
    study = studies.Study.read(name)
    cases = study.cases(2)
    assert study.reference is None or study.reference in study.variants
    assert len({case.experiment().to_yaml() for case in cases}) == len(cases)
    assert len({case.folder(tmp_path) for case in cases}) == len(cases)


@pytest.mark.slow
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
    first = next(row for row in rows if row["scene"] == "one")
    assert (first["rounds_to_target"], first["updates_to_target"], first["updates"]) == (1, 2, 4)
    assert 0 < first["seconds_to_target"] < first["virtual_seconds"]
    assert first["bytes_to_target"] == (first["bytes_up"] + first["bytes_down"]) / 2
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


def row(variant: str, seed: int, seconds: float | None, end: float = 900.0, accuracy: float = 0.7) -> dict[str, Any]:
    told = {"scene": "", "variant": variant, "seed": seed, "accuracy": accuracy, "report": {}, "virtual_seconds": end}
    reached = {"updates_to_target": seconds and seconds / 10, "bytes_to_target": seconds and seconds * 2e6}
    return {**told, "seconds_to_target": seconds, **reached}


def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> studies.Study:
    (tmp_path / "timed.yaml").write_text(
        "{about: a test, base: base.yaml, target: 0.7, last: 1, over: time, reference: plain, seeds: {NAME: 1}, "
        "variants: {plain: [], fast: [], NAME: [], never: []}}\n".replace("NAME", '"one, late"')
    )
    monkeypatch.setattr(studies, "STUDIES", tmp_path)
    return studies.Study.read("timed")


def test_a_study_over_time_tells_virtual_seconds_uploads_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = timed(tmp_path, monkeypatch)
    rows = [row("plain", 0, 400.0), row("plain", 1, None), row("fast", 0, 50.0), row("fast", 1, 200.0)]
    rows += [row("one, late", 0, 500.0, accuracy=0.712), row("never", 0, 100.0), row("never", 1, None)]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in studies.table(study, rows).splitlines()]
    assert lines[0][1:] == [
        "final accuracy",
        "final accuracy, against plain",
        "virtual seconds to 70%",
        "uploads to 70%",
        "MB to 70%, up and down",
        "times as fast as plain, least",
    ]
    assert lines[2:] == [
        ["plain", "70.00 ± 0.00", "", "400, -", "40, -", "800, -", ""],
        ["fast", "70.00 ± 0.00", "+0.00 ± 0.00", "50, 200", "5, 20", "100, 400", "> 4.50"],
        ["one, late", "71.20", "+1.20", "500", "50", "1000", "0.80"],
        ["never", "70.00 ± 0.00", "+0.00 ± 0.00", "100, -", "10, -", "200, -", "-"],
    ]


def test_variants_with_fewer_seeds_and_single_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = timed(tmp_path, monkeypatch)
    assert [(case.variant, case.seed) for case in study.cases(2)] == [
        *(("plain", 0), ("fast", 0), ("one, late", 0), ("never", 0)),
        *(("plain", 1), ("fast", 1), ("never", 1)),
    ]
    assert study.chosen("") == []
    assert study.chosen("fast, never") == ["fast", "never"]
    assert study.chosen("one, late") == ["one, late"]
    assert [case.variant for case in study.cases(2, study.chosen("one, late"))] == ["one, late"]
    with pytest.raises(SystemExit, match="no variant slow; there are: plain; fast"):
        study.chosen("fast,slow")


def test_the_first_evaluation_at_the_target_counts() -> None:
    history = [
        {"round": n, "virtual_seconds": 7.5 * n, "updates": 3 * n, "bytes_up": 10 * n, "bytes_down": n, "accuracy": a}
        for n, a in ((2, 0.5), (4, 0.7), (6, 0.6), (8, 0.8))
    ]
    keys = ("rounds_to_target", "seconds_to_target", "updates_to_target", "bytes_to_target")
    assert studies.to_target(history, 0.7) == dict(zip(keys, (4, 30.0, 12, 44), strict=True))
    assert studies.to_target(history, 0.9) == dict.fromkeys(keys)
