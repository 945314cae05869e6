"""The figure of learning rates."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedkeel import Experiment, InputError, run
from fedkeel.record.runs import RunRecord
from fedkeel.report.rates import by_epoch, learning_rates
from tests.helpers.commands import fedkeel

SMALL = {"model": "linear", "clients": 6, "per_round": 4, "rounds": 3, "executor": "serial"}
DATA = {"train_limit": 120, "test_limit": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "agg"
    run(Experiment(dataset=DATA, algorithm="fedagg", local={"epochs": 3}, fleet={"rho": 0.5}, **SMALL), out=out)
    return out


@pytest.mark.slow
def test_least_mean_and_most_of_every_epoch(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    rounds, used = by_epoch(RunRecord.read(folder))
    assert rounds == [1, 2, 3]
    assert used.shape == (3, 3, 3)
    for place, epoch in np.ndindex(3, 3):
        told = [r["learning_rates"] for r in rows if r["round"] == place + 1]
        rates = [each[epoch] for each in told if len(each) > epoch]
        assert used[place, epoch].tolist() == [min(rates), np.mean(rates), max(rates)]


def test_an_epoch_that_nobody_did_is_left_open(folder: Path, tmp_path: Path) -> None:
    for name in ("experiment.yaml", "history.jsonl"):
        (tmp_path / name).write_text((folder / name).read_text())
    rows = [{"round": 1, "learning_rates": [0.1]}, {"round": 2, "learning_rates": [0.1, 0.3]}]
    (tmp_path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, used = by_epoch(RunRecord.read(tmp_path))
    assert np.isnan(used[0, 1]).all()
    assert used[1, 1].tolist() == [0.3] * 3


@pytest.mark.slow
def test_the_command_draws_several_runs(folder: Path, tmp_path: Path) -> None:
    done = fedkeel("plot", str(folder), str(folder), "--what", "rates", cwd=tmp_path)
    assert done.stdout.split() == ["rates.png"]
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    learning_rates([RunRecord.read(folder)] * 4, [tmp_path / "four.svg"])
    assert "<svg" in (tmp_path / "four.svg").read_text()


def test_steps_are_called_steps(folder: Path, tmp_path: Path) -> None:
    record = RunRecord.read(folder)
    learning_rates([record], [tmp_path / "epochs.svg"])
    record.experiment["local"] = {**record.experiment["local"], "epochs": None, "steps": 3}
    learning_rates([record], [tmp_path / "steps.svg"])
    assert "<!-- epoch 2 -->" in (tmp_path / "epochs.svg").read_text()
    assert "<!-- step 2 -->" in (tmp_path / "steps.svg").read_text()


def test_a_damaged_file_and_a_wrong_suffix_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("experiment.yaml", "history.jsonl"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(InputError, match="cannot be read"):
        learning_rates([RunRecord.read(tmp_path)], [tmp_path / "a.png"])
    with pytest.raises(InputError, match="ends in"):
        learning_rates([RunRecord.read(folder)], [tmp_path / "a.txt"])
