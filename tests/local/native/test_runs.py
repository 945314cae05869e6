"""Whole runs by the native kernels: every method, stopped and resumed, repeated, chosen, refused, remembered."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, Result, run
from fedkeel.local.executors import choose
from fedkeel.local.native import library
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import methods
from fedkeel.params import FlatModel
from fedkeel.record import lock
from fedkeel.runner import choice, remembered
from fedkeel.runner.remembered import place, recall, remember
from tests.helpers.folders import FAULTS, FLEET, left, resumed, same, stopped
from tests.helpers.methods import few, small
from tests.helpers.native import needed

SIZES = [9, 3, 7, 12, 1, 5]
THREADS = {"kind": "threads", "stack": 4, "native": True, "channels_last": False, "workers": 2}


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 6, 6)), rng.integers(0, 3, n)) for n in SIZES]
    return FederatedData.from_clients(parts, test=parts[3])


def net(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), *more, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))


def go(executor: Any, out: Path | None = None, model: nn.Module | None = None, **more: Any) -> Result:
    settings = {"rounds": 2, "per_round": 3, "local": {"batch_size": 4, "epochs": 2, "lr": 0.1}, **more}
    return run(Experiment(executor=executor, **settings), out, data=data(), model=model or net())


def models(result: Result) -> Tensor:
    """The global model and every client's own, one below the other."""
    everybody = [result.model, *(result.client_model(client) for client in range(len(SIZES)))]
    return torch.stack([FlatModel(each).w for each in everybody])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_is_what_it_is_by_autograd(name: str) -> None:
    needed()
    more = {"dtype": "float64", "schedule": few(name)}
    expected = go("serial", algorithm=small(name), **more)
    got = go(THREADS, algorithm=small(name), **more)
    torch.testing.assert_close(models(got), models(expected), rtol=0, atol=1e-8)
    assert float((models(got)[0] - FlatModel(net().double()).w).abs().max()) > 1e-4
    for one, other in zip(got.history, expected.history, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-8)
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-8)
        assert one.accuracy == other.accuracy
    assert got.summary["instruction_set"] == needed().isa


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam", "fedagg", "fedasmu", "fedbuff"])
def test_a_run_goes_on_bit_for_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE", 1)
    described = Experiment(
        algorithm=small(name), rounds=5, per_round=3, local={"batch_size": 4, "epochs": 3, "momentum": 0.5},
        executor=THREADS, fleet=FLEET, faults=FAULTS, schedule=few(name), gate={"max_norm": 1e6},
    )  # fmt: skip
    given = {"data": data(), "model": net()}
    run(described, tmp_path / "whole", **given)
    stopped(described, tmp_path / "stopped", 2, **given)
    _, told = resumed(tmp_path / "stopped", **given)
    assert told == [f"{tmp_path / 'stopped'} goes on after round 2"]
    same(tmp_path / "whole", tmp_path / "stopped")


# The choice.


