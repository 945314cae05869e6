"""Deployments over the loopback against the simulation of the same experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from fedkeel.deploy.replaying import replay
from fedkeel.record.runs import RunRecord
from tests.helpers import deployed
from tests.helpers.commands import fedkeel

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"algorithm": "scaffold"},
    "fedagg": {"algorithm": "fedagg"},
    "fedagg with a probe": {"algorithm": {"name": "fedagg", "probe": True}},
    "fedent": {"algorithm": "fedent"},
    "feddyn": {"algorithm": "feddyn"},
    "fedbabu": {"algorithm": "fedbabu", "model": "mlp-400"},
    "moon": {"algorithm": "moon", "model": "mlp-400"},
    "mimelite": {"algorithm": "mimelite"},
    "fednova": {"algorithm": "fednova"},
    "two of three": {"per_round": 2, "rounds": 4},
    "batch norm": {"model": "resnet20", "rounds": 1, "local": {"epochs": 1, "batch_size": 16, "lr": 0.05}},
    "clip and cast": {"wire": [{"kind": "clip", "norm": 0.5}, {"kind": "cast", "dtype": "float16", "feedback": True}]},
    "adam": {"local": {"epochs": 2, "batch_size": 16, "lr": 0.01, "optimizer": "adam"}},
    "init": {"init": "first.safetensors"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_deployment_gives_the_weights_of_the_simulation(case: str, tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", **CASES[case])
    if case == "init":
        other = deployed.simulated(deployed.project(tmp_path / "other", seed=5, rounds=1))
        other.export(tmp_path / "first.safetensors")
        app = deployed.project(tmp_path / "app", init=str(tmp_path / "first.safetensors"))
    summary = deployed.deployed(app, tmp_path / "run")
    expected = deployed.simulated(app)
    deployed.assert_equal(deployed.weights(tmp_path / "run"), expected.model.state_dict())
    assert summary["accuracy"] == expected.accuracy
    assert summary["bytes_up"] == expected.summary["bytes_up"]
    names = ("round", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down")
    found = [[row[name] for name in names] for row in RunRecord.read(tmp_path / "run").history]
    assert found == [[row[name] for name in names] for row in expected.history]


@pytest.mark.slow
def test_private_bodies_stay_on_their_sites_and_the_header_is_that_of_the_simulation(tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", algorithm="fedgh", model="mlp-400")
    summary = deployed.deployed(app, tmp_path / "run")
    expected = deployed.simulated(app)
    head = {name: tensor for name, tensor in expected.model.state_dict().items() if name.startswith("head")}
    deployed.assert_equal(deployed.weights(tmp_path / "run", "header"), head)
    assert summary["accuracy"] == expected.accuracy
    assert summary["deployment"]["up"] < 200_000  # no body among them, though it has 400 kB


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "fedent", "fedasmu", "fedbuff"])
def test_the_events_of_a_run_give_its_weights_again(algorithm: str, tmp_path: Path) -> None:
    local = {"epochs": 4, "batch_size": 16, "lr": 0.05}
    schedule = {"trigger_seconds": 0.2, "busy_share": 1.0}
    app = deployed.project(
        tmp_path / "app", deploy={"record_uploads": True}, algorithm=algorithm, local=local, schedule=schedule
    )
    deployed.deployed(app, tmp_path / "run")
    found = replay(tmp_path / "run")
    assert found.equal
    assert found.rounds == 3
    other = tmp_path / "run" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in deployed.weights(tmp_path / "run").items()}, other)
    assert not replay(tmp_path / "run").equal


@pytest.mark.slow
@pytest.mark.parametrize("tells", [False, True])
def test_what_is_said_of_labels_is_that_of_the_simulation_if_sites_tell_them(tells: bool, tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", deploy={"tell_labels": tells}, rounds=1)
    deployed.deployed(app, tmp_path / "run")
    expected = deployed.simulated(app).simulation.describe_labels()
    found = json.loads((tmp_path / "run" / "labels.json").read_text())
    assert found.pop("client_names") == ["site-0", "site-1", "site-2"]
    if tells:
        assert found == expected
    else:
        assert found == {name: expected[name] for name in ("clients", "least", "median", "most")}
    assert fedkeel("report", "run", "--out", "page.html", cwd=tmp_path).returncode == 0
