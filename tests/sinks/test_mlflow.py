"""An MLflow database, read back with MLflow's client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkeel import DivergenceError, Experiment, InputError, Sink, run
from fedkeel.sinks import named
from fedkeel.sinks.mlflow import MLflow
from tests.helpers.commands import fedkeel
from tests.helpers.folders import faulty, resumed, stopped
from tests.helpers.studies import on_top

pytestmark = pytest.mark.extras
mlflow = pytest.importorskip("mlflow")
pytest.importorskip("alembic")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new/m.db"


def runs(uri: str, experiment: str = "fedkeel") -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    return [*client.search_runs([client.get_experiment_by_name(experiment).experiment_id])]


def curves(uri: str, found: Any) -> dict[str, list[tuple[int, float]]]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    told = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    return {name: [(each.step, each.value) for each in points] for name, points in told.items()}


def check(found: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]]) -> None:
    found = {name: curve for name, curve in found.items() if not name.startswith("summary/")}
    assert found.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert found[name] == [(step, pytest.approx(value, rel=1e-12)) for step, value in curve]


def test_a_run(tmp_path: Path, described: Experiment, given: Any, expected: Any, summary: Any) -> None:
    folder = tmp_path / "a"
    run(described, folder, sinks=[named("mlflow")], **given)
    uri = f"sqlite:///{folder}/mlflow/mlflow.db"
    (found,) = runs(uri)
    told = curves(uri, found)
    check(told, expected(folder))
    assert told["summary/final_accuracy"] == [(5, summary(folder)["final_accuracy"])]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "a")
    assert found.data.tags["fedkeel.ended"] == "complete"
    assert found.data.params["local.lr"] == str(described.local.lr)
    assert found.data.params["wire.0.kind"] == "cast"
    assert not (tmp_path / "mlruns").exists()


def test_a_run_that_is_killed_and_stopped_has_no_point_twice(
    tmp_path: Path, store: str, described: Experiment, given: Any, expected: Any, killed: Callable[[int], Sink]
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        run(described, folder, sinks=[named(f"mlflow:{store}"), killed(3)], **given)
    (found,) = runs(store)
    assert found.info.status == "KILLED"
    assert [step for step, _ in curves(store, found)["rounds/arrived"]] == [1, 2, 3]
    resumed(folder, sinks=[MLflow(store)], **given)
    (found,) = runs(store)
    wanted, told = expected(folder), curves(store, found)
    del wanted["history/wall_seconds"], told["history/wall_seconds"]  # round 2 was not told again
    check(told, wanted)
    assert found.info.status == "FINISHED"


def test_a_run_that_fails(store: str, given: Any) -> None:
    with pytest.raises(DivergenceError):
        run(faulty("fedavg", "serial", faults={}, local={"lr": 1e30}), sinks=[MLflow(store, "mine")], **given)
    (found,) = runs(store, "mine")
    assert found.info.status == "FAILED"
    assert "round" in found.data.tags["fedkeel.ended"]


def test_many_runs_in_one_store(tmp_path: Path, store: str, described: Experiment, given: Any) -> None:
    for name in "ab":
        stopped(described, tmp_path / name, 2, sinks=[MLflow(store)], **given)
    resumed(tmp_path / "a", sinks=[MLflow(store)], **given)
    assert {each.info.run_name: each.info.status for each in runs(store)} == {"a": "FINISHED", "b": "KILLED"}


def test_a_run_that_goes_on_is_running(tmp_path: Path, store: str, described: Experiment, given: Any) -> None:
    seen: list[str] = []
    stopped(described, tmp_path / "a", 2, sinks=[MLflow(store)], **given)
    resumed(tmp_path / "a", sinks=[MLflow(store)], progress=lambda _: seen.append(runs(store)[0].info.status), **given)
    assert {*seen} == {"RUNNING"}


def test_a_run_that_was_deleted_meanwhile_is_told_anew(
    tmp_path: Path, store: str, described: Experiment, given: Any, expected: Any
) -> None:
    folder = tmp_path / "a"
    stopped(described, folder, 3, sinks=[MLflow(store)], **given)
    mlflow.MlflowClient(tracking_uri=store).delete_run(json.loads((folder / "mlflow.json").read_text())["id"])
    resumed(folder, sinks=[MLflow(store)], **given)
    (found,) = runs(store)
    check(curves(store, found), expected(folder))


def test_the_environment_may_name_the_store(
    tmp_path: Path, store: str, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run(faulty("fedavg", "serial", name="mine", rounds=1), sinks=[MLflow()], **given)
    assert [each.info.run_name for each in runs(store)] == ["mine"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["", " ", 3])
def test_an_experiment_without_a_name(name: Any) -> None:
    with pytest.raises(InputError, match=r"the MLflow experiment must be a name; got "):
        MLflow("http://localhost:1", name)


def test_runs_of_a_comparison_share_a_new_database(tmp_path: Path, store: str) -> None:
    words = on_top("rounds=2", "dataset.train_limit=100", "dataset.test_limit=50")
    done = fedkeel(
        "compare", *words, "--algorithms", "fedavg,fedprox", "--seeds", "0,1", "--jobs", "4", "--sink",
        f"mlflow:{store}", "--out", "here", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(each.info.run_name for each in runs(store)) == sorted(
        path.name for path in (tmp_path / "here" / "runs").iterdir()
    )
