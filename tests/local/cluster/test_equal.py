"""On a cluster of two nodes, training gives the bits that it gives in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("ray")

from fedkeel import ClientRule, Experiment, FederatedData, FedkeelError, run
from fedkeel.local.cluster import executor as module
from fedkeel.local.cluster.leases import held
from fedkeel.local.cluster.pool import Pool
from fedkeel.local.executors import choose
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import Job, Message, Oracle, methods
from fedkeel.methods.job import Sums
from fedkeel.params import FlatModel, Layout
from fedkeel.wire.many import Orders
from tests.helpers import federation
from tests.helpers.clusters import cluster
from tests.helpers.declared import Anything
from tests.helpers.federation import models
from tests.helpers.folders import SETTLED, faulty, left, resumed, stopped
from tests.helpers.methods import few, small
from tests.helpers.workers import Chatty, Fickle, orders, settings, workshop

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def asked() -> Iterator[dict[str, Any]]:
    """Settings of an executor on two nodes, whose workers stay from test to test."""
    with cluster(2, 2) as local:
        given = {
            "kind": "ray", "address": local.address, "workers": 2, "cpus": 2, "channels_last": False, "native": False,
        }  # fmt: skip
        with held(ExecutorSettings(**given)) as pool:
            assert pool is not None
            assert len({seat.node for seat in pool.seats}) == 2
            yield given
            assert pool.report() | {"found": ""} == {
                "machines": 2, "workers": 2, "found": "", "machines_lost": 0, "workers_lost": 0, "stacks_repeated": 0,
            }  # fmt: skip


@pytest.mark.parametrize("stack", [0, 3])
def test_the_same_bits_as_in_this_process(asked: dict[str, Any], stack: int) -> None:
    shop = workshop(rule=Chatty())
    made = orders(shop)
    here = shop.executor(settings("vectorised" if stack else "serial", stack))
    there = shop.executor(ExecutorSettings(**asked, stack=stack))
    first = None
    for _ in range(3):
        want, got = here.train(made), there.train(made)
        assert got.columns.keys() == want.columns.keys()
        for name, column in want.columns.items():
            assert torch.equal(got.columns[name], column), name
        for row, order in enumerate(made):
            order.kept = {name: tensor[row].clone() for name, tensor in want.kept.items()}
        made[0].start.add_(0.125)  # changed in place: workers must not use what they had
        first = first or (got, {name: column.clone() for name, column in got.columns.items()})
    assert all(torch.equal(first[0].columns[name], column) for name, column in first[1].items()), "never overwritten"
    flat = FlatModel(shop.module)
    some = torch.arange(0, 1200, 2)
    for samples in (None, some):
        assert there.evaluate(flat.w, flat.buffers, samples) == here.evaluate(flat.w, flat.buffers, samples)
    assert torch.equal(there.predict(flat.w, flat.buffers), here.predict(flat.w, flat.buffers))
    there.close()


def test_what_a_rule_sends_may_change_from_call_to_call(asked: dict[str, Any]) -> None:
    shop = workshop(rule=Fickle())
    executor = shop.executor(ExecutorSettings(**asked, stack=3))
    seen = []
    for round_ in (1, 2, 3, 1):
        made = orders(shop)
        for order in made:
            order.round = round_
        seen.append(executor.train(made).messages.get("x"))
    executor.close()
    assert seen[0].tolist() == seen[3].tolist() == [[1, 1, 1]] * 7
    assert seen[1].tolist() == [[0.5]] * 7
    assert seen[2] is None


class Selective(ClientRule):
    """Sends a sum for some clients: those with many samples, or those with few."""

    above: bool = True

    def begin(self, job: Job, oracle: Oracle) -> Job:
        many = int(job.samples[0]) > 5
        return replace(job, sums=Sums.of(("x",), 1, job.start)) if many == self.above else job

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


@pytest.mark.parametrize("first", [True, False])
def test_sums_for_some_clients_only_are_refused(asked: dict[str, Any], first: bool) -> None:
    shop = workshop(rule=Selective(above=first))
    for told in (settings("serial"), settings("processes", workers=2), ExecutorSettings(**asked, stack=0)):
        with (
            closing(shop.executor(told)) as executor,
            pytest.raises(FedkeelError, match=r"the client rule sends .* for some clients and .* for others"),
        ):
            executor.train(orders(shop))


@pytest.mark.parametrize("name", list(methods()))
def test_every_method_gives_the_same_run(asked: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With surveys, sums, messages, kept state, merges and fine-tuning, where the method has them."""
    stack = 0 if name == "moon" else 3  # which takes seconds to trace
    monkeypatch.setitem(federation.EXECUTORS, "ray", {**asked, "stack": stack})
    here, there = (
        federation.train(
            small(name), kind, federation.net(4), rounds=3, schedule=few(name), finetune={"epochs": 1},
            fleet={"speed_ratio": 3}, local={"momentum": 0.0 if name == "mimelite" else 0.5},
        )[0]
        for kind in ("stack 3" if stack else "serial", "ray")
    )  # fmt: skip
    assert torch.equal(models(here), models(there))
    assert [replace(row, wall_seconds=0.0) for row in here.history] == [
        replace(row, wall_seconds=0.0) for row in there.history
    ]
    assert here.finetuned is not None
    assert there.finetuned is not None
    assert np.array_equal(here.finetuned, there.finetuned)