@pytest.fixture
def eager_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as worth a choice, native training looks best, and nothing is remembered."""
    monkeypatch.setattr(choose, "_NOTICEABLE", 0.0)
    monkeypatch.setattr(choose, "_LEAST", 10.0)
    monkeypatch.setattr(choice, "recall", lambda _: None)
    monkeypatch.setattr(
        choose._Contest, "_rehearse", lambda _, ways, *__: {way: 0.0 if way.native else 1.0 for way in ways}
    )


@pytest.mark.usefixtures("eager_to_choose")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsam"])
def test_what_auto_chose_is_repeated_bit_for_bit(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed()
    first = go("auto", tmp_path / "first", algorithm=algorithm)
    written = yaml.safe_load((tmp_path / "first" / "experiment.yaml").read_text())["executor"]
    assert written == first.experiment.executor.model_dump()
    assert written["native"] is True
    assert first.summary["why_not_native"] is None
    assert json.loads((tmp_path / "first" / "run.json").read_text())["instruction_set"] == needed().isa
    monkeypatch.setattr(choose, "_Contest", None)  # nothing is measured again
    again = go(written, tmp_path / "again", algorithm=algorithm)
    assert torch.equal(models(first), models(again))
    one, other = left(tmp_path / "first"), left(tmp_path / "again")
    for name in ("experiment.yaml", "history.jsonl", "clients.jsonl", "rounds.jsonl", "model.safetensors"):
        assert one[name] == other[name], name


@pytest.mark.usefixtures("eager_to_choose")
def test_auto_says_why_it_is_not_native() -> None:
    needed()
    told = go("auto", model=net(nn.BatchNorm2d(3))).summary
    assert told["why_not_native"] == "PyTorch computes the gradients: the model has a layer BatchNorm2d."
    assert told["executor"]["native"] is False
    assert told["instruction_set"] is None
    assert go({"native": False}).summary["why_not_native"] is None


@pytest.mark.usefixtures("eager_to_choose")
def test_without_kernels_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    told = go("auto").summary
    assert told["executor"]["native"] is False
    assert (
        told["why_not_native"]
        == "PyTorch computes the gradients: native kernels are switched off by FEDKEEL_NATIVE=no."
    )


@pytest.mark.usefixtures("eager_to_choose")
def test_what_was_asked_for_is_kept() -> None:
    """Native training looks best, and does not come with images pixel by pixel, nor where it was ruled out."""
    needed()
    asked = go({"channels_last": True}).experiment.executor
    assert asked.channels_last is True
    assert asked.native is False
    assert go({"native": False}).experiment.executor.native is False
    assert go({"kind": "vectorised", "stack": 2}).experiment.executor.native is False
    alone = go({"stack": 0, "native": True}).experiment.executor
    assert alone.native is True
    assert alone.stack == 0
    many = go({"kind": "processes", "native": True, "workers": 2}).experiment.executor
    assert (many.kind, many.native, many.workers) == ("processes", True, 2)
    assert go("threads").experiment.executor.settled


@pytest.mark.parametrize(
    ("executor", "sentence"),
    [
        (
            {"native": True, "channels_last": True},
            "executor.channels_last does not go with native training; keep one of the two",
        ),
        (
            {"kind": "threads", "native": False},
            "executor.native must be true with executor.kind=threads; got false",
        ),
        (
            {"kind": "threads", "stack": 0},
            "executor.stack must be 1 or more with executor.kind=threads; got 0",
        ),
        (
            {"kind": "threads", "channels_last": True},
            "executor.channels_last does not go with native training; keep one of the two",
        ),
        ({"kind": "threads", "workers": 0}, "executor.workers"),
        ({"native": "perhaps"}, "executor.native"),
    ],
)
def test_contradictions_are_refused(executor: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(executor=executor)
    assert sentence in str(caught.value)


NORMED = "the model has a layer BatchNorm2d"


@pytest.mark.parametrize(
    ("executor", "sentence"),
    [
        ({"native": True}, f"executor.native=true cannot be used here: {NORMED}; set executor.native=false"),
        (
            {"kind": "serial", "native": True},
            f"executor.native=true cannot be used here: {NORMED}; set executor.native=false",
        ),
        (
            "threads",
            f"executor.kind=threads cannot be used here: {NORMED}; use executor=auto, serial, vectorised or processes",
        ),
        (
            THREADS,
            f"executor.kind=threads cannot be used here: {NORMED}; use executor=auto, serial, vectorised or processes",
        ),
    ],
)
def test_a_model_that_the_kernels_do_not_know_is_refused(executor: Any, sentence: str) -> None:
    needed()
    with pytest.raises(InputError) as caught:
        go(executor, model=net(nn.BatchNorm2d(3)))
    assert str(caught.value) == sentence


@pytest.mark.parametrize("executor", [{"native": True}, {"kind": "processes", "native": True}, "threads"])
def test_kernels_that_are_switched_off_are_refused(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    with pytest.raises(InputError, match="cannot be used here: native kernels are switched off by FEDKEEL_NATIVE=no"):
        go(executor)


class Probable(nn.Module):
    """Says log-probabilities when it is tested, which the kernels would not."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.last(x.flatten(1))
        return z if self.training else z.softmax(1).log()


class Folded(Probable):
    """Has a ReLU only when it is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(x.flatten(1))
        z: Tensor = self.more(h if self.training else h.relu())
        return z


@pytest.mark.parametrize(
    ("kind", "why"), [(Probable, "the model calls softmax"), (Folded, "another one when it is tested")]
)
def test_a_model_that_is_another_one_when_it_is_tested_is_refused(kind: type[nn.Module], why: str) -> None:
    needed()
    with pytest.raises(InputError, match=why):
        go("threads", model=kind())
    assert go("serial", model=kind()).history


# What is remembered.


def test_another_instruction_set_or_none_is_another_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    experiment, module, found = Experiment(), net(), {place(Experiment(), data(), net(), 2)}
    assert {place(experiment, data(), module, 2)} == found
    others = [isa for isa in library.usable() if isa != needed().isa]
    for isa in others:
        monkeypatch.setenv("FEDKEEL_ISA", isa)
        found.add(place(experiment, data(), module, 2))
    monkeypatch.delenv("FEDKEEL_ISA", raising=False)
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    found.add(place(experiment, data(), module, 2))
    assert len(found) == 2 + len(others)


def test_a_choice_of_an_older_version_is_forgotten(tmp_path: Path) -> None:
    """Which says nothing of native training: neither in its settings nor why not."""
    path = tmp_path / "choice.json"
    remember(path, choose.Choice(choose.SERIAL, {"serial": 1.5}))
    assert recall(path) is not None
    told = json.loads(path.read_text())
    for where, key in (("settings", "native"), ("", "why_not_native")):
        older = {**told, "settings": {**told["settings"]}}
        del (older[where] if where else older)[key]
        path.write_text(json.dumps(older))
        assert recall(path) is None


@pytest.mark.parametrize("gone", ["kernels", "agreement"])
def test_a_remembered_choice_is_not_used_blindly(gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the place is the same and kernels are not there any more, or say something else, it is chosen anew."""
    needed()
    kept = tmp_path / "choice.json"
    monkeypatch.setattr(choice, "place", lambda *_: kept)
    chosen = choose.Choice(ExecutorSettings(**THREADS), {"threads": 0.1})
    remember(kept, chosen)
    assert go("auto").experiment.executor == chosen.settings
    if gone == "kernels":
        monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    else:
        monkeypatch.setattr(choice, "objection", lambda _, settings, __: "wrong" if settings.native else None)
    after = go("auto")
    assert after.experiment.executor.native is False
    found = recall(kept)
    assert found is not None
    assert found.settings.native is False


def test_tests_do_not_touch_a_users_choices() -> None:
    assert "choices" in str(remembered.cache_folder())
