"""What the page is told: everything against the files of the run folders, read in another way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.record.lock import lock
from fedkeel.report.page.digest import digest
from fedkeel.study.adhoc import gather
from fedkeel.study.results import Listed, Results, collect, results
from fedkeel.study.store import Store
from tests.helpers.studies import row, write_run

Make = Callable[..., Results]


@pytest.fixture(scope="module")
def told(compared: Results) -> dict[str, Any]:
    return digest(compared)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def folders(found: Results, variant: str) -> list[Path]:
    return [run.folder for run in found.outcomes if run.variant == variant]


def test_it_is_json_without_numbers_that_are_none(told: dict[str, Any]) -> None:
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_it_names_what_is_compared(compared: Results, told: dict[str, Any]) -> None:
    assert told["title"] == "Three methods"
    assert [each["name"] for each in told["variants"]] == ["fedavg", "fedagg", "fedasmu"]
    assert told["command"] == compared.command
    assert told["runs"] == {"all": 6, "finished": 6}
    assert told["complete"]


def test_a_line_of_the_table_has_the_mean_over_seeds(compared: Results, told: dict[str, Any]) -> None:
    for place, variant in enumerate(compared.variants):
        last = [rows(folder, "history")[-1]["accuracy"] for folder in folders(compared, variant)]
        (line,) = [each for each in told["lines"] if each["variant"] == place]
        assert line["value"]["mean"] == pytest.approx(np.mean(last), rel=1e-4)
        assert line["value"]["count"] == 2
        assert line["sentence"]


def test_no_real_times_are_told(told: dict[str, Any]) -> None:
    assert "wall" not in json.dumps({name: part for name, part in told.items() if name != "settings"})


def test_curves_are_means_over_seeds_with_their_range(compared: Results, told: dict[str, Any]) -> None:
    for curve in told["curves"]:
        histories = [rows(folder, "history") for folder in folders(compared, compared.variants[curve["variant"]])]
        for name, column in (("value", "accuracy"), ("loss", "loss"), ("train_loss", "train_loss")):
            values = np.array([[row[column] for row in history] for history in histories])
            drawn = curve["axes"]["rounds"][name]
            assert drawn["x"] == [1, 2, 3]
            np.testing.assert_allclose(drawn["mean"], values.mean(0), rtol=1e-4)
            np.testing.assert_allclose(drawn["low"], values.min(0), rtol=1e-4)
            np.testing.assert_allclose(drawn["high"], values.max(0), rtol=1e-4)
        assert set(curve["axes"]) == {"rounds", "time", "uploads", "bytes"}


def test_lines_of_seeds_are_the_histories(compared: Results, told: dict[str, Any]) -> None:
    assert len(told["seed_lines"]) == 6
    for line in told["seed_lines"]:
        (run,) = (r for r in compared.of("", compared.variants[line["variant"]]) if r.seed == line["seed"])
        history = rows(run.folder, "history")
        np.testing.assert_allclose(line["loss"], [row["loss"] for row in history], rtol=1e-4)
        np.testing.assert_allclose(line["x"]["time"], [row["virtual_seconds"] for row in history], rtol=1e-4)
        np.testing.assert_allclose(
            line["x"]["bytes"], [row["bytes_up"] + row["bytes_down"] for row in history], rtol=1e-4
        )


def test_one_seed_has_no_range_and_no_lines_of_its_own(written: Make) -> None:
    told = digest(written(["a", "b"], seeds=[3]))
    assert told["seed_lines"] == []
    assert all("low" not in curve["axes"]["rounds"]["value"] for curve in told["curves"])
    assert {line["standing"] for line in told["lines"]} <= {"", "level"}


def test_long_curves_are_thinned(written: Make) -> None:
    told = digest(written(["a"], seeds=[0, 1], rounds=700))
    drawn = told["curves"][0]["axes"]["rounds"]["value"]
    assert len(drawn["x"]) == 200
    assert (drawn["x"][0], drawn["x"][-1]) == (1, 700)
    assert len(told["seed_lines"][0]["value"]) == 200


def test_many_cells_have_fewer_points_each(written: Make) -> None:
    told = digest(written(list("abcdef"), scenes=["s", "t", "u", "v", "w"], seeds=[0], rounds=300, jobs=5))
    assert {len(curve["axes"]["bytes"]["loss"]["x"]) for curve in told["curves"]} == {80}
    assert len(told["tasks"]) == 6
    assert len(told["timelines"]["runs"]) == 24


def test_clients_are_those_of_the_files(compared: Results, told: dict[str, Any]) -> None:
    for found in told["clients"]:
        runs = folders(compared, compared.variants[found["variant"]])
        values = [[row["accuracy"] for row in rows(folder, "client_metrics")] for folder in runs]
        known = [np.array([value for value in each if value is not None]) for each in values]
        assert found["mean"] == pytest.approx(np.mean([each.mean() for each in known]), rel=1e-4)
        assert found["estimated"]
        assert sum(found["bars"]) == sum(map(len, known)) == found["clients"]
        summaries = [json.loads((folder / "summary.json").read_text())["client_accuracy_estimated"] for folder in runs]
        assert found["worst"] == pytest.approx(np.mean([each["worst_decile"] for each in summaries]), rel=1e-4)


def test_faults_are_counted_by_reason(compared: Results, told: dict[str, Any]) -> None:
    for place, variant in enumerate(compared.variants):
        why = Counter(row["why"] for folder in folders(compared, variant) for row in rows(folder, "unfinished"))
        found = [each["lost"] for each in told["faults"] if each["variant"] == place]
        assert (found[0] if found else {}) == dict(why)
    assert any("dropped out" in each["lost"] for each in told["faults"])


def test_a_failed_run_is_told_with_its_reason_and_counts_for_nothing(written: Make) -> None:
    found = written(["a", "b"], seeds=[0, 1])
    store = Store(found.outcomes[0].folder.parents[1])
    failing = found.of("", "b")[1]
    (failing.folder / "summary.json").unlink()
    store.fail(failing.name, "DivergenceError", "the loss is not finite in round 7")
    told = digest(collect(store.plan(), store.path))
    assert told["runs"] == {"all": 4, "finished": 3, "failed": 1}
    assert told["failed"] == [
        {"scene": 0, "variant": 1, "seed": 1, "reason": "the loss is not finite in round 7", "round": 20}
    ]
    (line,) = [each for each in told["lines"] if each["variant"] == 1]
    assert (line["finished"], line["failed"]) == (1, 1)
    (curve,) = [each for each in told["curves"] if each["variant"] == 1]
    assert curve["axes"]["rounds"]["value"]["seeds"] == 1


def test_how_far_runs_are_is_told(written: Make) -> None:
    found = written(["a", "b"], seeds=[0, 3], rounds=20)
    store = Store(found.outcomes[0].folder.parents[1])
    for run in found.outcomes[1:3]:
        (run.folder / "summary.json").unlink()
    with (found.outcomes[1].folder / "history.jsonl").open() as file:
        lock(file.fileno())
        (told,) = digest(collect(store.plan(), store.path))["going_on"]
    last = found.outcomes[1].history[-1]
    assert (told["variant"], told["seed"], told["round"], told["rounds"]) == (0, 3, 20, 20)
    assert told["value"] == pytest.approx(last["accuracy"], rel=1e-4)
    assert told["limit_seconds"] is None


def test_how_to_go_on_is_told(written: Make) -> None:
    found = written(["a", "b"], seeds=[0])
    folder, place = found.outcomes[1].folder, found.outcomes[0].folder.parents[1]
    assert digest(gather([place]))["way_on"] == ""
    (folder / "summary.json").unlink()
    told = digest(gather([place]))
    assert (told["runs"], told["way_on"]) == ({"all": 2, "finished": 1, "stopped": 1}, "fedkeel compare")
    assert digest(gather([folder]))["way_on"] == f"fedkeel run --resume {folder}"


def test_runs_that_have_not_begun_are_told_as_such(written: Make, tmp_path: Path) -> None:
    plan = Store(written(["a", "b"], seeds=[0]).outcomes[0].folder.parents[1]).plan()
    told = digest(collect(plan, tmp_path))
    assert told["runs"] == {"all": 2, "not begun": 2}
    assert not told["complete"]
    assert told["curves"] == told["jobs"] == told["labels"] == told["settings"] == []


def test_a_run_alone_has_its_figures(compared: Results) -> None:
    run = compared.outcomes[0]
    alone = Listed(run.name, run.scene, run.variant, run.seed, run.folder)
    told = digest(results("Alone", [alone], compared.measure))
    summary = json.loads((run.folder / "summary.json").read_text())
    assert told["figures"]["value"] == pytest.approx(summary["final_accuracy"], rel=1e-8)
    assert told["figures"]["virtual_seconds"] == pytest.approx(summary["virtual_seconds"], rel=1e-8)
    worst = summary["client_accuracy_estimated"]["worst_decile"]
    assert told["figures"]["estimated"]
    assert told["figures"]["clients"]["worst_decile"] == pytest.approx(worst, rel=1e-8)
    assert digest(compared)["figures"] is None


def test_where_runs_are_compared_is_told(compared: Results) -> None:
    assert digest(compared)["measure"]["limits"] == [3]
    endless = replace(compared, limits={"": float("inf")})
    assert digest(endless)["measure"]["limits"] == [None]


def test_a_regression_has_its_metric_its_clients_by_name_and_no_labels(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    metrics = [{"name": "rmse", "better": "lower", "share": False}, {"name": "r2", "better": "higher", "share": False}]
    rest = {"virtual_seconds": 1.0, "updates": 1, "bytes_up": 1, "bytes_down": 1, "loss": 4.0, "train_loss": 1.0}
    validation = {"loss": 1.0, "rmse": 2.5, "r2": 0.0}
    write_run(folder, [{"round": 1, "rmse": 2.0, "r2": 0.5, **rest, "validation": validation}],
              {"dataset": {"name": "custom:sensors"}}, {"client_rmse": {"mean": 2.0, "worst_decile": 9.0}})  # fmt: skip
    (folder / "run.json").write_text(json.dumps({"schema": 2, "fedkeel": "0", "metrics": metrics}))
    (folder / "labels.json").write_text(json.dumps({"clients": 3, "least": 5, "median": 6, "most": 7}))
    clients = [("north", 1.0), ("south", 9.0), ("west", None)]
    told = [{"client": n, "name": name, "rows": 4, "rmse": value, "estimated": False} for n, (name, value) in
            enumerate(clients)]  # fmt: skip
    (folder / "client_metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    found = digest(gather([folder]))
    assert found["measure"]["judged"] == {"name": "rmse", "words": "rmse", "better": "lower", "share": False}
    assert (found["figures"]["value"], found["figures"]["validation"], found["figures"]["best"]) == (2, 2.5, 2)
    assert [(each["words"], each["value"]) for each in found["figures"]["others"]] == [("r2", 0.5)]
    assert found["curves"][0]["axes"]["rounds"]["value"]["mean"] == [2]
    (bars,) = found["clients"]
    assert (bars["least"], bars["most"], bars["worst"], bars["mean"]) == (1, 9, 9, 5)  # a high error is worst
    assert (bars["bars"][0], bars["bars"][-1], bars["estimated"]) == (1, 1, False)
    assert [(each["name"], each["value"]) for each in found["named_clients"][0]["clients"]] == [
        ("north", 1), ("south", 9), ("west", None),
    ]  # fmt: skip
    (labels,) = found["labels"]
    assert "counts" not in labels
    assert (labels["clients"], labels["least"], labels["most"]) == (3, 5, 7)


def test_the_clients_of_an_old_run_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [row(1, 0.5)], {"dataset": {"name": "mnist"}})
    (tmp_path / "a/client_accuracy.jsonl").write_text(
        '{"client": 0, "accuracy": 0.25}\n{"client": 1, "accuracy": 0.75}\n'
    )
    (bars,) = digest(gather([tmp_path / "a"]))["clients"]
    assert (bars["mean"], bars["estimated"], bars["least"], bars["most"]) == (0.5, True, 0, 1)


def test_what_each_class_came_to_is_the_mean_over_seeds(tmp_path: Path) -> None:
    for seed, values in enumerate(([0.5, 1.0, None], [0.25, None, None])):
        summary = {"by_class": {"accuracy": values}}
        write_run(tmp_path / f"{seed}", [row(1, 0.5)], {"dataset": {"name": "custom:d"}, "seed": seed}, summary)
    (tmp_path / "0/labels.json").write_text(
        json.dumps({"clients": 1, "least": 1, "median": 1, "most": 1, "class_names": ["cat", "dog", "owl"]})
    )
    (found,) = digest(gather([tmp_path / "0", tmp_path / "1"]))["classes"]
    assert (found["names"], found["values"], found["words"]) == (["cat", "dog", "owl"], [0.375, 1, None], "accuracy")
