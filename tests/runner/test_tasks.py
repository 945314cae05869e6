"""Whole runs of every task, against rounds written out in plain PyTorch."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel import Experiment, FederatedData, InputError, Result, resume, run

RNG = np.random.default_rng(0)
SIZES = (12, 7, 9)
WAYS: dict[str, Any] = {
    "serial": "serial",
    "stacks": {"kind": "vectorised", "stack": 3},
    "workers": {"kind": "processes", "stack": 2, "workers": 2},
}


def clients(kind: str) -> list[tuple[Any, Any]]:
    found, draw = [], np.random.default_rng(5)
    for n in SIZES:
        x = draw.normal(size=(n, 4)).astype(np.float32)
        y: Any = {
            "classification": draw.integers(0, 3, n),
            "binary": draw.integers(0, 2, n),
            "multilabel": draw.integers(0, 2, (n, 2)),
            "regression": (x @ [1.0, -2.0, 0.5, 0.0]).astype(np.float32),
        }[kind]
        found.append((x, y))
    return found


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs))


def averaged(module: nn.Module, parts: list[tuple[Any, Any]], loss: Any, rate: float, rounds: int) -> nn.Module:
    """FedAvg with full batches, one step a round, all clients."""
    total = sum(len(y) for _, y in parts)
    for _ in range(rounds):
        mean = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
        for x, y in parts:
            mine = copy.deepcopy(module)
            loss(mine(torch.tensor(x)), torch.tensor(y)).backward()
            for name, p in mine.named_parameters():
                assert p.grad is not None
                mean[name] += (p.detach() - rate * p.grad) * (len(y) / total)
        module.load_state_dict(mean)
    return module


LOSSES: dict[str, tuple[int, Any]] = {
    "classification": (3, lambda z, y: functional.cross_entropy(z, y)),
    "binary": (1, lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.float())),
    "multilabel": (2, lambda z, y: functional.binary_cross_entropy_with_logits(z, y.float())),
    "regression": (1, lambda z, y: functional.mse_loss(z[:, 0], y)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LOSSES)
def test_federated_averaging_by_hand(kind: str, way: str) -> None:
    outputs, loss = LOSSES[kind]
    parts = clients(kind)
    experiment = Experiment(
        task=kind, rounds=3, local={"lr": 0.3, "batch_size": "full"}, executor=WAYS[way], per_round=3
    )
    result = run(experiment, data=FederatedData.from_clients(parts, test=parts[0]), model=net(outputs))
    expected = averaged(net(outputs), parts, loss, 0.3, 3)
    for mine, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    x, y = parts[0]
    assert result.history[-1].loss == pytest.approx(
        float(loss(expected(torch.tensor(x)), torch.tensor(y)).detach()), rel=1e-4
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("weights", ["balanced", "balanced-per-client", [1.0, 4.0]])
def test_class_weights_by_hand(weights: Any, way: str) -> None:
    parts = [(x, (RNG.random(len(x)) < 0.3).astype(int)) for x, _ in clients("binary")]
    everybody = np.bincount(np.concatenate([y for _, y in parts]), minlength=2)

    def of(y: Tensor) -> Tensor:
        counts = np.bincount(y.numpy(), minlength=2) if weights == "balanced-per-client" else everybody
        table = counts.sum() / (max(1, (counts > 0).sum()) * np.maximum(counts, 1))
        return torch.tensor(table if isinstance(weights, str) else weights, dtype=torch.float32)[y]

    def loss(z: Tensor, y: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(z[:, 0], y.float(), reduction="none")
        return (each * of(y)).mean()

    experiment = Experiment(
        task="binary", loss={"class_weights": weights}, rounds=2, local={"lr": 0.3, "batch_size": "full"},
        executor=WAYS[way], per_round=3,
    )  # fmt: skip
    result = run(experiment, data=FederatedData.from_clients(parts, test=parts[0]), model=net(1))
    expected = averaged(net(1), parts, loss, 0.3, 2)
    for mine, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_mini_batches_keep_what_their_samples_count() -> None:
    parts = [(x, (RNG.random(len(x)) < 0.3).astype(int)) for x, _ in clients("binary")]
    data = FederatedData.from_clients(parts, test=parts[0])
    told = {"task": "binary", "loss": {"class_weights": [1.0, 5.0]}, "rounds": 2, "per_round": 3}
    found = [
        run(Experiment(**told, local={"lr": 0.2, "batch_size": 4}, executor=way), data=data, model=net(1))
        for way in WAYS.values()
    ]
    for other in found[1:]:
        assert other.history[-1].train_loss == pytest.approx(found[0].history[-1].train_loss, rel=1e-5)
        for a, b in zip(other.model.parameters(), found[0].model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# The user's own losses and metrics.

OWN = """
import torch
from torch.nn import functional

