"""A run simulated on the devices that its own rows tell: the same times, and the same model where all is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import waits
from fedkeel.study.prediction import Prediction
from fedkeel.study.replay import TRACE, devices, plan
from tests.helpers import deployed, federation
from tests.helpers.report_folders import record

CLIENTS = 6
SPEED = [0.01, 0.02, 0.08, 0.03, 0.05, 0.015]
KNOWN = {"seconds_per_sample": SPEED, "uplink_mbps": [1, 2, 1.5, 4, 0.5, 2.5], "downlink_mbps": [5, 9, 6, 8, 7, 10]}
"""Some links take as long as the training."""
DROPOUT = [0.2, 0, 0.1, 0.3, 0, 0.1]


def recorded(folder: Path, method: str, **settings: Any) -> Path:
    """The folder of a small run on a known fleet."""
    known = {**KNOWN, "latency_seconds": [0.1 * n for n in range(CLIENTS)], **settings.pop("columns", {})}
    lines = [",".join(known), *(",".join(map(str, row)) for row in zip(*known.values(), strict=True))]
    (folder / "known.csv").write_text("\n".join(lines))
    base: dict[str, Any] = {
        "clients": CLIENTS, "per_round": 3, "rounds": 6, "seed": 3, "model": "linear", "executor": "serial",
        "partition": "dirichlet", "dataset": {"train_limit": 300, "test_limit": 100},
    }  # fmt: skip
    experiment = Experiment(
        **{**base, "algorithm": method, "fleet": {"profile": str(folder / "known.csv")}, **settings}
    )
    run(experiment, folder / "real")
    return folder / "real"


def replayed(path: Path) -> tuple[RunRecord, RunRecord, Prediction]:
    chosen = plan(path)
    found = chosen.run()
    return RunRecord.read(path), RunRecord.read(chosen.folder), found


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedent"])
def test_rounds_are_the_same_bit_for_bit(method: str, tmp_path: Path) -> None:
    real, simulated, found = replayed(recorded(tmp_path, method))
    for name in ("accuracy", "loss", "train_loss", "bytes_up", "bytes_down"):
        assert simulated.column(name) == real.column(name)
    seconds = real.column("virtual_seconds")
    assert simulated.column("virtual_seconds") == pytest.approx(seconds, rel=1e-4 if method == "fedent" else 1e-8)
    assert len(found.clients) >= 5
    for each in found.clients:
        assert each.predicted == pytest.approx(each.measured, rel=1e-4)


@pytest.mark.parametrize("method", ["fedasmu", "fedbuff"])
def test_times_and_staleness_without_rounds(method: str, tmp_path: Path) -> None:
    schedule = {"trigger_seconds": 1.0} if method == "fedasmu" else {}
    real, simulated, found = replayed(recorded(tmp_path, method, rounds=12, schedule=schedule))
    assert simulated.column("virtual_seconds") == pytest.approx(real.column("virtual_seconds"), rel=1e-6)
    assert [row["staleness"] for row in simulated.arrivals()] == [row["staleness"] for row in real.arrivals()]
    told = {each.name: each for each in found.quantities}
    assert told["staleness"].measured is not None
    assert told["staleness"].measured > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedasmu", "fedbuff"])
def test_with_lost_jobs_the_times_are_close(method: str, tmp_path: Path) -> None:
    """Which jobs are lost depends on the true probabilities; how many and how long all takes does so much less."""
    schedule = {"trigger_seconds": 1.0} if method == "fedasmu" else {}
    path = recorded(tmp_path, method, rounds=60, columns={"dropout": DROPOUT}, schedule=schedule)
    _, _, found = replayed(path)
    told = {each.name: (each.measured, each.predicted) for each in found.quantities}
    assert (told["lost"][0] or 0) > 10
    assert told["lost"][1] == pytest.approx(told["lost"][0], rel=0.3)
    assert told["seconds"][1] == pytest.approx(told["seconds"][0], rel=0.1)
    assert told["job_seconds"][1] == pytest.approx(told["job_seconds"][0], rel=1e-6)


def test_the_simulation_is_the_runs_own_experiment(tmp_path: Path) -> None:
    settings = {
        "fleet": {"speed_ratio": 4, "job": "fixed", "uplink_mbps": 2, "bandwidth_divisor": 2, "dropout": 0.2,
                  "rho": 0.5},
        "faults": {"lost_upload": 0.1}, "limit_wall_seconds": 1000.0, "rounds": 8, "local": {"epochs": 2},
    }  # fmt: skip
    path = recorded(tmp_path, "fedavg", **settings)
    stored, chosen = Experiment.load(path / "experiment.yaml"), plan(path, tmp_path / "new").experiment
    fleet = chosen.fleet
    assert (fleet.profile, fleet.rho, fleet.dropout, fleet.job) == (str(path / TRACE), 0.5, 0.0, "samples")
    assert fleet.bandwidth_divisor == 1
    assert not any(chosen.faults.chances)
    assert chosen.limit_wall_seconds is None
    assert chosen.name == "fedavg predicted"
    changed = {"fleet", "faults", "limit_wall_seconds", "name"}
    rest = (stored.model_dump(exclude=changed), chosen.model_dump(exclude=changed))
    assert rest[0] == rest[1]
    assert plan(path, tmp_path / "new", ["rounds=2", "fleet.dropout=0.1"]).experiment.fleet.dropout == 0.1


def test_the_prediction_and_the_devices_are_left_in_the_folders(tmp_path: Path) -> None:
    path = recorded(tmp_path, "fedavg")
    chosen = plan(path)
    found = chosen.run()
    assert chosen.folder == tmp_path / "real-replay"
    assert json.loads((chosen.folder / "prediction.json").read_text())["measured"] == str(path)
    assert Prediction.read(chosen.folder / "prediction.json") == found
    assert (path / TRACE).read_text() == devices(RunRecord.read(path)).text
    assert plan(path).folder == tmp_path / "real-replay-2"


def test_weights_that_the_run_started_from_are_used_again(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = recorded(tmp_path / "first", "fedavg", rounds=1)
    path = recorded(tmp_path, "fedavg", init=str(first))
    for each in first.iterdir():
        if each.is_file():
            each.unlink()
    real, simulated, _ = replayed(path)
    assert simulated.column("loss") == real.column("loss")


def test_data_that_is_not_here_is_refused_with_the_way_out(tmp_path: Path) -> None:
    settings = {"rounds": 1, "per_round": 2, "model": "linear", "executor": "serial"}
    data = FederatedData.from_clients(federation.clients(), test=federation.clients()[3])
    run(Experiment(**settings), tmp_path / "given", data=data)
    with pytest.raises(InputError, match=r"was given in Python or is at its sites, not here; .* --set dataset=\.\.\."):
        plan(tmp_path / "given")
    assert not (tmp_path / "given" / TRACE).exists()
    chosen = plan(tmp_path / "given", None, ["dataset=fashion-mnist-mini"])
    assert any("other data than the run" in note for note in chosen.notes)
    rows = np.column_stack([np.arange(60) / 60, np.arange(60) % 2])
    np.savetxt(tmp_path / "table.csv", rows, delimiter=",", header="x,y", comments="")
    run(Experiment(**settings, dataset={"name": str(tmp_path / "table.csv"), "target": "y"}), tmp_path / "file")
    assert plan(tmp_path / "file").experiment.dataset.name == str(tmp_path / "table.csv")
    (tmp_path / "table.csv").unlink()
    with pytest.raises(InputError, match=r"table\.csv, is not here; .* --set dataset=\.\.\."):
        plan(tmp_path / "file")
    run(Experiment(rounds=1, per_round=2, executor="serial"), tmp_path / "own", data=data, model=federation.net())
    with pytest.raises(InputError, match=r"model of this run, Linear, was given in Python; .* --set model=\.\.\."):
        plan(tmp_path / "own", None, ["dataset=fashion-mnist-mini"])


def test_a_run_whose_sites_had_their_own_arrays_needs_other_data(tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", 2, partition="iid", rounds=1)
    (app / "data.py").write_text(
        "import numpy as np\n\n"
        "def load(site):\n"
        "    x = np.random.default_rng(site.number).normal(size=(60, 3))\n"
        "    return x, (x[:, 0] > 0).astype(int)\n"
    )
    deployed.deployed(app, tmp_path / "run")  # whose experiment names a data set that nobody used
    with pytest.raises(InputError, match=r"the data of this run is at its sites, not here; .* --set dataset=\.\.\."):
        plan(tmp_path / "run")
    chosen = plan(tmp_path / "run", None, ["dataset=fashion-mnist-mini"])
    assert any("at its sites, and the simulation has fashion-mnist-mini" in note for note in chosen.notes)
    dealt = deployed.project(tmp_path / "dealt", 2, rounds=1)
    deployed.deployed(dealt, tmp_path / "simple")
    assert not any("simulation has" in note for note in plan(tmp_path / "simple").notes)
    told = waits(RunRecord.read(tmp_path / "simple"))
    assert told is not None
    assert told.keys() == {0, 1}
    assert min(told.values()) >= 0


def test_a_file_that_happens_to_be_here_is_not_the_data_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.column_stack([np.arange(60) / 60, np.arange(60) % 2])
    for name in ("site.csv", "patients.csv"):
        np.savetxt(tmp_path / name, rows, delimiter=",", header="x,y", comments="")
    dataset = {"name": "patients.csv", "target": "y", "classes": ["0", "1"]}
    app = deployed.project(tmp_path / "app", 2, partition="iid", rounds=1, dataset=dataset)
    with deployed.own_modules(app):
        transport = deployed.Loopback(deployed.silos(app, dict.fromkeys((0, 1), tmp_path / "site.csv")))
        deployed.deployed(app, tmp_path / "run", transport)
    with pytest.raises(InputError, match=r"at its sites, not here; .*--set dataset\.name=\.\.\. if a copy"):
        plan(tmp_path / "run")
    chosen = plan(tmp_path / "run", None, ["dataset.name=patients.csv"])
    assert chosen.experiment.dataset.target == ("y",)
    assert any("the simulation has patients.csv; unless these are the same rows" in note for note in chosen.notes)


def test_folders_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        plan(tmp_path / "nowhere")
    record(tmp_path / "empty", [])
    with pytest.raises(InputError, match="no upload has arrived, so the run does not tell how fast its devices are"):
        devices(RunRecord.read(tmp_path / "empty"))
    record(tmp_path / "damaged", [{"client": 1}])
    with pytest.raises(InputError, match=r"clients\.jsonl is damaged \(RowError: round is missing\)"):
        devices(RunRecord.read(tmp_path / "damaged"))
    path = recorded(tmp_path, "fedavg", rounds=1)
    with pytest.raises(InputError, match="is not empty; name a new or empty folder"):
        plan(path, path)


def test_a_run_that_has_not_finished_is_compared_as_far_as_it_is(tmp_path: Path) -> None:
    path = recorded(tmp_path, "fedavg")
    (path / "summary.json").unlink()
    lines = (path / "history.jsonl").read_text().splitlines(keepends=True)
    (path / "history.jsonl").write_text("".join(lines[:4]))
    _, _, found = replayed(path)
    assert any("has not finished" in note for note in found.notes)
    told = {each.name: each for each in found.quantities}
    assert told["common_seconds"].words == "time to round 4"
    assert told["common_seconds"].predicted == pytest.approx(told["common_seconds"].measured, rel=1e-8)
    assert (told["rounds"].measured, told["rounds"].predicted) == (4, 6)
