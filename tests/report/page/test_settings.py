"""Settings that differ, and how to repeat a run."""

from __future__ import annotations

from pathlib import Path

from fedkeel.config import yamltext
from fedkeel.config.experiment import Experiment
from fedkeel.record.runs import RunRecord
from fedkeel.report.page import settings
from fedkeel.report.page.cells import Cell, cells
from fedkeel.study.results import Listed, Outcome, Results


def cell(scene: int, variant: int, **described: object) -> Cell:
    where = Path("nowhere")
    return Cell(scene, variant, [Outcome("", "", "", 0, where, record=RunRecord(where, described, []))])


def test_settings_of_methods(compared: Results) -> None:
    (table,) = settings.differing(cells(compared), compared.scenes, compared.variants)
    rows = {name: values for name, *values in table["rows"]}
    assert table["by"] == "variant"
    assert rows["algorithm.name"] == ["fedavg", "fedagg", "fedasmu"]
    assert "seed" not in rows
    assert "clients" not in rows
    assert any(word.startswith("algorithm.staleness_bound=") for word in table["own"][2])
    assert not any("staleness_bound" in word for word in table["own"][0] + table["own"][1])


def test_settings_of_scenes_and_of_both_have_tables_of_their_own() -> None:
    grid = [
        cell(scene, variant, clients=10 + scene, rounds=5 + variant, threads=scene, local={"lr": scene * variant})
        for scene in range(2)
        for variant in range(2)
    ]
    variant, scene, both = settings.differing(grid, ["s", "t"], ["a", "b"])
    assert variant == {"by": "variant", "columns": ["a", "b"], "rows": [["rounds", "5", "6"]], "own": []}
    assert scene == {"by": "scene", "columns": ["s", "t"], "rows": [["clients", "10", "11"]], "own": []}
    assert both["columns"] == ["s, a", "s, b", "t, a", "t, b"]
    assert both["rows"] == [["local.lr", "0", "0", "0", "1"]]


def test_all_settings_can_be_read_back(compared: Results) -> None:
    for each, found in zip(cells(compared), settings.in_full(cells(compared)), strict=True):
        run = each.first
        assert run is not None
        assert run.record is not None
        assert Experiment.build(yamltext._load(found["yaml"])) == Experiment.load(run.folder / "experiment.yaml")
        assert found["command"] == f"fedkeel run {run.folder}/experiment.yaml"


def test_a_command_is_quoted(compared: Results) -> None:
    run = compared.outcomes[0]
    odd = Listed(run.name, "", "a", 0, run.folder.parent / "it's odd; $HOME")
    (told,) = settings.in_full([Cell(0, 0, [Outcome(**vars(odd), record=run.record)])])
    assert told["command"].endswith("""it'"'"'s odd; $HOME/experiment.yaml'""")
