"""FedBABU against its rounds and its fine-tuning written out with torch.optim."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, InputError, Result, RoundEnd, run
from fedkeel.runner import scores
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, PER_ROUND, ROUNDS, SEED, Vector
from tests.helpers.tiers import slow_but

ROUGH: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.3, "lr_decay": 0.8}
BODY = 8 * 3 * 4
"""Bytes of the first layer of `federation.net(4)`."""


def points() -> tuple[Vector, Any]:
    """Many points with labels at random: hardly a weight can move without one of them changing sides."""
    rng = np.random.default_rng(4)
    return rng.normal(size=(2000, 3)).astype(np.float32).astype(np.float64), rng.integers(0, 2, 2000)


def federated(*without: int) -> FederatedData:
    """The federation's clients, some of them without samples, and that test set."""
    parts = [(x[:0], y[:0]) if client in without else (x, y) for client, (x, y) in enumerate(federation.clients())]
    return FederatedData.from_clients(parts, test=points())


@pytest.fixture(autouse=True)
def _larger_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "data", federated)


def descend(net: nn.Module, batches: Any, moving: Sequence[Tensor], rate: float, settings: dict[str, Any]) -> nn.Module:
    """The net after one step a mini-batch; `moving` is all that the optimiser knows."""
    plain = {key: settings.get(key, 0) for key in ("momentum", "weight_decay")}
    optimiser = torch.optim.SGD(moving, lr=rate, **plain)
    net.train()
    for x, y in batches:
        optimiser.zero_grad()
        cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        if "clip_norm" in settings:
            nn.utils.clip_grad_norm_(moving, settings["clip_norm"])
        optimiser.step()
    return net


def by_hand(settings: dict[str, Any]) -> nn.Module:
    """The global model: bodies trained and averaged plainly under a head that stays."""
    model = federation.net(4).double()
    assert isinstance(model, nn.Sequential)
    for round_ in range(1, ROUNDS + 1):
        bodies = []
        for client in federation.chosen(round_):
            net = copy.deepcopy(model)
            rate = LR * settings.get("lr_decay", 1) ** (round_ - 1)
            descend(net, federation.batches(round_, client), list(net[:-1].parameters()), rate, settings)
            bodies.append(net[0].state_dict()["weight"])
        model[0].load_state_dict({"weight": torch.stack(bodies).mean(0)})
    return model


def hits(net: nn.Module, samples: Any = slice(None)) -> float:
    """The accuracy on these test samples."""
    x, y = points()
    net.eval()
    return float(np.mean(net(torch.from_numpy(x)).argmax(1).numpy()[samples] == y[samples]))


def shares(
    model: nn.Module,
    part: str = "all",
    epochs: int = 0,
    without: Sequence[int] = (),
    lr: float | None = None,
    **settings: Any,
) -> Vector:
    """Each client's accuracy on its own test share, after so many epochs from the global model."""
    accuracy = np.full(federation.N, np.nan)
    for client in set(range(federation.N)).difference(without):
        net = copy.deepcopy(model)
        assert isinstance(net, nn.Sequential)
        moving = {"all": net, "body": net[:-1], "head": net[-1]}[part]
        rate = lr or LR * settings.get("lr_decay", 1) ** (ROUNDS - 1)
        descend(net, federation.batches(ROUNDS + 1, client, epochs), list(moving.parameters()), rate, settings)
        accuracy[client] = hits(net, federated(*without).test_share(client, SEED).numpy())
    return accuracy


def assert_spread(spread: dict[str, float], values: Vector) -> None:
    known = np.sort(values[~np.isnan(values)])
    assert spread == pytest.approx({"mean": known.mean(), "std": known.std(), "worst_decile": known[0]}, abs=1e-12)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
