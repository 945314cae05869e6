"""FedAdam, FedYogi and FedAdagrad against Algorithm 2 of Reddi et al. (ICLR 2021), written out in numpy."""

import copy
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel import Experiment, FederatedData, run
from fedkeel.methods import find
from fedkeel.methods.job import Updates
from fedkeel.methods.server import ServerState
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, EXECUTORS, LR, ROUNDS, SIZES, Vector
from tests.helpers.tiers import slow_but

METHODS = ["fedadam", "fedyogi", "fedadagrad"]
OTHER = {"server_lr": 0.05, "beta1": 0.6, "tau": 0.01}
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in METHODS],
    *[(name, OTHER) for name in METHODS],
    *[(name, {"initial_v": "zero"}) for name in METHODS],
    *[(name, {"weighting": "samples"}) for name in METHODS],
    *[(name, {"beta2": 0.7}) for name in METHODS[:2]],
    *[(name, {"bias_correction": True}) for name in METHODS[:2]],
    *[(name, {"bias_correction": True, "initial_v": "zero", "beta2": 0.999}) for name in METHODS[:2]],
    ("fedyogi", {"tau": 0.3}),  # v starts above the squares of all updates, so that it falls
]


def second_moment(name: str, v: Vector, delta: Vector, beta2: float) -> Vector:
    if name == "fedadagrad":
        return v + delta**2
    if name == "fedadam":
        return beta2 * v + (1 - beta2) * delta**2
    return np.where(v > delta**2, v - (1 - beta2) * delta**2, v + (1 - beta2) * delta**2)


def by_hand(
    name: str,
    server_lr: float = 0.01,
    beta1: float | None = None,
    beta2: float = 0.99,
    tau: float = 1e-3,
    initial_v: str = "tau2",
    weighting: str = "uniform",
    bias_correction: bool = False,
) -> Vector:
    if beta1 is None:
        beta1 = 0.0 if name == "fedadagrad" else 0.9
    x = federation.start()
    m, v = np.zeros_like(x), np.full_like(x, tau * tau if initial_v == "tau2" else 0)
    for t in range(1, ROUNDS + 1):
        moves, sizes = [], []
        for client in federation.chosen(t):
            w = x.copy()
            for batch in federation.batches(t, client):
                w = w - LR * federation.gradient(w, *batch)
            moves.append(w - x)
            sizes.append(SIZES[client] if weighting == "samples" else 1)
        delta = np.average(moves, axis=0, weights=sizes)
        m = beta1 * m + (1 - beta1) * delta
        v = second_moment(name, v, delta, beta2)
        rate = server_lr * np.sqrt(1 - beta2**t) / (1 - beta1**t) if bias_correction else server_lr
        x = x + rate * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_rounds_by_hand(name: str, settings: dict[str, Any]) -> None:
    result, _ = federation.train({"name": name, **settings})
    np.testing.assert_allclose(federation.weights(result), by_hand(name, **settings), rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_under_every_executor(executor: str) -> None:
    result, _ = federation.train({"name": "fedyogi", "bias_correction": True}, executor)
    np.testing.assert_allclose(federation.weights(result), by_hand("fedyogi", bias_correction=True), rtol=0, atol=1e-12)


def test_every_setting_matters_in_these_rounds() -> None:
    """Else the cases above would not tell one variant from another."""
    outcomes = [by_hand(name, **settings) for name, settings in CASES]
    for one, other in combinations(outcomes, 2):
        assert np.abs(one - other).max() > 1e-6


def aggregated(name: str, moves: list[list[float]], **settings: Any) -> ServerState:
    """The state after one round from zero, in which equal clients moved like that."""
    rule = find(name).rules(settings)[1]
    w = torch.tensor(moves, dtype=torch.float64)
    layout = Layout.of(nn.Linear(w.shape[1], 1, bias=False))
    ones = torch.ones(len(moves), 1)
    updates = Updates(w, torch.zeros_like(w), ones, ones, ones, ones, {}, layout)
    return rule.aggregate(rule.init(torch.zeros_like(w[0]), layout, ones[:, 0]), updates)[0]


def test_yogis_v_moves_towards_the_square_and_stays_where_it_equals_it() -> None:
    """By (1 - beta2) Delta^2 either way: from .25 towards 1 and .0625; where Adam's would move by its distance."""
    state = aggregated("fedyogi", [[1.5, 0.5, -0.25], [0.5, 0.5, -0.25]], tau=0.5, beta2=0.9, beta1=0.0, server_lr=2.0)
    v = np.array([0.25 + 0.1, 0.25, 0.25 - 0.1 * 0.0625])
    np.testing.assert_allclose(state.memory["v"], v, rtol=1e-15)
    np.testing.assert_allclose(state.w, 2 * np.array([1, 0.5, -0.25]) / (np.sqrt(v) + 0.5), rtol=1e-15)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("initial_v", "first"), [("tau2", 0.04), ("zero", 0.0)])
