"""The clients' optimisers against PyTorch's own, client by client, in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, streams
from fedkeel.local import trainer
from fedkeel.local.build import Workshop
from fedkeel.local.executors import memory_limits
from fedkeel.local.executors.agreement import objection
from fedkeel.local.native.gradient import NativeGradient
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.client import ClientRule, Merge
from fedkeel.methods.finetune import FineTuning
from fedkeel.methods.job import Fresh, Job
from fedkeel.methods.oracle import Oracle
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order
from tests.helpers import federation
from tests.helpers.federation import N
from tests.helpers.native import needed
from tests.helpers.tiers import slow_but

SEED, BATCH, SIZES, EPOCHS = 3, 4, [9, 1, 17, 4, 8, 8], [2, 3, 2, 1, 3, 1]
"""Unequal sizes and epochs: clients leave their stack one after the other, with last mini-batches of every size."""
RATES = [0.02, 0.01, 0.03]
WAYS = {
    "serial": ExecutorSettings(kind="serial"),
    "one stack": ExecutorSettings(kind="vectorised", stack=100),
    "stacks of two": ExecutorSettings(kind="vectorised", stack=2),
    "native": ExecutorSettings(kind="vectorised", stack=100, native=True),
    "processes": ExecutorSettings(kind="processes", stack=3, channels_last=False, workers=2),
}
LOCAL: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adam, all settings": {
        "optimizer": "adam", "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3, "clip_norm": 0.5
    },
    "adamw": {"optimizer": "adamw", "weight_decay": 0.3},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov, all settings": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.3, "clip_norm": 0.5},
}  # fmt: skip


def dense() -> nn.Sequential:
    """Has closed forms."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3))


def convolving() -> nn.Sequential:
    """Has none: stacks are vmap's."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 6, 6)), rng.integers(0, 3, n)) for n in SIZES]
    return FederatedData.from_clients(parts, test=parts[0]).to(torch.float64)


def workshop(net: nn.Module, rule: ClientRule | None = None, **local: Any) -> Workshop:
    settings = LocalSettings(**{"batch_size": BATCH, **local})
    return Workshop(net.double(), data(), rule or ClientRule(), settings, SEED)


def orders(starts: Tensor, round: int = 1) -> list[Order]:
    rates = torch.tensor(RATES, dtype=torch.float64)
    return [
        Order(client, client, round, epochs, starts[client], torch.zeros(0), rates[:epochs], {}, {})
        for client, epochs in enumerate(EPOCHS)
    ]


def by_torch(
    net: nn.Module, local: LocalSettings, start: Tensor, client: int, round: int, fresh: Tensor | None = None
) -> Tensor:
    """One job by torch.optim, perhaps with a mean with other weights after its first epoch."""
    module, federated = copy.deepcopy(net).double(), data()
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimizer: torch.optim.Optimizer
    if local.optimizer == "sgd":
        momentum = {"momentum": local.momentum, "nesterov": local.nesterov}
        optimizer = torch.optim.SGD(module.parameters(), lr=1, weight_decay=local.weight_decay, **momentum)
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[local.optimizer]
        optimizer = kind(module.parameters(), betas=local.betas, eps=local.eps, weight_decay=local.weight_decay)
    own = federated.client(client)
    for epoch in range(EPOCHS[client]):
        if fresh is not None and epoch == 1:
            w = nn.utils.parameters_to_vector(module.parameters())
            nn.utils.vector_to_parameters((w + fresh) / 2, module.parameters())
        order = streams.permutations(streams.keys(SEED, "batches", round, client, epoch), len(own))[0]
        for some in np.array_split(order, range(BATCH, len(own), BATCH)):
            x, y = federated.train_batch(own[some])
            optimizer.zero_grad()
            cross_entropy(module(x), y).backward()
            if local.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), local.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = RATES[epoch]
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("way", slow_but(WAYS, "serial", "one stack", "native"))
@pytest.mark.parametrize("local", list(LOCAL))
@pytest.mark.parametrize("net", [dense, pytest.param(convolving, marks=pytest.mark.slow)])
def test_two_jobs_of_every_client_are_those_of_torch(net: Any, local: str, way: str) -> None:
    """The second job begins where the first ended, and with an optimiser that remembers nothing."""
    if WAYS[way].native:
        needed()
    shop = workshop(net(), **LOCAL[local])
    executor = shop.executor(WAYS[way].completed)
    got = expected = FlatModel(shop.module).w.repeat(N, 1)
    try:
        for round in (1, 2):
            got = executor.train(orders(got, round)).columns["w"]
            expected = torch.stack([by_torch(net(), shop.local, w, i, round) for i, w in enumerate(expected)])
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    finally:
        executor.close()


def test_only_what_moves_is_decayed() -> None:
    """Fine-tuning of the head: the body keeps its bits."""
    shop = workshop(dense(), FineTuning(part="head"), optimizer="adamw", weight_decay=0.5)
    start = FlatModel(shop.module).w.repeat(N, 1)
    head = FlatModel(shop.module).layout.head
    for way in ("serial", "one stack"):
        w = shop.executor(WAYS[way].completed).train(orders(start)).columns["w"]
        assert torch.equal(w[:, ~head], start[:, ~head])
        assert bool((w[:, head] != start[:, head]).all())


def test_decay_of_adamw_is_no_part_of_the_gradient() -> None:
    """One step from the same gradient: PyTorch's Adam is scale-free, so decay shows as rate * decay * w alone."""
    starts = FlatModel(dense().double()).w.repeat(N, 1)
    plain, decayed = (
        workshop(dense(), optimizer="adamw", weight_decay=decay)
        .executor(WAYS["one stack"].completed)
        .train(orders(starts), limit=1)
        .columns["w"]
        for decay in (0.0, 0.4)
    )
    torch.testing.assert_close(plain - decayed, RATES[0] * 0.4 * starts, rtol=1e-9, atol=1e-12)


