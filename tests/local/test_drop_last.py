"""Epochs that end before a short last mini-batch: who sees which samples, what is trained, and what is counted."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedkeel import Experiment, FederatedData, run, streams
from fedkeel.local.batches import Batches
from fedkeel.local.settings import LocalSettings
from fedkeel.local.work import batch_sizes, epochs_in, samples_in_epoch, seen, steps, units_an_epoch, whole_jobs
from tests.helpers import federation
from tests.helpers.federation import BATCH, EPOCHS, LR, PER_ROUND, ROUNDS, SIZES
from tests.helpers.native import needed
from tests.helpers.numbered import numbered, walk

SEED = 7
WORK: dict[str, dict[str, int]] = {"epochs": {"epochs": 2}, "steps": {"steps": 5}}


def by_hand(size: int, client: int, wave: int, units: int, by_step: bool, batch: int = 4) -> list[list[int]]:
    """The places of a client's samples in each of its mini-batches."""
    whole = [range(first, first + batch) for first in range(0, size - batch + 1, batch)] or [range(size)]
    found: list[list[int]] = []
    number = 0
    while len(found) < (units if by_step else units * len(whole)):
        order = streams.permutations(streams.keys(SEED, "batches", wave, client, number), size)[0]
        found += [[int(order[place]) for place in part] for part in whole]
        number += 1
    return list(islice(found, units)) if by_step else found


