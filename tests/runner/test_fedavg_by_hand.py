"""Three rounds of FedAvg against a loop in plain PyTorch, in float64."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, run, streams

SEED, CLIENTS, PER_ROUND, EPOCHS, BATCH = 3, 6, 4, 2, 8
SIZES = [5, 8, 17, 30, 16, 1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(3 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.norm(self.conv(x)))).flatten(1))


def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [(rng.normal(size=(n, 1, 4, 4)), rng.integers(0, 3, n)) for n in SIZES]


def by_hand(net: nn.Module, local: dict[str, float], server_lr: float) -> nn.Module:
    data = [(torch.tensor(x).float().double(), torch.tensor(y)) for x, y in clients()]
    net = copy.deepcopy(net).double()
    for round_ in (1, 2, 3):
        chosen = streams.generator(SEED, "sampling", round_).choice(CLIENTS, PER_ROUND, replace=False)
        trained, samples = [], []
        for client in sorted(chosen.tolist()):
            x, y = data[client]
            mine = copy.deepcopy(net).train()
            optimiser = torch.optim.SGD(
                mine.parameters(),
                lr=local["lr"] * local["lr_decay"] ** (round_ - 1),
                momentum=local["momentum"],
                weight_decay=local["weight_decay"],
            )
            for epoch in range(EPOCHS):
                order = streams.permutations(streams.keys(SEED, "batches", round_, client, epoch), len(y))[0]
                dropout = streams.key(SEED, "dropout", round_, client, epoch) >> 1
                for step, part in enumerate(torch.tensor(order).split(BATCH)):
                    torch.manual_seed(dropout ^ step)
                    optimiser.zero_grad()
                    cross_entropy(mine(x[part]), y[part]).backward()
                    nn.utils.clip_grad_norm_(mine.parameters(), local["clip_norm"])
                    optimiser.step()
            trained.append(mine.state_dict())
            samples.append(len(y))
        parameters = dict(net.named_parameters())
        new = {}
        for name, old in net.state_dict().items():
            mean = sum(n * state[name].double() for n, state in zip(samples, trained, strict=True)) / sum(samples)
            if name in parameters:
                mean = old + server_lr * (mean - old)
            new[name] = mean if old.is_floating_point() else mean.round()
        net.load_state_dict(new)
    return net


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
@pytest.mark.parametrize(
    "executor",
    [
        {"kind": "serial"},
        pytest.param({"kind": "processes", "stack": 0, "channels_last": False, "workers": 2}, marks=pytest.mark.slow),
    ],
    ids=["serial", "processes"],
)
def test_three_rounds_of_fedavg(server_lr: float, executor: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = Net()
    before = copy.deepcopy(net.state_dict())
    local = {"lr": 0.1, "lr_decay": 0.9, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 1.0}
    experiment = Experiment(
        per_round=PER_ROUND,
        rounds=3,
        seed=SEED,
        dtype="float64",
        executor=executor,
        local={"epochs": EPOCHS, "batch_size": BATCH, **local},
        algorithm={"name": "fedavg", "server_lr": server_lr},
    )
    data = FederatedData.from_clients(clients(), test=clients()[3])
    got = run(experiment, data=data, model=net).model.state_dict()
    want = by_hand(net, local, server_lr).state_dict()
    moved = 0.0
    for name, value in want.items():
        torch.testing.assert_close(got[name].double(), value.double(), rtol=0, atol=1e-6)
        moved = max(moved, float((value - before[name]).abs().max()))
    assert moved > 0.01
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before), "the user's model was changed"
