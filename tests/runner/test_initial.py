"""Runs that start from the weights of another run or of a file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.runner import initial
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.folders import left, resumed, same, stopped

SERIAL = {"kind": "serial", "stack": 0, "channels_last": False}


def described(**settings: Any) -> Experiment:
    common = {"rounds": 2, "per_round": 2, "local": {"lr": 0.1, "batch_size": 4}, "executor": SERIAL}
    return Experiment(**{**common, **settings})


def net() -> nn.Module:
    """With buffers, one of them an integer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(federation.FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, federation.CLASSES)
    )


def given() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    clients = [(rng.normal(size=(n, federation.FEATURES)), rng.integers(0, 2, n)) for n in (4, 8, 12, 4)]
    return {"data": FederatedData.from_clients(clients, test=clients[2]), "model": net()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "a"
    run(described(), folder, **given())
    return folder


def start(experiment: Experiment, **handed: Any) -> dict[str, Tensor]:
    """The model with which a run begins: nothing is learnt at such a rate."""
    local = {"lr": 1e-30, "batch_size": 4}
    return run(experiment.replace(rounds=1, local=local), **(handed or given())).model.state_dict()


def files(folder: Path, first: Path) -> list[Path]:
    """The same weights as users have them."""
    weights = load_file(first / "model.safetensors")
    shutil.copy(first / "model.safetensors", folder / "weights.safetensors")
    torch.save(weights, folder / "weights.pt")
    torch.save({"epoch": 3, "state_dict": weights}, folder / "weights.ckpt")
    return [folder / name for name in ("weights.safetensors", "weights.pt", "weights.ckpt")]


def test_from_a_run_or_a_file(first: Path, tmp_path: Path) -> None:
    weights = load_file(first / "model.safetensors")
    assert not torch.equal(start(described())["0.weight"], weights["0.weight"])
    for source in (first, *files(tmp_path, first)):
        begun = start(described(init=str(source)))
        assert torch.equal(begun["0.weight"], weights["0.weight"]), source
        assert torch.equal(begun["3.bias"], weights["3.bias"])


def test_buffers_are_taken_over(first: Path) -> None:
    module = net()
    initial.load(module, str(first))
    for name, tensor in load_file(first / "model.safetensors").items():
        assert torch.equal(module.state_dict()[name], tensor), name
    assert int(module.state_dict()["1.num_batches_tracked"]) > 0


def test_it_is_recorded_and_resumed_without_the_other_run(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first, tmp_path / "gone")
    experiment = described(algorithm="moon", init=str(tmp_path / "gone"), rounds=3)
    run(experiment, tmp_path / "whole", **given())
    assert Experiment.load(tmp_path / "whole" / "experiment.yaml").init == str(tmp_path / "gone")
    stopped(experiment, tmp_path / "stopped", 1, **given())
    shutil.copytree(tmp_path / "stopped", tmp_path / "anew")
    shutil.rmtree(tmp_path / "anew" / "checkpoint")
    shutil.rmtree(tmp_path / "gone")
    for name in ("stopped", "anew"):
        resumed(tmp_path / name, **given())
        same(tmp_path / "whole", tmp_path / name)


def broken(weights: dict[str, Tensor]) -> dict[str, tuple[dict[str, Tensor], str]]:
    other = {**weights, "0.weight": torch.zeros(5, federation.FEATURES)}
    return {
        "missing": ({k: v for k, v in weights.items() if k != "0.bias"}, r"lacks 0\.bias, which the model has; use"),
        "surplus": (
            {**weights, "4.bias": torch.zeros(1)},
            r"has 4\.bias, which the model does not have; use weights of",
        ),
        "shape": (other, r"0\.weight must have shape \[4, \d+\]; got \[5, \d+\] in "),
        "dtype": (
            {**weights, "0.weight": weights["0.weight"].double()},
            "0.weight must be of type float32; got float64",
        ),
        "nan": ({**weights, "0.weight": weights["0.weight"] * torch.nan}, "has values that are not finite"),
    }


@pytest.mark.parametrize("case", ["missing", "surplus", "shape", "dtype", "nan"])
def test_weights_of_another_model_are_refused(case: str, first: Path, tmp_path: Path) -> None:
    weights, said = broken(load_file(first / "model.safetensors"))[case]
    save_file(weights, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=f"^init: .*{said}"):
        run(described(init=str(tmp_path / "other.safetensors")), tmp_path / "a", **given())
    assert not (tmp_path / "a").exists()


def test_what_holds_no_weights_is_refused(first: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.safetensors").write_text("no weights")
    (tmp_path / "text.pt").write_text("no weights")
    torch.save(net(), tmp_path / "module.pt")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    shutil.copytree(first, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    run(described(algorithm="fedgh"), tmp_path / "fedgh", data=federation.data(), model=federation.net(4))
    before = left(tmp_path / "fedgh")
    for name, said in {
        "nothing": r"cannot be read \(No such file or directory\)",
        "empty": "holds no run; name the folder of a finished run, or a file of weights",
        "unfinished": "holds a run that is not finished; resume it first, or name another one",
        "fedgh": r"has no model\.safetensors, as its method trains no global model",
        "text.safetensors": "is not a safetensors file",
        "text.pt": r"is not a file of plain weights \(\w+\); save model.state_dict\(\) with",
        "module.pt": "is not a file of plain weights",
        "list.pt": "must hold tensors by name",
    }.items():
        with pytest.raises(InputError, match=f"^init: .*{name} {said}"):
            run(described(init=str(tmp_path / name)), **given())
    assert left(tmp_path / "fedgh") == before


@pytest.mark.slow
def test_in_a_comparison(tmp_path: Path) -> None:
    common = ["model=linear", "clients=4", "per_round=2", "rounds=1", "dataset.train_limit=40", "dataset.test_limit=20"]
    assert fedkeel("run", *common, "--out", "first", cwd=tmp_path).returncode == 0
    compare = ["compare", "--algorithms", "fedavg,scaffold", "--seeds", "0", *common]
    done = fedkeel(*compare, "init=first", "--out", "c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "first" / "model.safetensors")
    copies = [*(tmp_path / "c").rglob("init.safetensors")]
    assert len(copies) == 2
    assert all(torch.equal(load_file(copy)["head.weight"], weights["head.weight"]) for copy in copies)
    refused = fedkeel(*compare, "init=nowhere", "--out", "d", cwd=tmp_path)
    assert refused.returncode == 2
    assert "init: nowhere cannot be read" in refused.stderr
