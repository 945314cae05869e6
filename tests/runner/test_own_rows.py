"""Clients judged on their own rows, or by an estimate that is called one: two silos with opposite labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import Experiment, FederatedData, InputError, Result, run
from tests.helpers import commands

RNG = np.random.default_rng(0)
LARGE, SMALL = (RNG.normal(size=(n, 4)) for n in (800, 200))
WEIGHTS = np.array([2.0, -1.0, 0.5, 0.0])
SILOS = [(LARGE, (LARGE @ WEIGHTS > 0).astype(int)), (SMALL, (SMALL @ WEIGHTS < 0).astype(int))]
TRAIN = [(x[: len(x) * 3 // 4], y[: len(x) * 3 // 4]) for x, y in SILOS]
TEST = [(x[len(x) * 3 // 4 :], y[len(x) * 3 // 4 :]) for x, y in SILOS]


def trained(data: FederatedData, out: Path | None = None, **how: object) -> Result:
    torch.manual_seed(0)
    settings = {"rounds": 6, "executor": "serial", "local": {"lr": 0.3, "batch_size": 50}, **how}
    return run(Experiment(**settings), out, data=data, model=nn.Linear(4, 2))


def by_hand(model: nn.Module) -> list[float]:
    """The accuracy on each silo's own test rows, without fedkeel."""
    found = []
    for x, y in TEST:
        with torch.no_grad():
            said = model(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy()
        found.append(float((said == y).mean()))
    return found


def test_the_silo_that_the_model_is_wrong_about_has_nothing_right(tmp_path: Path) -> None:
    data = FederatedData.from_clients([*zip(TRAIN, TEST, strict=True)], client_names=["large", "small"])
    result = trained(data, tmp_path / "run")
    large, small = result.evaluate_clients()
    assert large > 0.95
    assert small < 0.05
    assert [large, small] == pytest.approx(by_hand(result.model))
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["clients_tested_on"] == "own rows"
    assert told["client_accuracy"]["worst_decile"] == small
    assert "client_accuracy_estimated" not in told
    rows = [json.loads(line) for line in (tmp_path / "run" / "client_metrics.jsonl").read_text().splitlines()]
    assert [(row["name"], row["rows"], row["accuracy"], row["estimated"]) for row in rows] == [
        ("large", 200, large, False),
        ("small", 50, small, False),
    ]


def test_a_share_of_each_silos_own_rows_says_the_same() -> None:
    data = FederatedData.from_clients(SILOS, test=0.25)
    assert data.clients_have_tests
    large, small = trained(data).evaluate_clients()
    assert large > 0.95
    assert small < 0.1


def test_a_common_test_set_gives_estimates_and_calls_them_that(tmp_path: Path) -> None:
    common = tuple(np.concatenate(parts) for parts in zip(*TEST, strict=True))
    data = FederatedData.from_clients(TRAIN, test=common)  # type: ignore[arg-type]
    assert not data.clients_have_tests
    result = trained(data, tmp_path / "run", evaluate_clients=True)
    assert by_hand(result.model)[1] < 0.05
    estimates = result.evaluate_clients()
    assert estimates == pytest.approx([0.8, 0.8], abs=0.1)  # both silos have as many zeros as ones: it cannot tell
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["clients_tested_on"] == "estimates from the common test set"
    assert "client_accuracy" not in told
    assert told["client_accuracy_estimated"]["mean"] == pytest.approx(estimates.mean())
    rows = [json.loads(line) for line in (tmp_path / "run" / "client_metrics.jsonl").read_text().splitlines()]
    assert [row["estimated"] for row in rows] == [True, True]


@pytest.mark.slow
def test_the_command_line_calls_estimates_that(tmp_path: Path) -> None:
    done = commands.fedkeel("run", "--set", *commands.QUICK, "evaluate_clients=true", cwd=tmp_path)
    assert "estimated per client" in done.stdout
    assert "accuracy per client" not in done.stdout


def test_clients_can_be_judged_by_another_model() -> None:
    data = FederatedData.from_clients([*zip(TRAIN, TEST, strict=True)])
    result = trained(data)
    small = trained(data.only(1)).model
    assert result.evaluate_clients(model=small) == pytest.approx(by_hand(small))
    assert result.evaluate_clients(model=small)[1] > 0.9
    assert result.evaluate_clients([1], model=small).shape == (1,)
    assert result.evaluate_clients(metric="Acc").tolist() == result.evaluate_clients().tolist()
    best = result.best_model
    assert best is not None
    assert result.evaluate_clients(model=best) == pytest.approx(by_hand(best))
    with pytest.raises(InputError, match="model must have the same layers as the model that was trained"):
        result.evaluate_clients(model=nn.Linear(4, 3))