@pytest.mark.parametrize("algorithm", ["fedagg", "scaffold", "fedasmu", {"name": "fedbuff", "buffer_size": 2}], ids=str)
def test_a_run_that_is_stopped_goes_on(
    asked: dict[str, Any], algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is that of a run in this process, apart from what tells how it was trained."""
    monkeypatch.setattr(choose, "objection", lambda *_: None)
    given = {"data": federation.data(), "model": federation.net(4)}
    run(faulty(algorithm), tmp_path / "here", **given)
    monkeypatch.setitem(SETTLED, "ray", {**asked, "stack": 3})
    stopped(faulty(algorithm, "ray"), tmp_path / "there", 2, **given)
    result, _ = resumed(tmp_path / "there", **given)
    assert result.summary["ray"]["machines"] == 2
    here, there = left(tmp_path / "here"), left(tmp_path / "there")
    differ = {name for name in here if here[name] != there[name]}
    assert differ <= {"experiment.yaml", "run.json", "summary.json", "learning_curve.png"}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedagg"])
def test_only_the_mean_comes_back(asked: dict[str, Any], algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine adds up what its workers have trained."""
    monkeypatch.setitem(federation.EXECUTORS, "ray", {**asked, "stack": 3})
    here, there = (
        federation.train(algorithm, kind, federation.net(4), reduce=True, per_round=5)[0] for kind in ("stack 3", "ray")
    )
    assert torch.equal(models(here), models(there))
    shop = workshop()
    made, share = Orders.of(orders(shop)), np.arange(1.0, 8.0) / 28
    with closing(shop.executor(ExecutorSettings(**asked, stack=0))) as executor:
        together = executor.train(made.but(share=share))
    assert together.w.shape == (7, 0)
    (mean,) = together.sums.values()
    want = share @ shop.executor(settings("serial")).train(made).w.double().numpy()
    assert np.abs(mean.sum(0).numpy() - want).max() <= 1e-14


def test_calls_are_as_large_as_what_comes_back(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """That is known after a round: messages and what clients keep may be larger than the weights, and come back with
    the mean of the weights, too."""
    shop = workshop(rule=Chatty())
    made, share = Orders.of(orders(shop)), np.full(7, 1 / 7)
    weights = made.start[0].nbytes
    monkeypatch.setattr(module, "LARGEST", 2 * weights)
    calls = []
    work = Pool.work

    def counting(self: Pool, pieces: Any, *more: Any) -> Any:
        calls.append(max(map(len, pieces)))
        return work(self, pieces, *more)

    monkeypatch.setattr(Pool, "work", counting)
    with closing(shop.executor(ExecutorSettings(**asked, stack=0))) as executor:
        for told in (made, made, made.but(share=share), made.but(share=share)):
            executor.train(told)
    assert calls == [2, 1, 2, 1]  # of 3 and 2 times the weights, and some numbers


def images() -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 3, 8, 8), dtype=np.float32), rng.integers(0, 3, 90)
    return FederatedData.from_arrays(x, y, clients=6, test=(x[:30], y[:30]), partition="iid")