def pinball(z, y):
    error = y - z[:, 0]
    return torch.maximum(0.9 * error, -0.1 * error)

def mean_pinball(z, y):
    return pinball(z, y).mean()

class Log(torch.nn.Module):
    def forward(self, z, y):
        return torch.log1p((z[:, 0] - y) ** 2)

def worst(z, y):
    return (z[:, 0] - y).abs().max()

worst.higher_is_better = False

def summed(z, y):
    return pinball(z, y)[:-1]

def broken(z, y):
    raise RuntimeError("no such thing")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's."""
    (tmp_path / "own_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)
    return "own_losses"


def regression(**settings: Any) -> Result:
    parts = clients("regression")
    told = {"task": "regression", "rounds": 3, "per_round": 3, "local": {"lr": 0.1, "batch_size": 4}}
    return run(Experiment(**{**told, **settings}), data=FederatedData.from_clients(parts, test=parts[0]), model=net(1))


def test_a_loss_of_ones_own(own: str) -> None:
    made = __import__(own)
    by_sample = regression(loss=f"{own}:pinball", executor=WAYS["stacks"])
    by_mean = regression(loss=f"{own}:mean_pinball", executor="serial")
    assert by_sample.experiment.loss.reduction == "sample"
    assert by_mean.experiment.loss.reduction == "mean"
    for a, b in zip(by_sample.model.parameters(), by_mean.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert by_sample.history[-1].loss == pytest.approx(by_mean.history[-1].loss, rel=1e-4)
    handed = regression(loss=made.pinball, executor=WAYS["stacks"])
    assert handed.experiment.loss.name == f"{own}:pinball"
    assert regression(loss=f"{own}:Log").history[-1].loss > 0


def test_a_mean_cannot_be_stacked(own: str) -> None:
    with pytest.raises(InputError, match="one number for a whole mini-batch"):
        regression(loss=f"{own}:mean_pinball", executor=WAYS["stacks"])


def test_metrics_of_ones_own(own: str) -> None:
    result = regression(metrics=["rmse", f"{own}:worst"], target=100.0, target_metric="worst", stop_at_target=True)
    assert result.summary["rounds"] == 1  # less is better
    assert (result.summary["ended_early"], result.summary["rounds_to_target"]) == ("the target is reached", 1)
    data = result.data
    worst = (result.model(data.test.x)[:, 0] - data.test.y).abs().max().item()
    assert result.history[-1].worst == pytest.approx(worst, rel=1e-5)
    assert result.summary["worst"] == result.history[-1].worst


def test_functions_of_scikit_learn_have_another_order() -> None:
    with pytest.raises(InputError, match=r"takes \(y_true, y_pred\).*def mine\(outputs, targets\)"):
        regression(metrics=["sklearn.metrics:mean_absolute_percentage_error"])


@pytest.mark.parametrize(
    ("name", "better"), [("relative_error", "lower"), ("my_loss", "lower"), ("lossless", "higher")]
)
def test_an_error_should_be_low(name: str, better: str) -> None:
    from fedkeel.task.task import OwnMetric

    assert OwnMetric(name, lambda *_: 0.0).better == better


def test_a_loss_of_pytorch_is_told_by_its_name() -> None:
    with pytest.raises(InputError, match=r"loss\.name: MSELoss\(\) is a module of PyTorch; give its name, loss='mse'"):
        regression(loss=nn.MSELoss())


def test_what_is_printed_holds_no_sample() -> None:
    result = regression()
    assert repr(result.data) == "<FederatedData clients: 3 clients with 28 training and 12 test samples of shape [4]>"
    assert repr(result).startswith("<Result of fedavg: rmse ")
    with pytest.raises(InputError, match=r"clients must be a list of numbers; got 'r2'.*say metric="):
        result.evaluate_clients("r2")
    with pytest.raises(InputError, match=r"^experiment must be an Experiment, .*; got a FederatedData$"):
        run(result.data, result.experiment)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("summed", ["loss.name", "one loss per sample, a tensor [4]", "got a tensor [3]"]),
        ("broken", ["loss.name", "RuntimeError: no such thing", "own_losses.py, line"]),
        ("nothing", ["loss.name", "own_losses:nothing"]),
    ],
)
def test_a_loss_that_cannot_be_used(own: str, name: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        regression(loss=f"{own}:{name}")
    for word in words:
        assert word in str(caught.value)


# Sequences.


class Tagger(nn.Module):
    """A class for each token, from the token and the one before it."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embedding(x)
        return self.head(torch.cat([z, torch.roll(z, 1, 1)], -1))


@pytest.mark.parametrize("way", [WAYS["serial"], WAYS["stacks"]])
def test_the_next_token(way: Any) -> None:
    torch.manual_seed(0)
    start = RNG.integers(0, 7, (60, 1))
    text = (start + 2 * np.arange(9)) % 7  # each token is the one before, plus two
    data = FederatedData.from_arrays(text[:, :-1], text[:, 1:], clients=4, vocabulary=7, test=0.25)
    experiment = Experiment(
        task="sequence", rounds=30, per_round=4, local={"lr": 2.0, "batch_size": 8, "epochs": 2}, executor=way
    )
    result = run(experiment, data=data, model=Tagger(7, 7))
    assert result.accuracy > 0.95
    assert result.history[-1].perplexity < 1.6
    assert len(result.evaluate_clients()) == 4


# What runs are tuned by.


def linear(validation: float | None, **settings: Any) -> Result:
    x = RNG.normal(size=(200, 3))
    y = x @ [1.0, 2.0, 3.0]
    data = FederatedData.from_arrays(x, y, clients=4, test=0.2, validation=validation)
    torch.manual_seed(0)
    told = {"task": "regression", "rounds": 12, "per_round": 4, "local": {"lr": 0.1}}
    return run(Experiment(**{**told, **settings}), settings.get("out"), data=data, model=nn.Linear(3, 1))


def test_validation_decides_where_there_is_one() -> None:
    result = linear(0.2, target=0.5, stop_at_target=True)
    rows = [row.validation["rmse"] for row in result.history]  # type: ignore[index]
    assert rows[-1] <= 0.5 < rows[-2]
    assert result.summary["tuned_on"] == "validation"
    assert result.summary["validation"]["rmse"] == rows[-1]
    expected = result.model(result.data.validation.x)[:, 0] - result.data.validation.y  # type: ignore[union-attr]
    assert rows[-1] == pytest.approx(expected.square().mean().sqrt().item(), rel=1e-4)


def test_early_stopping_counts_evaluations_without_a_gain() -> None:
    result = linear(None, early_stopping={"patience": 2, "min_delta": 0.5}, rounds=50)
    values = [row.rmse for row in result.history]
    mark, stale, expected = values[0], 0, len(values)
    for number, value in enumerate(values[1:], 2):
        mark, stale = (value, 0) if mark - value > 0.5 else (mark, stale + 1)
        if stale == 2:
            expected = number
            break
    assert len(values) == expected < 50
    assert result.summary["ended_early"] == "rmse has not become better in 2 evaluations"


def noisy() -> FederatedData:
    """Of which every round learns another client's chance: errors go up and down."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(60, 3))
    return FederatedData.from_arrays(x, x @ [1.0, 2.0, 3.0] + 2 * draw.normal(size=60), clients=4, test=0.2)


def test_the_best_model_is_kept_as_well_as_the_last(tmp_path: Path) -> None:
    data = noisy()
    torch.manual_seed(0)
    told = Experiment(task="regression", rounds=9, per_round=1, local={"lr": 0.1, "batch_size": 2}, seed=4)
    result = run(told, tmp_path / "run", data=data, model=nn.Linear(3, 1))
    best = min(result.history, key=lambda row: row.rmse)
    assert result.summary["best_round"] == best.round
    assert best.round < 9  # else this shows nothing
    assert result.best_model is not None
    z = result.best_model(data.test.x)[:, 0]
    assert (z - data.test.y).square().mean().sqrt().item() == pytest.approx(best.rmse, rel=1e-5)
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "run" / "best_model.safetensors")
    torch.testing.assert_close(saved["weight"], result.best_model.weight, rtol=0, atol=0)  # type: ignore[arg-type]


