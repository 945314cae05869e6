"""Clients' own models: what is refused before a run, and what is on disk whatever happens after it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, Result, run
from fedkeel.runner import clients

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 6)), np.arange(n) % 3) for n in (8, 6, 4, 8)]


def data() -> FederatedData:
    return FederatedData.from_clients(CLIENTS, test=CLIENTS[0])


class Net(nn.Module):
    """A body with batch norm and a constant, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * self.body(x))


class Twice(Net):
    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return self.head(z) + self.head(2 * z)


class Tempered(Net):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


class Probable(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


class Sequences(nn.Module):
    """Its head sees two steps of three features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).view(len(x), 2, 3)).mean(1)


def train(algorithm: Any, net: nn.Module, out: Path | None = None, **more: Any) -> Result:
    local = {"batch_size": 2, "lr": 0.1}
    settings = {"rounds": 2, "per_round": 2, "seed": 1, "executor": "serial", **more}
    return run(Experiment(algorithm=algorithm, local=local, **settings), out, data=data(), model=net)


@pytest.mark.parametrize(
    ("algorithm", "net", "words"),
    [
        ("moon", Twice(), "must call its head once, .*; got 2 calls"),
        ("fedgh", Twice(), "must call its head once, .*; got 2 calls"),
        ("fedgh", Tempered(), "output is not that of its head; use a model that ends with its head"),
        ("fedgh", Sequences(), "the features in front of the model's head cannot be used"),
        ("moon", nn.Linear(6, 3), "all head; use a model with layers before its last one"),
    ],
)
def test_models_whose_features_cannot_be_used_are_refused_first(
    algorithm: str, net: nn.Module, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        train(algorithm, net, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_log_softmax_behind_the_head_changes_nothing() -> None:
    torch.manual_seed(0)
    plain, same = Net(), Probable()
    same.load_state_dict(plain.state_dict())
    first, second = (train("fedgh", net, dtype="float64") for net in (plain, same))
    torch.testing.assert_close(first.model.head.weight, second.model.head.weight, rtol=0, atol=1e-12)  # type: ignore[union-attr]


def test_fedgh_without_a_share_to_test_on_is_refused() -> None:
    strange = FederatedData.from_clients([(np.ones((2, 6)), [0, 1])], test=(np.ones((2, 6)), [2, 2]))
    with pytest.raises(InputError, match="holds none of their classes"):
        run(Experiment(algorithm="fedgh"), data=strange, model=Net())


def test_own_models_on_disk_are_whole_and_of_their_own_types(tmp_path: Path) -> None:
    result = train("fedgh", Net(), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()  # there is no global model
    assert load_file(tmp_path / "header.safetensors").keys() == {"head.weight", "head.bias"}
    stored = load_file(tmp_path / "client_models.safetensors")
    clients = {name.partition("/")[0] for name in stored}
    rows = [json.loads(line) for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    assert clients == {str(row["client"]) for row in rows}
    for client in clients:
        net = Net()
        own = {name.removeprefix(f"{client}/"): t for name, t in stored.items() if name.startswith(f"{client}/")}
        net.load_state_dict(own)  # strict
        for name, expected in result.client_model(int(client)).state_dict().items():
            assert own[name].dtype == expected.dtype, name
            assert torch.equal(own[name], expected), name


def test_every_client_has_a_row(tmp_path: Path) -> None:
    result = train("fedavg", Net(), tmp_path, finetune={"epochs": 2})
    rows = [json.loads(line) for line in (tmp_path / "client_metrics.jsonl").read_text().splitlines()]
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    assert [row["accuracy"] for row in rows] == result.evaluate_clients().tolist()
    assert result.finetuned_accuracy is not None
    assert [row["finetuned"] for row in rows] == result.finetuned_accuracy.tolist()
    assert all(row["estimated"] for row in rows)  # the test set is nobody's
    assert [row["rows"] for row in rows] == [len(data().test_share(client, 0)) for client in range(4)]


@pytest.mark.parametrize("algorithm", ["fedbabu", "fedgh"])
def test_what_was_trained_is_on_disk_before_clients_are_tested(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clients, "_finetuned", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(algorithm, Net(), tmp_path, finetune={"epochs": 1})
    stored = "model.safetensors" if algorithm == "fedbabu" else "client_models.safetensors"
    assert (tmp_path / stored).exists()
    assert not (tmp_path / "summary.json").exists()