@pytest.mark.parametrize("settings", [{}, ROUGH], ids=["plain", "momentum, decay and clipping"])
def test_rounds_and_fine_tuning_by_hand(executor: str, settings: dict[str, Any]) -> None:
    result, _ = federation.train("fedbabu", executor, federation.net(4), local=settings)
    expected = by_hand(settings)
    for got, wanted in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(expected[0].weight, federation.net(4)[0].weight.double(), atol=1e-2)  # type: ignore[index]
    assert result.accuracy == pytest.approx(hits(expected), abs=1e-12)
    tuned = shares(expected, epochs=5, **settings)
    assert result.finetuned_accuracy == pytest.approx(tuned, abs=1e-12)
    assert_spread(result.summary["client_accuracy_finetuned_estimated"], tuned)
    assert_spread(result.summary["client_accuracy_estimated"], shares(expected))
    assert tuned != pytest.approx(shares(expected), abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_parts_that_fine_tuning_moves(part: str) -> None:
    result, _ = federation.train("fedbabu", "stack 3", federation.net(4), local=ROUGH, finetune={"part": part})
    tuned = {each: shares(result.model, each, 5, **ROUGH) for each in ("all", "body", "head")}
    assert result.finetuned_accuracy == pytest.approx(tuned.pop(part), abs=1e-12)
    assert all(result.finetuned_accuracy != pytest.approx(other, abs=1e-12) for other in tuned.values())


@pytest.mark.slow
def test_fine_tuning_at_a_rate_of_its_own() -> None:
    result, _ = federation.train("fedbabu", model=federation.net(4), local=ROUGH, finetune={"lr": 0.4})
    assert result.finetuned_accuracy == pytest.approx(shares(result.model, epochs=5, lr=0.4, **ROUGH), abs=1e-12)
    assert result.finetuned_accuracy != pytest.approx(shares(result.model, epochs=5, **ROUGH), abs=1e-12)


def test_a_body_that_is_not_there_cannot_be_fine_tuned() -> None:
    with pytest.raises(
        InputError, match=r"^finetune\.part: this model has no body, as it is all head; use all or head$"
    ):
        federation.train("fedavg", finetune={"epochs": 1, "part": "body"})


@pytest.mark.slow
def test_fine_tuning_is_for_every_method_and_can_be_left_out() -> None:
    average, _ = federation.train("fedavg", model=federation.net(4), finetune={"epochs": 2})
    plain, _ = federation.train("fedavg", model=federation.net(4))
    assert average.finetuned_accuracy == pytest.approx(shares(average.model, epochs=2), abs=1e-12)
    np.testing.assert_array_equal(federation.weights(average), federation.weights(plain))
    none, _ = federation.train("fedbabu", model=federation.net(4), finetune={"epochs": 0})
    for result in (plain, none):
        assert result.finetuned_accuracy is None
        assert "client_accuracy_finetuned_estimated" not in result.summary


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "stack 3", "processes"], "serial", "stack 3"))
def test_more_clients_than_are_fine_tuned_at_once(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two together, and those without samples have nothing to train or to be tested on."""
    empty = 0, 2, 3
    monkeypatch.setattr(scores, "AT_ONCE", 2)
    monkeypatch.setattr(federation, "data", lambda: federated(*empty))
    result, _ = federation.train("fedbabu", executor, federation.net(4))
    tuned = shares(result.model, epochs=5, without=empty)
    assert result.finetuned_accuracy == pytest.approx(tuned, abs=1e-12, nan_ok=True)
    assert np.isnan(tuned).sum() == 3
    assert_spread(result.summary["client_accuracy_finetuned_estimated"], tuned)


@pytest.mark.slow
def test_fine_tuning_that_diverges_is_told() -> None:
    """Weight decay makes weights grow about a hundredfold in a step: one is finite, forty are not."""
    local = {"epochs": 1, "batch_size": "full", "lr": 1.0, "weight_decay": 99.0}
    common: dict[str, Any] = {"model": federation.net(4), "rounds": 1, "dtype": "float32", "local": local}
    fine, _ = federation.train("fedavg", **common, finetune={"epochs": 1})
    assert fine.summary["finetuning_diverged"] == []
    lost, _ = federation.train("fedavg", **common, finetune={"epochs": 40})
    assert lost.summary["finetuning_diverged"] == list(range(federation.N))
    assert lost.summary["client_accuracy_finetuned_estimated"] is None
    assert lost.finetuned_accuracy is not None
    assert np.isnan(lost.finetuned_accuracy).all()
    assert lost.summary["client_accuracy_estimated"] is not None  # the run itself is not lost


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"dtype": "float32", "per_round": 5, "rounds": 20}], ids=["short", "longer"])
def test_the_head_never_moves_and_is_everybodys(settings: dict[str, Any]) -> None:
    """Not by a rounding error: it is not even sent."""
    result, _ = federation.train("fedbabu", "serial", federation.net(4), local=ROUGH, **settings)
    first = federation.net(4)[-1].weight.to(getattr(torch, settings.get("dtype", "float64")))  # type: ignore[index]
    for client in range(federation.N):
        assert torch.equal(result.client_model(client)[-1].weight, first)  # type: ignore[index]
    assert torch.equal(result.model[-1].weight, first)  # type: ignore[index]


@pytest.mark.slow
def test_only_the_body_travels() -> None:
    result, ends = federation.train("fedbabu", model=federation.net(4))
    assert_bytes(result, ends, BODY)


@pytest.mark.slow
def test_batch_norm_statistics_travel_with_the_body_and_are_fine_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    even = [
        (rng.normal(size=(8, 3)).astype(np.float32).astype(np.float64), np.arange(8) % 2) for _ in range(federation.N)
    ]
    monkeypatch.setattr(federation, "clients", lambda: even)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    result, ends = federation.train("fedbabu", model=net)
    assert_bytes(result, ends, BODY + 8 * (4 + 4) + 8 * (4 + 4) + 8)  # weight and bias; mean, variance and a count
    assert float(result.model[1].running_mean.abs().max()) > 1e-3  # type: ignore[index]
    assert result.finetuned_accuracy == pytest.approx(shares(result.model, epochs=5), abs=1e-12)


def assert_bytes(result: Result, ends: list[RoundEnd], each: int) -> None:
    assert {(a.bytes_up, a.bytes_down) for end in ends for a in end.arrivals} == {(each, each)}
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == ROUNDS * PER_ROUND * each


@pytest.mark.parametrize("model", ["linear", nn.Linear(3, 2)], ids=["of the zoo", "bare"])
def test_a_model_without_a_body_is_refused(model: Any, tmp_path: Path) -> None:
    given = {} if isinstance(model, str) else {"data": federation.data(), "model": model}
    experiment = Experiment(algorithm="fedbabu", **({"model": model} if isinstance(model, str) else {}))
    ends: list[RoundEnd] = []
    with pytest.raises(InputError) as refusal:
        run(experiment, tmp_path / "out", **given, progress=ends.append)
    assert "fedbabu" in str(refusal.value)
    assert "all head; use a model with layers before its last one" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not ends
    assert not (tmp_path / "out").exists()