class Halving(ClientRule):
    """Takes the mean with a fresh model."""

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        return Merge(torch.full_like(w[:, :1], 0.5))


@pytest.mark.parametrize("way", ["serial", "one stack"])
@pytest.mark.parametrize("local", ["adam", "nesterov"])
def test_a_merge_in_mid_training_leaves_the_running_means(way: str, local: str) -> None:
    shop = workshop(dense(), Halving(), **LOCAL[local])
    start = FlatModel(shop.module).w
    fresh = torch.linspace(-1, 1, len(start), dtype=torch.float64)
    given = [
        replace(order, slot=1, fresh=Fresh(fresh, torch.zeros(0), 1)) if order.epochs > 1 else order
        for order in orders(start.repeat(N, 1))
    ]
    got = shop.executor(WAYS[way].completed).train(given).columns["w"]
    for client, w in enumerate(got):
        torch.testing.assert_close(w, by_torch(dense(), shop.local, start, client, 1, fresh), rtol=1e-9, atol=1e-9)


class Watching(ClientRule):
    """SGD that looks at epochs only, so that steps between may be made in one go."""

    watches_epochs = True

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        return oracle.grad(w), job


@pytest.mark.parametrize("rule", [ClientRule(), Watching()])
def test_kernels_that_know_sgd_alone_make_no_steps(rule: ClientRule, monkeypatch: pytest.MonkeyPatch) -> None:
    needed()

    def refused(*_: object) -> None:
        raise AssertionError("the kernels were asked to train")

    monkeypatch.setattr(NativeGradient, "train", refused)
    start = FlatModel(dense().double()).w.repeat(N, 1)
    for local in ("adam", "adamw", "nesterov"):
        shop = workshop(dense(), rule, **LOCAL[local])
        assert not shop.trains_whole_jobs
        got = shop.executor(WAYS["native"].completed).train(orders(start)).columns["w"]
        expected = torch.stack([by_torch(dense(), shop.local, w, i, 1) for i, w in enumerate(start)])
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(AssertionError, match="asked to train"):
        workshop(dense(), rule).executor(WAYS["native"].completed).train(orders(start))


def by_hand(w: federation.Vector, round: int, client: int, mu: float) -> federation.Vector:
    """A job of Adam on the loss and a proximal term, in numpy."""
    start, m, v = w.copy(), np.zeros_like(w), np.zeros_like(w)
    for t, (x, y) in enumerate(federation.batches(round, client), 1):
        d = federation.gradient(w, x, y) + mu * (w - start)
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d**2
        w = w - federation.LR * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize(("algorithm", "mu"), [("fedavg", 0.0), ({"name": "fedprox", "mu": 0.3}, 0.3)])
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_a_run_by_hand(algorithm: Any, mu: float, executor: str) -> None:
    """Rounds of FedAvg and FedProx, whose term is part of the direction that Adam is given."""
    result, _ = federation.train(algorithm, executor, local={"optimizer": "adam"})
    w = federation.start()
    for round in range(1, federation.ROUNDS + 1):
        chosen = federation.chosen(round)
        trained = [by_hand(w, round, client, mu) for client in chosen]
        w = np.average(trained, axis=0, weights=[federation.SIZES[c] for c in chosen])
    np.testing.assert_allclose(federation.weights(result), w, rtol=1e-8, atol=1e-10)


def test_every_job_and_every_fine_tuning_has_an_optimiser_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = trainer.Adam

    def counted(local: LocalSettings, moving: Tensor | None) -> Any:
        made.append(local.optimizer)
        return real(local, moving)

    monkeypatch.setattr(trainer, "Adam", counted)
    finetune = {"epochs": 1}
    federation.train("fedavg", local={"optimizer": "adamw"}, finetune=finetune)
    assert made == ["adamw"] * (federation.ROUNDS * federation.PER_ROUND + federation.N)
    made.clear()
    federation.train("fedavg", finetune=finetune)
    assert not made


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_ways_to_train_agree_in_float32(optimizer: str) -> None:
    """At a rate of one, every weight would move by one, and rounding would decide the second step."""
    needed()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1600, 10),
    )
    rng = np.random.default_rng(0)
    federated = FederatedData.from_arrays(rng.normal(size=(300, 1, 28, 28)), np.arange(300) % 10, clients=3)
    shop = Workshop(net, federated, ClientRule(), LocalSettings(optimizer=optimizer), SEED)
    flat = FlatModel(net)
    given = [Order(c, c, 1, 1, flat.w, flat.buffers, torch.full((1,), 0.001), {}, {}) for c in range(3)]
    for way in ("one stack", "native"):
        assert objection(shop, WAYS[way].completed, given) is None


def test_running_means_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shops = {name: workshop(dense(), optimizer=name) for name in ("sgd", "adam", "adamw")}
    monkeypatch.setattr(memory_limits, "STACK_BYTES", 1000 * shops["sgd"].bytes)
    for limit in (memory_limits.native_limit, memory_limits.stack_limit):
        assert limit(shops["adam"]) == limit(shops["adamw"]) < limit(shops["sgd"])


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_run_chooses_its_executor(optimizer: str) -> None:
    local = {"optimizer": optimizer, "lr": 0.001}
    result = federation.run(
        Experiment(rounds=2, per_round=3, local=local), data=federation.data(), model=federation.net(4)
    )
    assert result.experiment.executor.settled
    assert result.experiment.local.optimizer == optimizer
