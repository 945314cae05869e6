"""A stack of clients against the same clients one by one, in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import models
from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainer import plan
from fedkeel.methods import ClientRule, Job, Message, Oracle
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order

SERIAL = ExecutorSettings(kind="serial")
STACKED = ExecutorSettings(kind="vectorised", stack=100)
SHAPE = (1, 12, 12)


def data(sizes: list[int]) -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, *SHAPE)), rng.integers(0, 4, n)) for n in sizes]
    return FederatedData.from_clients(parts, test=parts[0]).to(torch.float64)


def workshop(name: str, sizes: list[int], rule: ClientRule | None = None, **local: Any) -> Workshop:
    torch.manual_seed(0)
    module = models.build(name, models.Inputs(SHAPE, 4, None)).double()
    return Workshop(module, data(sizes), rule or ClientRule(), LocalSettings(**local), seed=3)


def orders(shop: Workshop, epochs: list[int] | None = None, starts: bool = False) -> list[Order]:
    flat = FlatModel(shop.module)
    w = flat.w.clone()
    made = []
    for client in range(len(shop.data)):
        count = epochs[client] if epochs else shop.local.epochs
        lr = torch.linspace(0.1, 0.05, count, dtype=torch.float64)
        made.append(Order(client, client, 1 + client % 2, count, w + client if starts else w, flat.buffers, lr, {}, {}))
    return made


def compare(shop: Workshop, made: list[Order], limit: int | None, atol: float = 1e-10) -> None:
    stacked, alone = (shop.executor(settings).train(made, limit).columns for settings in (STACKED, SERIAL))
    assert stacked.keys() == alone.keys()
    for row, order in enumerate(made):
        for name, expected in alone.items():
            part = slice(order.epochs) if name == "lr" else ...  # the rest says nothing
            torch.testing.assert_close(stacked[name][row][part], expected[row][part], rtol=1e-9, atol=atol)
    moved = torch.stack([order.start for order in made]) - stacked["w"]
    assert bool((moved.norm(dim=1) > 1e-6).all())


@pytest.mark.parametrize("name", ["linear", "mlp-400", "lenet5"])
@pytest.mark.parametrize("extra", [{}, {"momentum": 0.9, "clip_norm": 0.5, "weight_decay": 0.01}])
def test_one_step_for_every_batch_shape(name: str, extra: dict[str, float]) -> None:
    """Clients of 1 to 9 samples with batches of 8: every shape, alone and filled up beside larger ones."""
    shop = workshop(name, [*range(1, 10), 8, 3], batch_size=8, **extra)
    compare(shop, orders(shop), limit=1)
    same = workshop(name, [5, 5, 5], batch_size=8, **extra)
    compare(same, orders(same, starts=name == "linear"), limit=1)


@pytest.mark.parametrize("name", ["linear", "mlp-400"])
def test_whole_jobs_of_unequal_length(name: str) -> None:
    shop = workshop(name, [9, 1, 17, 4, 8], batch_size=4, momentum=0.5, clip_norm=1.0, weight_decay=0.01)
    compare(shop, orders(shop, epochs=[1, 3, 2, 2, 1], starts=True), limit=None, atol=1e-9)


def test_a_plan_is_even_and_in_order_of_work() -> None:
    shop = workshop("linear", [5, 40, 12, 12, 3, 30, 12], batch_size=4)
    made = orders(shop)
    assert plan(made, shop.data, shop.local, None) == [[1], [5], [2], [3], [6], [0], [4]]
    assert plan(made, shop.data, shop.local, 3) == [[1, 5, 2], [3, 6], [0, 4]]
    assert plan(made, shop.data, shop.local, 100) == [[1, 5, 2, 3, 6, 0, 4]]
    made[2].kept = made[5].kept = {"c": torch.zeros(2)}
    made[3].received = {"c": torch.zeros(2)}
    assert plan(made, shop.data, shop.local, 100) == [[1, 6, 0, 4], [5, 2], [3]]


class Careless(ClientRule):
    """Forgets that it may be given a stack."""

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"one": torch.ones(1)}, {}


def test_a_message_without_the_client_axis_is_refused() -> None:
    shop = workshop("linear", [4, 4], Careless())
    with pytest.raises(FedkeelError, match=r"Careless: one must have one row per client, \[2, ...\]; got shape \[1\]"):
        shop.trainer(STACKED)(orders(shop))


class Wide(ClientRule):
    """Has rates for more epochs than there are."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return replace(job, lr=job.lr.repeat(1, 2))


@pytest.mark.parametrize("stack", [1, 2, 100])
def test_rates_for_more_epochs_than_there_are_are_refused(stack: int) -> None:
    shop = workshop("linear", [4, 4, 4], Wide())
    executor = shop.executor(ExecutorSettings(kind="vectorised", stack=stack))
    with pytest.raises(FedkeelError, match=r"Wide: the job's .* rates must be \[\d, 1\], one .*; got \[\d, 2\]"):
        executor.train(orders(shop))


@pytest.mark.parametrize("sizes", [[12, 12, 12], [12, 4, 9], [4, 9, 12]])
def test_one_stack_says_what_several_say(sizes: list[int]) -> None:
    """The same names, shapes and types, whether results are handed over as they are or put side by side."""
    shop = workshop("linear", sizes, epochs=2)
    found = [
        shop.executor(ExecutorSettings(kind="vectorised", stack=stack)).train(orders(shop)).columns
        for stack in (100, 2, 1)
    ]
    for each in found[1:]:
        assert each.keys() == found[0].keys()
        for name, expected in found[0].items():
            assert each[name].dtype == expected.dtype
            torch.testing.assert_close(each[name], expected, rtol=1e-9, atol=1e-11)


def test_channels_last_is_the_same_mathematics() -> None:
    shop = workshop("lenet5", [9, 5], batch_size=4)
    kinds = [ExecutorSettings(kind="serial", channels_last=last) for last in (False, True)]
    usual, last = (shop.executor(kind).train(orders(shop)).columns for kind in kinds)
    for name in usual:
        torch.testing.assert_close(last[name], usual[name], rtol=1e-9, atol=1e-12)


def test_channels_last_reorders_filters_and_gives_them_back() -> None:
    module = nn.Conv2d(3, 8, 3)
    before = module.weight.detach().clone()
    flat = FlatModel(module, channels_last=True)
    assert module.weight.is_contiguous(memory_format=torch.channels_last)
    flat.load(flat.w * 2)
    torch.testing.assert_close(module.weight.detach(), 2 * before)
    assert flat.forward(torch.randn(2, 3, 5, 5)).is_contiguous(memory_format=torch.channels_last)