def test_what_was_best_survives_a_resumption(tmp_path: Path) -> None:
    from fedkeel import Stop

    data = noisy()
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    settings = {"rounds": 8, "per_round": 1, "local": {"lr": 0.1, "batch_size": 2}, "seed": 4}
    told = Experiment(task="regression", early_stopping={"patience": 6}, checkpoint={"seconds": 0}, **settings)
    whole = run(told, tmp_path / "whole", data=data, model=model)
    stop = Stop()

    def after(end: Any) -> None:
        stop.asked = end.round == 5

    with pytest.raises(Exception, match="stopped"):
        run(told, tmp_path / "part", data=data, model=model, progress=after, stop=stop)
    again = resume(tmp_path / "part", data=data, model=model)
    for name in ("best_model.safetensors", "model.safetensors"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert again.summary["best_round"] == whole.summary["best_round"]


# Each client on its own rows.


def test_opposite_silos_are_told_apart() -> None:
    """A model that suits the large silo is wrong about every row of the small one."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 2))
    y = (x[:, 0] > 0).astype(int)
    silos = [(x[:800], y[:800]), (x[800:], 1 - y[800:])]
    settings = {"rounds": 20, "per_round": 2, "local": {"lr": 0.3}}
    own = run(Experiment(**settings), data=FederatedData.from_clients(silos, test=0.25), model=nn.Linear(2, 2))
    found = own.evaluate_clients()
    for client in (0, 1):
        rows = own.data.test_rows[client]  # type: ignore[index]
        hits = own.model(own.data.test.x[rows]).argmax(1) == own.data.test.y[rows]
        assert found[client] == pytest.approx(float(hits.double().mean()))
    assert found[0] > 0.93
    assert found[1] < 0.07
    assert own.summary["client_accuracy"]["mean"] == pytest.approx(found.mean())
    assert "client_accuracy_estimated" not in own.summary
    common = FederatedData.from_clients(silos, test=(x, y))
    estimated = run(Experiment(**settings, evaluate_clients=True), data=common, model=nn.Linear(2, 2))
    assert "client_accuracy" not in estimated.summary
    assert estimated.summary["client_accuracy_estimated"]["mean"] > 0.9  # it cannot see that the silos disagree
    assert estimated.summary["clients_tested_on"] == "estimates from the common test set"


def test_rows_of_every_client_and_class(tmp_path: Path) -> None:
    parts = clients("binary")
    named = FederatedData.from_clients(parts, test=0.4, client_names=["Bern", "Basel", "Biel"])
    told = Experiment(
        task="binary", metrics=["auroc", "f1"], rounds=2, per_round=3, evaluate_clients=True, evaluate_classes=True
    )
    result = run(told, tmp_path / "run", data=named, model=net(1))
    rows = [json.loads(line) for line in (tmp_path / "run" / "client_metrics.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["Bern", "Basel", "Biel"]
    assert [row["rows"] for row in rows] == [len(named.test_share(c, 0)) for c in range(3)]
    assert not any(row["estimated"] for row in rows)
    for metric in ("auroc", "f1"):
        column = [np.nan if row[metric] is None else row[metric] for row in rows]
        np.testing.assert_allclose(column, result.evaluate_clients(metric=metric))
    np.testing.assert_array_equal(result.evaluate_clients(), result.evaluate_clients(metric="auroc"))
    with pytest.raises(InputError, match="choose one of auroc, f1, loss"):
        result.evaluate_clients(metric="accuracy")
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert history[-1]["clients"]["f1"]["mean"] == pytest.approx(result.summary["client_f1"]["mean"])
    assert history[-1]["by_class"] == result.summary["by_class"]
    assert history[-1]["auroc"] == result.summary["auroc"] == result.metrics["auroc"]


# What does not fit.


@pytest.mark.parametrize(
    ("kind", "y", "outputs", "words"),
    [
        ("classification", RNG.normal(size=20), 3, ["real numbers", "task=regression"]),
        ("classification", np.eye(20, 3)[:, :2].astype(int), 3, ["shape [", "task=multilabel"]),
        ("binary", np.arange(20) % 3, 1, ["0 or 1", "values from 0 to 2"]),
        ("multilabel", np.arange(20) % 2, 2, ["[samples, labels]"]),
        ("sequence", np.arange(20) % 2, 2, ["each token", "x[:, 1:]"]),
        ("binary", np.arange(20) % 2, 3, ["output has shape", "one logit"]),
        ("regression", RNG.normal(size=20), 2, ["output has shape", "task=regression"]),
        ("classification", np.arange(20) % 4, 3, ["[", "4]", "labels run from 0 to 3"]),
    ],
)
def test_targets_and_outputs_that_do_not_fit(kind: str, y: Any, outputs: int, words: list[str]) -> None:
    data = FederatedData.from_arrays(RNG.normal(size=(20, 4)), y, clients=2)
    with pytest.raises(InputError) as caught:
        run(Experiment(task=kind, rounds=1), data=data, model=net(outputs))
    for word in words:
        assert word in str(caught.value)


def test_zeros_and_ones_may_be_real_numbers() -> None:
    data = FederatedData.from_arrays(RNG.normal(size=(20, 4)), (np.arange(20) % 2).astype(float), clients=2)
    assert run(Experiment(task="binary", rounds=1), data=data, model=net(1)).metrics.keys() == {"accuracy", "auroc"}


def test_models_of_the_zoo_fit_the_task() -> None:
    x = RNG.normal(size=(40, 1, 8, 8))
    for kind, y in (("binary", np.arange(40) % 2), ("regression", RNG.normal(size=(40, 3)))):
        data = FederatedData.from_arrays(x, y, clients=2)
        result = run(Experiment(task=kind, rounds=1, model="linear"), data=data)
        assert result.model(data.test.x).shape[1] == (1 if kind == "binary" else 3)


def test_fedgh_needs_classes() -> None:
    data = FederatedData.from_arrays(RNG.normal(size=(40, 4)), RNG.normal(size=40), clients=2)
    with pytest.raises(InputError, match="needs task=classification, as its header is trained on"):
        run(Experiment(task="regression", algorithm="fedgh", rounds=1), data=data, model=net(1))