@pytest.mark.parametrize("work", list(WORK))
@pytest.mark.parametrize("sizes", [[17, 9, 8, 3, 1], [10, 10]], ids=["unequal", "side by side"])
def test_every_client_sees_whole_mini_batches(sizes: list[int], work: str) -> None:
    """One that has fewer samples than one mini-batch sees all of them."""
    data, local = numbered(sizes), LocalSettings(batch_size=4, drop_last=True, **WORK[work])
    clients = range(len(sizes))
    batches = Batches(data, local, SEED, [1] * len(sizes), clients, [local.units] * len(sizes))
    expected = [
        [[float(data.client(c)[place]) for place in part] for part in by_hand(size, c, 1, local.units, local.by_step)]
        for c, size in enumerate(sizes)
    ]
    assert [[part for _, part in told] for told in walk(batches)] == expected
    counted = np.array(sizes)
    assert steps(counted, np.full_like(counted, local.units), local)[1].tolist() == [len(told) for told in expected]
    assert seen(counted, local.units, local).tolist() == [sum(map(len, told)) for told in expected]
    order = batches.order(slice(None), -(-batches.steps // batches.a_pass))
    for client, told in enumerate(expected):
        flat = data.train.x[torch.from_numpy(order[client, :, : batches.used[client]].flatten()), 0].tolist()
        assert flat[: sum(map(len, told))] == [sample for part in told for sample in part]


def test_all_that_counts_work_agrees() -> None:
    sizes = np.array([0, 3, 4, 9, 12])
    epochs, mini = (
        LocalSettings(batch_size=4, epochs=3, drop_last=True),
        LocalSettings(batch_size=4, steps=3, drop_last=True),
    )
    assert samples_in_epoch(sizes, epochs).tolist() == [0, 3, 4, 8, 12]
    assert [part if isinstance(part, int) else part.tolist() for part in whole_jobs(sizes, epochs)] == [
        [0, 3, 4, 8, 12], 3
    ]  # fmt: skip
    assert seen(sizes, 3, epochs).tolist() == [0, 9, 12, 24, 36]
    assert seen(sizes[1:], 3, mini).tolist() == [9, 12, 12, 12]
    an_epoch = units_an_epoch(sizes[1:], mini)
    assert an_epoch.tolist() == [1, 1, 2, 3]
    assert epochs_in(3, an_epoch).tolist() == [3, 3, 1.5, 1]
    data = numbered([3, 4, 9, 12])
    assert batch_sizes(data, epochs) == [3, 4]
    assert batch_sizes(data, LocalSettings(batch_size=4)) == [1, 3, 4]
    assert batch_sizes(data, LocalSettings(batch_size="full", drop_last=True)) == [3, 4, 9, 12]


def federated_by_hand() -> NDArray[np.float64]:
    w = federation.start()
    for round in range(1, ROUNDS + 1):
        chosen, trained = federation.chosen(round), []
        for client in chosen:
            own = w
            for x, y in federation.batches(round, client):
                if len(y) == min(BATCH, SIZES[client]):
                    own = own - LR * federation.gradient(own, x, y)
            trained.append(own)
        w = np.average(trained, axis=0, weights=[SIZES[c] for c in chosen])
    return w


EXECUTORS: dict[str, Any] = {
    "serial": {"kind": "serial"},
    "closed forms": {"kind": "vectorised", "stack": 3},
    "native": {"kind": "vectorised", "stack": 3, "native": True},
}


@pytest.mark.parametrize("executor", list(EXECUTORS))
def test_a_run_by_hand(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client counts by all of its samples, and its record by those that it saw."""
    if executor == "native":
        needed()
    monkeypatch.setitem(federation.EXECUTORS, executor, EXECUTORS[executor])
    result, ends = federation.train("fedavg", executor, local={"drop_last": True})
    np.testing.assert_allclose(federation.weights(result), federated_by_hand(), rtol=1e-8, atol=1e-10)
    for end in ends:
        for arrival in end.arrivals:
            assert arrival.samples == SIZES[arrival.client]
            assert arrival.steps == EPOCHS * max(1, SIZES[arrival.client] // BATCH)
    chosen = [client for round in range(1, ROUNDS + 1) for client in federation.chosen(round)]
    used = [EPOCHS * (size // BATCH * BATCH or size) for size in SIZES]
    assert result.simulation.standing().samples == sum(used[client] for client in chosen)
    assert len(chosen) == ROUNDS * PER_ROUND


@pytest.mark.parametrize("model", ["closed forms", "vmap"])
@pytest.mark.parametrize("method", ["fedavg", "fedagg", "scaffold"])
def test_ways_to_train_agree(method: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAgg watches epochs, so that kernels make all steps between."""
    needed()
    monkeypatch.setattr(federation, "EXECUTORS", {**federation.EXECUTORS, **EXECUTORS})
    torch.manual_seed(0)
    net = federation.net(4) if model == "closed forms" else nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    ways = ["serial", "closed forms", *(["native"] if model == "closed forms" else [])]
    found = [federation.weights(federation.train(method, way, net, local={"drop_last": True})[0]) for way in ways]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-8, atol=1e-10)
    plain = federation.weights(federation.train(method, "serial", net)[0])
    assert np.abs(plain - found[0]).max() > 1e-4


@pytest.mark.parametrize("drop_last", [False, True])
def test_virtual_time_is_that_of_the_samples_seen(drop_last: bool) -> None:
    """Two clients of 7 and 4 samples, in mini-batches of 4: with it, one takes as long as the other."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (7, 4)]
    local = {"batch_size": 4, "drop_last": drop_last}
    ends: list[Any] = []
    run(
        Experiment(rounds=1, per_round=2, local=local, executor="serial"),
        data=FederatedData.from_clients(parts, test=parts[0]),
        model=federation.net(),
        progress=ends.append,
    )
    took = {each.client: each.finished - each.began for each in ends[0].arrivals}
    assert took[0] == pytest.approx(took[1] * (1 if drop_last else 7 / 4))


def test_batch_norm_needs_no_batch_of_one() -> None:
    """Nine samples in mini-batches of 4 leave one, on which batch norm fails."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (9, 8)]
    data = FederatedData.from_clients(parts, test=parts[0])
    for drop_last in (True, False):
        experiment = Experiment(
            rounds=1, per_round=2, executor="serial", local={"batch_size": 4, "drop_last": drop_last}
        )
        if drop_last:
            assert run(experiment, data=data, model=federation.normed()).history
        else:
            with pytest.raises(Exception, match="more than 1 value per channel"):
                run(experiment, data=data, model=federation.normed())
