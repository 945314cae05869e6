"""The page of a run on real machines: sites by their names, the clock of the server, and how to repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkeel.record.runs import RunRecord
from fedkeel.report.page.digest import digest
from fedkeel.study.adhoc import gather
from tests.helpers import deployed
from tests.helpers.studies import row, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two of three sites, to which a data set was dealt out."""
    folder = tmp_path_factory.mktemp("sites")
    app = deployed.project(folder / "app", deploy={"wait_for": 2}, rounds=2)
    with deployed.own_modules(app):
        handlers = deployed.silos(app)
    del handlers[2]
    deployed.deployed(app, folder / "run", deployed.Loopback(handlers))
    return folder / "run"


def test_a_run_on_real_machines_is_told_as_one(run: Path) -> None:
    told = digest(gather([run]))
    assert told["clock"] == "wall"
    assert told["command"] == told["settings"][0]["command"] == "fedkeel deploy server APP --out NEW-FOLDER"
    (found,) = told["sites"]
    assert [each[0] for each in found["sites"]] == ["site-0", "site-1", "site-2"]
    assert [each[2] for each in found["sites"]] == [2, 0, 2]
    assert found["missing"] == ["no update came from site-1"]
    assert told["figures"]["tested_by"] is None  # the server did
    sizes = [each[1] for each in found["sites"] if each[1] is not None]
    (samples,) = told["labels"]
    assert (samples["title"], samples["untold"]) == ("fashion-mnist-mini", True)
    assert (samples["clients"], samples["least"], samples["most"]) == (2, min(sizes), max(sizes))
    assert sorted(told["jobs"][0]["devices"]["names"]) == ["site-0", "site-2"]
    assert sorted(told["timelines"]["runs"][0]["names"]) == ["site-0", "site-2"]
    assert RunRecord.read(run).label == "fedavg, 3 sites, seed 0"


def test_a_stopped_run_says_how_to_go_on(run: Path) -> None:
    summary = run / "summary.json"
    kept = summary.read_text()
    summary.unlink()
    try:
        told = digest(gather([run]))
    finally:
        summary.write_text(kept)
    assert told["way_on"] == f"fedkeel deploy server APP --out {run}, or fedkeel deploy local APP --out {run}"


def test_simulations_have_a_virtual_clock(run: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "simulated", [row(1, 0.5)])
    told = digest(gather([tmp_path / "simulated"]))
    assert (told["clock"], told["sites"]) == ("virtual", [])
    assert told["command"] == f"fedkeel run {tmp_path}/simulated/experiment.yaml"
    assert digest(gather([tmp_path / "simulated", run]))["clock"] == "both"
