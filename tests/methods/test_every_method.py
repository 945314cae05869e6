"""What every registered method must bear: all executors, repetition, unequal clients, and a convolutional network."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, run
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import Updates, methods
from fedkeel.params import FlatModel
from fedkeel.runner.choice import first_orders
from fedkeel.runner.simulation import Simulation
from fedkeel.wire.orders import Order, Trained
from tests.helpers import federation
from tests.helpers.federation import BATCH, LR, SEED, N, models
from tests.helpers.methods import few, small

ALL = pytest.mark.parametrize("name", list(methods()))
WORK = [2, 1, 3, 1, 4, 2]
"""Local epochs of each client."""


def smooth() -> nn.Module:
    """Without a closed form: stacks are vectorised by vmap."""
    layers = federation.net(4)
    assert isinstance(layers, nn.Sequential)
    return nn.Sequential(layers[0], nn.Tanh(), layers[2])


@pytest.mark.slow
@ALL
@pytest.mark.parametrize(
    ("net", "kinds"),
    [(lambda: federation.net(4), ("serial", "stack 3", "processes")), (smooth, ("serial", "stack 3"))],
    ids=["closed form", "vmap"],
)
def test_all_executors_agree_on_one_round_of_one_step(
    name: str, net: Callable[[], nn.Module], kinds: tuple[str, ...]
) -> None:
    """A worker process that trains one client after another does not care how stacks are computed."""
    local = {"epochs": 1, "batch_size": "full"}
    runs = [federation.train(small(name), kind, net(), rounds=1, per_round=N, local=local) for kind in kinds]
    assert {a.steps for a in runs[0][1][0].arrivals} == {1}
    expected = models(runs[0][0])
    assert float((expected[0] - FlatModel(net().double()).w).abs().max()) > 1e-4
    for result, ends in runs[1:]:
        torch.testing.assert_close(models(result), expected, rtol=0, atol=1e-12)
        assert result.summary["bytes_up"] == runs[0][0].summary["bytes_up"]
        assert ends[0].train_loss == pytest.approx(runs[0][1][0].train_loss, abs=1e-12)


@pytest.mark.slow
@ALL
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    """With partial participation of unequal clients, one of which has a single sample."""
    assert 4 in federation.chosen(1)
    first, again = (
        federation.train(small(name), "stack 3", federation.net(4), rounds=3, schedule=few(name))[0] for _ in range(2)
    )
    other, _ = federation.train(small(name), "stack 3", federation.net(4), rounds=3, schedule=few(name), seed=SEED + 1)
    assert torch.equal(models(first), models(again))
    assert not torch.allclose(models(first), models(other), atol=1e-6)
    told = [[replace(e, wall_seconds=0.0) for e in result.history] for result in (first, again)]
    assert told[0] == told[1]


def unequal(first: Sequence[Order]) -> list[Order]:
    """One order a client, each with its own number of epochs and rates, and as if it had something to remember."""
    draw = torch.Generator().manual_seed(7)

    def shaken(message: Any) -> dict[str, Tensor]:
        return {
            k: t + 0.1 * torch.randn(t.shape, generator=draw, dtype=t.dtype) if t.is_floating_point() else t
            for k, t in message.items()
        }

    return [
        replace(
            order,
            epochs=WORK[order.client],
            lr=torch.linspace(LR, LR / 2, WORK[order.client], dtype=torch.float64),
            received=shaken(order.received),
            kept=shaken(order.kept),
        )
        for order in first
    ]


@ALL
@pytest.mark.parametrize("rough", [False, True])
def test_unequal_work_is_the_same_one_by_one_and_in_a_stack(name: str, rough: bool) -> None:
    """As it comes, where steps may be made in one go, and with all that a gradient may go through first."""
    data, net = federation.data().to(torch.float64), federation.net(4).double()
    more = {"momentum": 0.0 if name == "mimelite" else 0.9, "weight_decay": 1e-2, "clip_norm": 0.5} if rough else {}
    local = {"batch_size": BATCH, "epochs": max(WORK), **more}
    experiment = Experiment(
        algorithm=name, local=local, clients=N, per_round=N, seed=SEED, dtype="float64", schedule={"busy_share": 1.0}
    )
    shop = Workshop(net, data, experiment.algorithm.rules()[0], experiment.local, SEED)
    kinds = (ExecutorSettings(kind="serial"), ExecutorSettings(kind="vectorised", stack=N))
    simulation = Simulation(experiment, data, FlatModel(net), shop.executor(kinds[0]))
    orders = unequal(first_orders(experiment, data, FlatModel(net), shop.executor(kinds[0])))
    alone, stacked = (shop.executor(kind).train(orders).columns for kind in kinds)
    assert alone.keys() == stacked.keys()
    done = torch.arange(max(WORK)) < torch.tensor([[order.epochs] for order in orders])
    for columns in (alone, stacked):  # what stands behind a client's last epoch says nothing
        columns["lr"] = torch.where(done, columns["lr"], 0.0)
    for column, expected in alone.items():
        torch.testing.assert_close(stacked[column], expected, rtol=0, atol=1e-11, msg=lambda m: f"{column}: {m}")  # noqa: B023
    steps = {client: WORK[client] * -(-size // BATCH) for client, size in enumerate(federation.SIZES)}
    assert alone["steps"].tolist() == [steps[order.client] for order in orders]
    assert bool(((alone["w"] - orders[0].start).abs().amax(1) > 1e-3).all())
    if simulation.experiment.pace != "barrier":
        return
    state, weights = simulation.core.model.rule.aggregate(
        simulation.core.model.state, updates(simulation, orders, Trained(alone))
    )
    assert bool(torch.isfinite(state.w).all())
    assert bool(torch.isfinite(weights).all())
    assert weights.shape == (N,)
    assert float((state.w - orders[0].start).abs().max()) > 1e-4


def updates(simulation: Simulation, orders: list[Order], trained: Trained) -> Updates:
    """What the server gets to see of it."""
    return Updates(
        w=trained.w,
        start=torch.stack([order.start for order in orders]),
        samples=torch.tensor([[federation.SIZES[order.client]] for order in orders]),
        epochs=torch.tensor([[order.epochs] for order in orders]),
        steps=trained.steps[:, None],
        lr=trained.lr,
        messages=trained.messages,
        layout=simulation.core.model.layout,
        sums=trained.sums,
        asked=max(WORK),
        momentum=simulation.experiment.local.momentum,
        pull=simulation.core.model.client_rule.pull,
        loss=trained.loss[:, None],
    )


@pytest.mark.slow
@ALL
def test_a_convolutional_network_on_embedded_data(name: str) -> None:
    local = {"momentum": 0.0 if name == "mimelite" else 0.9, "clip_norm": 1, "weight_decay": 1e-3}
    size = {"train_limit": 80, "test_limit": 50}
    result = run(
        Experiment(
            dataset=size, model="lenet5", algorithm=name, clients=4, per_round=2, rounds=1, local=local,
            executor="serial", finetune={"epochs": 1},
        )
    )  # fmt: skip
    (row,) = result.history
    assert np.isfinite([row.loss, row.train_loss]).all()
    assert 0 <= row.accuracy <= 1
    assert row.updates == 2
    assert result.finetuned_accuracy is not None
    assert np.isfinite(result.finetuned_accuracy).all()
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())