@pytest.mark.parametrize(
    ("more", "stack"),
    [([nn.BatchNorm2d(4), nn.ReLU()], 0), ([nn.ReLU(), nn.Dropout()], 0), ([nn.ReLU()], 2)],
    ids=["buffers", "randomness", "vmap"],
)
def test_networks_of_all_kinds(asked: dict[str, Any], more: list[nn.Module], stack: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), *more, nn.Flatten(), nn.Linear(4 * 36, 3))
    kind = {"kind": "vectorised" if stack else "serial", "stack": stack, "channels_last": False, "native": False}
    results = [
        run(Experiment(rounds=2, per_round=4, executor=executor), data=images(), model=net)
        for executor in (kind, {**asked, "stack": stack})
    ]
    here, there = (FlatModel(result.model) for result in results)
    assert torch.equal(here.w, there.w)
    assert torch.equal(here.buffers, there.buffers)


@pytest.mark.parametrize("stack", [1, 2])
def test_weights_may_lie_anywhere_in_memory(asked: dict[str, Any], stack: int) -> None:
    """Products of small matrices depended on it."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2000, 7), dtype=np.float32), rng.integers(0, 2, 2000)
    data = FederatedData.from_arrays(x, y, clients=10, test=0.2, partition="iid")
    kind = {"kind": "vectorised", "stack": stack, "channels_last": False, "native": False}
    weights = []
    for executor in (kind, {**asked, "stack": stack}):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 2))
        weights.append(
            FlatModel(run(Experiment(rounds=3, per_round=5, executor=executor), data=data, model=net).model).w
        )
    assert torch.equal(*weights)


def test_operations_of_several_threads(asked: dict[str, Any]) -> None:
    """PyTorch adds up in another order then."""
    kind = {"kind": "serial", "stack": 0, "channels_last": False, "native": False}
    weights = []
    for executor in (kind, {**asked, "stack": 0}):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 3))
        told = Experiment(rounds=2, per_round=4, threads=2, executor=executor)
        weights.append(FlatModel(run(told, data=images(), model=net).model).w)
    assert torch.equal(*weights)


def test_what_is_left_open_is_measured(asked: dict[str, Any]) -> None:
    """The choice is made here, for as many workers as there are."""
    experiment = Experiment(
        dataset={"name": "fashion-mnist-mini", "train_limit": 400, "test_limit": 100}, model="lenet5", clients=8,
        per_round=6, rounds=2, executor={**asked, "native": None, "channels_last": None},
    )  # fmt: skip
    there = run(experiment)
    chosen = {name: there.summary["executor"][name] for name in ("stack", "native", "channels_last")}
    kind = "vectorised" if chosen["stack"] else "serial"
    here = run(experiment.replace(executor=ExecutorSettings(kind=kind, **chosen)))
    assert chosen["stack"] <= 3
    assert torch.equal(FlatModel(here.model).w, FlatModel(there.model).w)


OWN = """
import torch
from torch import nn
from fedkeel.methods import ClientRule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return torch.tanh(self.head(x))


class Gentle(ClientRule):
    def step(self, job, w, oracle):
        return 0.5 * oracle.grad(w)


"""


def test_models_and_methods_of_a_user_need_not_be_on_the_other_machines(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_only_here.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    import mine_only_here

    shop = workshop(mine_only_here.Net(), mine_only_here.Gentle())
    (tmp_path / "mine_only_here.py").unlink()
    made = orders(shop)
    there = shop.executor(ExecutorSettings(**asked, stack=0))
    assert torch.equal(there.train(made).w, shop.executor(settings("serial")).train(made).w)
    there.close()
    sys.modules.pop("mine_only_here")
