"""Scheme I of Li et al. (2020): clients drawn with replacement in proportion to their samples, averaged as drawn."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare  # type: ignore[import-untyped]
from torch import nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, InputError, RoundEnd, run, streams
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SEED, SIZES, N, Vector

DRAWS = 5
SCHEME: dict[str, Any] = {"sampling": "scheme1", "per_round": DRAWS}


def drawn(round: int, count: int = DRAWS, seed: int = SEED, sizes: list[int] = SIZES) -> list[int]:
    """As numpy draws them, one after the other."""
    rng = streams.generator(seed, "sampling", round)
    return rng.choice(len(sizes), count, replace=True, p=np.array(sizes) / sum(sizes)).tolist()  # type: ignore[no-any-return]


def trained(x: Vector, round: int, client: int, epochs: int = federation.EPOCHS) -> Vector:
    w = x.copy()
    for batch in federation.batches(round, client, epochs):
        w = w - LR * federation.gradient(w, *batch)
    return w


def counts(end: RoundEnd, draws: int = DRAWS) -> dict[int, float]:
    """How often each was drawn, by the weight that its update was given."""
    return {arrival.client: arrival.weight * draws for arrival in end.arrivals}


def test_the_seed_draws_somebody_twice_and_somebody_once() -> None:
    assert all(len({*drawn(round_)}) < DRAWS for round_ in range(1, ROUNDS))
    assert any(drawn(round_).count(client) == 1 for round_ in range(1, ROUNDS + 1) for client in range(N))


@pytest.mark.parametrize(
    ("executor", "weighting"),
    [*(pytest.param(*each.values, "samples", marks=each.marks) for each in EVERY_EXECUTOR), ("serial", "uniform")],
)
def test_fedavg_by_hand(executor: str, weighting: str) -> None:
    """Every draw is a model of its own in a plain mean, whatever the weighting."""
    result, ends = federation.train({"name": "fedavg", "weighting": weighting, "server_lr": 0.8}, executor, **SCHEME)
    x = federation.start()
    for round_ in range(1, ROUNDS + 1):
        x = x + 0.8 * (np.mean([trained(x, round_, client) for client in drawn(round_)], axis=0) - x)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    for end in ends:
        expected = drawn(end.round)
        assert [a.client for a in end.arrivals] == sorted({*expected})
        assert counts(end) == pytest.approx({client: expected.count(client) for client in expected})


def test_who_is_drawn_twice_trains_and_travels_once() -> None:
    result, ends = federation.train("fedavg", **SCHEME)
    once = [client for round_ in range(1, ROUNDS + 1) for client in {*drawn(round_)}]
    assert len(once) < ROUNDS * DRAWS
    assert result.summary["updates"] == len(once)
    assert result.simulation.core.ledger.samples == federation.EPOCHS * sum(SIZES[client] for client in once)
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == 8 * 6 * len(once)
    assert result.summary["per_round"] == DRAWS
    losses = [np.average([a.train_loss for a in e.arrivals], weights=[a.samples for a in e.arrivals]) for e in ends]
    assert [end.train_loss for end in ends] == pytest.approx(losses, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedprox", "fedcm", "fedlga", "feddyn", "scaffold", "mimelite", "fedadam", "moon"])
def test_other_methods_count_draws_too(name: str) -> None:
    _, ends = federation.train(name, model=federation.net(4), rounds=2, **SCHEME)
    for end in ends:
        expected = drawn(end.round)
        assert counts(end) == pytest.approx({client: expected.count(client) for client in expected})


def test_fedlga_by_hand_with_stragglers_drawn_twice() -> None:
    """Its mean over those who finished, and that over all, count them as often as they were drawn."""
    rule = {"name": "fedlga", "reading": "practical"}
    result, (end,) = federation.train(rule, rounds=1, fleet={"rho": 0.6}, local={"epochs": 4}, seed=14, **SCHEME)
    done = dict(zip(end.arrivals.columns["client"], end.arrivals.columns["epochs"], strict=True))
    draws = drawn(1, seed=14)
    late = [client for client in draws if done[client] < 4]
    assert len({*late}) < len(late)
    assert len(late) < DRAWS
    x = federation.start()
    moved = {client: _moved(x, client, done[client]) for client in done}
    full = np.mean([moved[client] for client in draws if client not in late], axis=0)
    completed = []
    for client in draws:
        delta, tau = moved[client], 4 - done[client]
        g = -delta / (LR * -(-SIZES[client] // federation.BATCH) * done[client])
        added = -g * abs(g @ (full - delta))
        most = tau * np.linalg.norm(delta) / done[client]
        completed.append(delta + added * min(1.0, most / np.linalg.norm(added)))
    np.testing.assert_allclose(federation.weights(result), x + np.mean(completed, axis=0), rtol=0, atol=1e-12)


def _moved(x: Vector, client: int, epochs: int) -> Vector:
    w = x.copy()
    data = federation.clients()[client]
    for epoch in range(epochs):
        order = streams.permutations(streams.keys(14, "batches", 1, client, epoch), SIZES[client])[0]
        for first in range(0, SIZES[client], federation.BATCH):
            part = order[first : first + federation.BATCH]
            w = w - LR * federation.gradient(w, data[0][part], data[1][part])
    return w - x


@pytest.mark.slow
def test_clients_are_drawn_in_proportion_to_their_samples() -> None:
    """As many draws as there are clients, so that all are never there at once by design."""
    rounds = 80
    settings: dict[str, Any] = {"sampling": "scheme1", "per_round": N, "rounds": rounds, "evaluate_every": rounds}
    _, ends = federation.train("fedavg", "stack 3", local={"epochs": 1, "batch_size": "full"}, **settings)
    total = np.zeros(N)
    for end in ends:
        for client, times in counts(end, N).items():
            total[client] += times
        assert sum(counts(end, N).values()) == pytest.approx(N)
    assert total.sum() == pytest.approx(rounds * N)
    assert chisquare(total, rounds * N * np.array(SIZES) / sum(SIZES)).pvalue > 1e-3
    assert chisquare(total).pvalue < 1e-9
    assert min(len(end.arrivals) for end in ends) < N - 2


def test_uniform_sampling_draws_nobody_twice() -> None:
    _, ends = federation.train("fedavg", per_round=DRAWS)
    assert all([a.client for a in end.arrivals] == federation.chosen(end.round, DRAWS) for end in ends)
    assert {len(end.arrivals) for end in ends} == {DRAWS}


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"^sampling must be one of uniform, scheme1 or .*; got 'scheme2'$"):
        Experiment.load(overrides=["sampling=scheme2"])


BIG = [4, 8, 12, 6]


def test_batch_norm_statistics_are_averaged_as_often_as_clients_were_drawn() -> None:
    rng = np.random.default_rng(3)
    own = [(3 * rng.normal(size=(n, 3)) + n, rng.integers(0, 2, n)) for n in BIG]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    settings: dict[str, Any] = {"local": {"batch_size": "full", "lr": LR, "epochs": 2}, "executor": "serial"}
    result = run(
        Experiment(sampling="scheme1", per_round=4, rounds=2, seed=SEED, dtype="float64", **settings),
        data=FederatedData.from_clients(own, test=own[2]),
        model=net,
    )
    here = deepcopy(net).double()
    for round_ in (1, 2):
        draws = drawn(round_, 4, sizes=BIG)
        assert len({*draws}) < 4
        states = [by_torch(here, *own[client]).state_dict() for client in draws]
        here.load_state_dict({name: torch.stack([s[name].double() for s in states]).mean(0) for name in states[0]})
    expected, got = here.state_dict(), result.model.state_dict()
    for name in ("0.weight", "1.weight", "1.running_mean", "1.running_var", "2.bias"):
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-9, err_msg=name)


def by_torch(model: nn.Module, x: Any, y: Any) -> nn.Module:
    """Two steps on all samples, as PyTorch makes them."""
    mine = deepcopy(model).train()
    inputs, labels = torch.tensor(x).float().double(), torch.tensor(y)
    for _ in range(2):
        weights = [*mine.parameters()]
        gradients = torch.autograd.grad(cross_entropy(mine(inputs), labels), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(LR * gradient)
    return mine


def test_clients_without_data_do_not_lessen_the_draws() -> None:
    """With replacement, per_round draws can always be made."""
    own = [federation.clients()[client] for client in (1, 3)] + [(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))] * 4
    ends: list[RoundEnd] = []
    experiment = Experiment(sampling="scheme1", per_round=DRAWS, rounds=1, seed=SEED, executor="serial")
    run(experiment, data=FederatedData.from_clients(own, test=own[1]), model=federation.net(), progress=ends.append)
    sizes = [SIZES[1], SIZES[3]]
    expected = drawn(1, sizes=sizes)
    assert counts(ends[0]) == pytest.approx({client: expected.count(client) for client in expected})
