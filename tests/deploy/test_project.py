"""New deployments: what is in them, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
import yaml

from fedkeel.config.experiment import Experiment
from fedkeel.deploy import project
from fedkeel.deploy.settings import DeploySettings
from fedkeel.errors import InputError


def test_the_default_can_be_trained_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    made = project.new(tmp_path / "My App")
    app = tmp_path / "My App"
    assert {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()} == {*made.files}
    assert [path.name for path in tmp_path.iterdir()] == ["My App"]
    experiment, settings = Experiment.load(app / "experiment.yaml"), DeploySettings.load(app)
    assert settings == DeploySettings(sites=("site-1", "site-2", "site-3", "site-4"))
    assert (experiment.clients, experiment.per_round, experiment.rounds) == (4, 4, 5)
    assert (experiment.dataset.name, experiment.algorithm.name) == ("fashion-mnist-mini", "fedavg")
    assert (experiment.model.name, experiment.partition.kind) == ("model:build", "dirichlet")
    assert (experiment.executor.kind, experiment.executor.stack, experiment.executor.channels_last) == (
        "serial", 0, False,
    )  # fmt: skip
    space: dict[str, object] = {}
    exec((app / "model.py").read_text(), space)
    assert space["build"]()(torch.zeros(3, 1, 28, 28)).shape == (3, 10)  # type: ignore[operator]


def test_the_flower_app_is_what_flower_wants(tmp_path: Path) -> None:
    project.new(tmp_path / "Größe 2")
    told = tomllib.loads((tmp_path / "Größe 2" / "pyproject.toml").read_text())
    flower = told["tool"]["flwr"]["app"]
    assert told["project"]["name"] == "gr-e-2"
    assert flower["components"] == {"serverapp": "flower_app.server_app:app", "clientapp": "flower_app.client_app:app"}
    assert flower["config"] == {"app": "", "out": "", "interrupts": False, "started": 0}
    assert (tmp_path / "Größe 2" / "LICENSE").is_file()
    server = (tmp_path / "Größe 2" / "flower_app" / "server_app.py").read_text()
    assert "app = serverapp(serve)" in server
    for path in (tmp_path / "Größe 2").rglob("*.py"):
        compile(path.read_text(), path, "exec")
    for line in ("keys/", "runs/", "state/"):
        assert line in (tmp_path / "Größe 2" / ".gitignore").read_text().split()


def test_data_come_from_the_experiment_or_from_a_path(tmp_path: Path) -> None:
    class Site:
        data: str | None = None

        def share(self) -> str:
            return "share"

        def read(self, path: str) -> str:
            return f"read {path}"

    project.new(tmp_path / "app")
    space: dict[str, object] = {}
    exec((tmp_path / "app" / "data.py").read_text(), space)
    site = Site()
    assert space["load"](site) == "share"  # type: ignore[operator]
    site.data = "x.csv"
    assert space["load"](site) == "read x.csv"  # type: ignore[operator]


def test_an_experiment_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("algorithm: {name: fedprox, mu: 0.5}\nclients: 3\nrounds: 7\n")
    given = ["local.lr=0.2", "model=linear", "participation=0.4", "executor=processes"]
    made = project.new(tmp_path / "app", tmp_path / "mine.yaml", given)
    found = Experiment.load(tmp_path / "app" / "experiment.yaml")
    wanted = Experiment.load(tmp_path / "mine.yaml", [*given, "partition=dirichlet"])
    assert found == wanted
    assert "model.py" not in made.files
    assert len(DeploySettings.load(tmp_path / "app").sites) == 3


def test_a_data_set_of_its_own_gets_a_model_that_fits(tmp_path: Path) -> None:
    project.new(tmp_path / "app", overrides=["dataset=cifar10"], nodes=2)
    assert ":" not in Experiment.load(tmp_path / "app" / "experiment.yaml").model.name


@pytest.mark.parametrize("names", [["2024", "true", "null"], ["a.b", "c-d", "E_f"]])
def test_names_are_read_back_as_they_are(names: list[str], tmp_path: Path) -> None:
    project.new(tmp_path / "app", sites=names)
    assert DeploySettings.load(tmp_path / "app").sites == tuple(names)
    assert f"--site {names[0]}" in (tmp_path / "app" / "README.md").read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"overrides": ["fleet.speed_ratio=5"]}, r"fleet\.speed_ratio is for simulated devices; remove it"),
        ({"overrides": ["faults.hang=0.1"]}, r"faults\.hang is for simulated devices; remove it"),
        ({"sites": ["a", "a"]}, "a is given twice"),
        ({"sites": ["a", "A"]}, "differs from another site only in capitals"),
        ({"sites": ["a b"]}, "a name must be 1 to 63 letters"),
        ({"sites": ["a"], "nodes": 2}, "--sites cannot be combined with --nodes"),
        ({"nodes": 0}, "nodes must be from 1 to 1000; got 0"),
        ({"overrides": ["clients=9"], "nodes": 2}, "clients=9 must be the number of sites, 2"),
        ({"overrides": ["model=data:net"]}, r"data\.py is a file of the new project; rename your module"),
        ({"overrides": ["model=model:other", "dataset=data:load"]}, r"data\.py is a file of the new project"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(given: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        project.new(tmp_path / "app", **given)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


def test_folders_that_are_not_empty_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match=r"is not empty; name a new folder|is no folder; name a new one"):
            project.new(place)
    (tmp_path / "empty").mkdir()
    project.new(tmp_path / "empty")
    assert (tmp_path / "empty" / "deploy.yaml").is_file()


def test_own_modules_are_told(tmp_path: Path) -> None:
    assert project.new(tmp_path / "app", overrides=["model=nets.small:build"]).modules == ("nets.small",)


@pytest.mark.parametrize(("given", "seconds"), [((), 1.0), (("schedule.trigger_seconds=30",), 30.0)])
def test_a_method_without_rounds_dispatches_often(given: tuple[str, ...], seconds: float, tmp_path: Path) -> None:
    project.new(tmp_path / "app", None, ["algorithm=fedasmu", *given])
    text = (tmp_path / "app" / "experiment.yaml").read_text()
    assert f"trigger_seconds: {seconds}  # real seconds between two dispatches" in text
    assert yaml.safe_load(text)["schedule"]["trigger_seconds"] == seconds
    project.new(tmp_path / "rounds")
    assert "trigger" not in (tmp_path / "rounds" / "experiment.yaml").read_text()