def test_where_v_starts(name: str, initial_v: str, first: float) -> None:
    state = aggregated(name, [[0.0, 0.0]], tau=0.2, initial_v=initial_v)
    decayed = 0.99 * first if name == "fedadam" else first
    np.testing.assert_allclose(state.memory["v"], [decayed] * 2, rtol=1e-15)
    assert state.w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", METHODS[:2])
def test_the_first_corrected_step_has_the_length_of_the_server_rate(name: str) -> None:
    """From v = 0 and with |Delta| far above tau, both corrections cancel in round 1; with t = 2 they would not."""
    settings = {"initial_v": "zero", "bias_correction": True, "tau": 1e-12, "server_lr": 0.3}
    np.testing.assert_allclose(aggregated(name, [[5.0, -2.0]], **settings).w, [0.3, -0.3], rtol=1e-9)


def normed() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def samples() -> list[tuple[Any, Any]]:
    """Of clients of 4, 6 and 8 samples, shifted against each other so that their statistics differ."""
    rng = np.random.default_rng(2)
    return [(rng.normal(i, 1 + i, (n, 3)).astype(np.float32), rng.integers(0, 2, n)) for i, n in enumerate([4, 6, 8])]


def normed_by_hand(rounds: int, epochs: int) -> tuple[Vector, dict[str, Vector]]:
    """FedAdam in PyTorch and numpy, full batches, all clients in every round: weights, and sample-weighted buffers."""
    model = normed().double()
    x = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    m, v = np.zeros_like(x), np.full_like(x, 1e-6)
    buffers: dict[str, Vector] = {}
    for _ in range(rounds):
        trained = [copy.deepcopy(model) for _ in samples()]
        for client, (inputs, labels) in zip(trained, samples(), strict=True):
            optimiser = torch.optim.SGD(client.parameters(), lr=LR)
            for _ in range(epochs):
                optimiser.zero_grad()
                nn.functional.cross_entropy(client(torch.tensor(inputs).double()), torch.tensor(labels)).backward()
                optimiser.step()
        flat = [nn.utils.parameters_to_vector(client.parameters()).detach().numpy() for client in trained]
        delta = np.mean(flat, axis=0) - x
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        x = x + 0.01 * m / (np.sqrt(v) + 1e-3)
        owned = [dict(client.named_buffers()) for client in trained]
        buffers = {name: np.average([b[name].numpy() for b in owned], axis=0, weights=[4, 6, 8]) for name in owned[0]}
        nn.utils.vector_to_parameters(torch.tensor(x), model.parameters())
        model.load_state_dict({name: torch.tensor(value) for name, value in buffers.items()}, strict=False)
    return x, buffers


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "processes"], "serial"))
def test_buffers_are_averaged_plainly_and_left_alone_by_the_optimiser(executor: str) -> None:
    experiment = Experiment(
        algorithm="fedadam",
        rounds=3,
        per_round=3,
        dtype="float64",
        local={"epochs": 2, "batch_size": "full", "lr": LR},
        executor=EXECUTORS[executor],
    )
    result = run(experiment, data=FederatedData.from_clients(samples(), test=samples()[0]), model=normed())
    weights, buffers = normed_by_hand(rounds=3, epochs=2)
    np.testing.assert_allclose(federation.weights(result), weights, rtol=0, atol=1e-11)
    got = dict(result.model.named_buffers())
    assert got.keys() == buffers.keys()
    for name, expected in buffers.items():
        np.testing.assert_allclose(got[name].numpy(), expected, rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_more_travels_than_in_fedavg(name: str) -> None:
    result, _ = federation.train(name)
    for key in ("bytes_up", "bytes_down"):
        assert result.summary[key] == ROUNDS * federation.PER_ROUND * 8 * federation.start().size
