"""One client's rows on its own site: the others have none, and training does not tell the difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedkeel import FederatedData, InputError
from fedkeel.data.datasets import Examples
from fedkeel.data.holdout import joined
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods import ClientRule
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order
from tests.helpers.sites import same_bits, same_rows


def of(sizes: list[list[int]], weight: bool, shuffle: int) -> FederatedData:
    """Clients with so many rows for training, test and validation, which lie in any order."""
    draw = np.random.default_rng(shuffle)
    parts, rows = [], []
    for counts in sizes:
        places = draw.permutation(sum(counts))
        rows.append(joined(np.split(places, np.cumsum(counts)[:-1])))
        y = torch.from_numpy(draw.integers(0, 3, sum(counts)))
        parts.append(Examples(torch.from_numpy(draw.normal(size=(sum(counts), 2))), y))
    (train, test, validation), (own, tests, validations) = parts, rows
    names = tuple(f"site {number}" for number in range(len(sizes[0])))
    weights = torch.from_numpy(draw.random(len(train))) if weight else None
    return FederatedData(
        train, test, own, 3, None, "data", False, None, tests, validation, validations, names, ("a", "b", "c"),
        ("u", "v"), weights,
    )  # fmt: skip


@st.composite
def federations(draw: st.DrawFn) -> FederatedData:
    clients = draw(st.integers(1, 6))
    counts = st.lists(st.integers(0, 5), min_size=clients, max_size=clients).filter(any)
    return of([draw(counts) for _ in range(3)], draw(st.booleans()), draw(st.integers(0, 99)))


@settings(max_examples=60, deadline=None)
@given(federations())
def test_each_client_has_its_own_rows_in_their_order_and_nothing_else(data: FederatedData) -> None:
    for client in range(len(data)):
        site = data.alone(client)
        same_rows(site, data, client)
        assert len(site.train) == data.sizes[client]
        same_rows(site.alone(client), data, client)


def test_a_client_is_found_by_its_name() -> None:
    data = of([[2, 3], [1, 1], [1, 1]], False, 0)
    same_rows(data.alone("site 1"), data, 1)
    with pytest.raises(InputError, match="numbers from 0 to 1; got 2"):
        data.alone(2)


def common() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 3)), rng.integers(0, 2 + i, n)) for i, n in enumerate((5, 9, 20))]
    return FederatedData.from_clients(parts, test=(rng.normal(size=(50, 3)), rng.integers(0, 4, 50)))


def test_a_common_test_set_stays_behind_but_for_the_share_that_is_asked_for() -> None:
    data = common()
    for client in range(3):
        assert len(data.alone(client).test) == 0
        assert len(data.alone(client).test_share(client, 7)) == 0
        site, share = data.alone(client, seed=7), data.test_share(client, 7)
        assert len(share)
        same_bits(site.test.x[site.test_share(client, 7)], data.test.x[share])
        same_bits(site.test.y[site.test_share(client, 7)], data.test.y[share])
        assert len(site.test) == len(share)


def test_numbers_to_predict_give_no_share_of_a_common_test_set() -> None:
    data = common()
    real = replace(
        data,
        train=Examples(data.train.x, data.train.y.float()),
        test=Examples(data.test.x, data.test.y.float()),
        classes=1,
    )
    assert len(real.alone(1, seed=7).test) == 0


def test_validation_rows_can_be_held_out_at_the_site() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (2, 9, 20)]
    data = FederatedData.from_clients(parts)
    for client in range(3):
        same_rows(data.alone(client).with_validation(0.2, 3), data.with_validation(0.2, 3), client)


def test_who_is_alone_can_be_taken_for_all() -> None:
    data = of([[2, 3], [1, 2], [1, 1]], False, 0)
    only = data.alone(1).only(1)
    assert (only.site, len(only), only.client_names) == (None, 1, ("site 1",))
    same_bits(only.train.x, data.only(1).train.x)


def test_all_data_together_must_still_have_rows() -> None:
    data = of([[2, 0], [1, 0], [1, 0]], False, 0)
    with pytest.raises(InputError, match="there are no training samples"):
        replace(data.alone(1), site=None)


@pytest.mark.parametrize(
    "local", [LocalSettings(epochs=2, batch_size=4, momentum=0.5), LocalSettings(steps=5, batch_size=3, lr=0.2)]
)
def test_training_at_a_site_gives_the_same_bits(local: LocalSettings) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.ReLU(), nn.Linear(5, 4))
    data = common()
    data = replace(data, weight=torch.rand(len(data.train), generator=torch.Generator().manual_seed(1)))
    flat, serial = FlatModel(module), ExecutorSettings(kind="serial", channels_last=False)

    def trained(known: FederatedData, client: int) -> dict[str, torch.Tensor]:
        shop = Workshop(module, known, ClientRule(), local, seed=1)
        order = Order(
            7, client, 2, local.units, flat.w.clone(), flat.buffers, torch.full((local.units,), 0.1), {}, {}, wave=5
        )
        return shop.executor(serial).train([order], None).columns

    for client in range(3):
        whole, alone = trained(data, client), trained(data.alone(client), client)
        assert whole.keys() == alone.keys()
        assert not torch.equal(whole["w"][0], flat.w)
        for name, column in whole.items():
            same_bits(alone[name], column)
