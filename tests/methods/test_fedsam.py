"""FedSAM against its rounds written out in numpy, on a network of two layers, and its traps."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, Result, run, streams
from fedkeel.methods.fedsam import SharpnessAware
from tests.helpers import federation
from tests.helpers.federation import (
    BATCH,
    CLASSES,
    EPOCHS,
    EVERY_EXECUTOR,
    EXECUTORS,
    FEATURES,
    LR,
    ROUNDS,
    SEED,
    SIZES,
    Vector,
)
from tests.helpers.oracles import oracle, weights
from tests.helpers.quadratics import job
from tests.helpers.tiers import slow_but

HIDDEN, RHO = 4, 0.5
FEDSAM = {"name": "fedsam", "rho": RHO}
LOCAL: list[dict[str, float]] = [
    {"weight_decay": 0.3},
    {"clip_norm": 0.25},
    {"momentum": 0.9},
    {"weight_decay": 0.2, "clip_norm": 0.3, "momentum": 0.5},
]


def train(algorithm: Any, executor: str = "serial", **settings: Any) -> tuple[Result, list[Any]]:
    return federation.train(algorithm, executor, model=federation.net(HIDDEN), **settings)


def start() -> Vector:
    return np.concatenate([p.detach().double().numpy().flatten() for p in federation.net(HIDDEN).parameters()])


def loss_and_gradient(w: Vector, x: Vector, y: Any) -> tuple[Vector, Vector]:
    """(Losses [b], gradient of their mean) of softmax(relu(x A^T) B^T)."""
    a, b = w[: HIDDEN * FEATURES].reshape(HIDDEN, FEATURES), w[HIDDEN * FEATURES :].reshape(CLASSES, HIDDEN)
    z = np.maximum(x @ a.T, 0)
    p = np.exp(z @ b.T)
    p /= p.sum(axis=1, keepdims=True)
    losses = -np.log(p[np.arange(len(y)), y])
    p[np.arange(len(y)), y] -= 1
    return losses, np.concatenate([(((p @ b) * (z > 0)).T @ x).flatten(), (p.T @ z).flatten()]) / len(y)


def clipped(g: Vector, norm: float) -> Vector:
    return g * min(1.0, norm / (np.linalg.norm(g) + 1e-6))


def client_by_hand(
    x: Vector, round_: int, client: int, local: dict[str, float], wrong: str | None
) -> tuple[Vector, list[float]]:
    """(Weights, loss of every sample at the time it was seen); `wrong` names a mistake to make."""
    w, v, losses, split = x.copy(), np.zeros_like(x), [], HIDDEN * FEATURES
    decay, clip = local.get("weight_decay", 0.0), local.get("clip_norm", np.inf)
    for batch in federation.batches(round_, client):
        here, g = loss_and_gradient(w, *batch)
        if wrong == "decay in the ascent":
            g = g + decay * w
        if wrong == "clipped ascent":
            climb = clipped(g, clip) * RHO
        elif wrong == "norm by layer":
            climb = RHO * np.concatenate([part / np.linalg.norm(part) for part in (g[:split], g[split:])])
        else:
            climb = RHO * g / (np.linalg.norm(g) + 1e-12)
        _, g = loss_and_gradient(w + climb, *batch)
        g = clipped(g, clip) if wrong != "unclipped descent" else g
        v = local.get("momentum", 0.0) * v + g + decay * (w + climb if wrong == "decay of the perturbed" else w)
        w = w - LR * v
        losses.extend(here)
    return w, losses


def by_hand(
    local: dict[str, float] | None = None, wrong: str | None = None, adam: tuple[float, float] | None = None
) -> tuple[Vector, list[float]]:
    """(x, train loss of each round); the server averages by samples, or with `adam` = (rate, tau) is FedAdam."""
    x, history = start(), []
    m, v = np.zeros_like(x), np.full_like(x, adam[1] ** 2 if adam else 0.0)
    for round_ in range(1, ROUNDS + 1):
        chosen = federation.chosen(round_)
        models, losses = zip(*(client_by_hand(x, round_, i, local or {}, wrong) for i in chosen), strict=True)
        history.append(float(np.mean(np.concatenate(losses))))
        if adam:
            delta = np.mean(models, axis=0) - x
            m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
            x = x + adam[0] * m / (np.sqrt(v) + adam[1])
        else:
            x = np.average(models, axis=0, weights=[SIZES[i] for i in chosen])
    return x, history


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str) -> None:
    """The recorded loss is that of the point from which a client climbs."""
    result, ends = train(FEDSAM, executor)
    x, losses = by_hand()
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose([end.train_loss for end in ends], losses, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
@pytest.mark.parametrize("local", LOCAL)
def test_decay_clipping_and_momentum_by_hand(local: dict[str, float], executor: str) -> None:
    result, _ = train(FEDSAM, executor, local=local)
    np.testing.assert_allclose(federation.weights(result), by_hand(local)[0], rtol=0, atol=1e-12)
    assert np.abs(by_hand(local)[0] - by_hand()[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "local"),
    [
        ("norm by layer", {}),
        ("decay in the ascent", LOCAL[0]),
        ("decay of the perturbed", LOCAL[0]),
        ("clipped ascent", LOCAL[1]),
        ("unclipped descent", LOCAL[1]),
    ],
)
def test_the_federation_tells_the_method_from_its_usual_mistakes(wrong: str, local: dict[str, float]) -> None:
    result, _ = train(FEDSAM, local=local)
    assert np.abs(federation.weights(result) - by_hand(local, wrong)[0]).max() > 1e-3


def test_a_small_radius_comes_near_to_fedavg_and_a_large_one_does_not() -> None:
    average, (near, _), (far, _) = train("fedavg")[0], train({"name": "fedsam", "rho": 1e-8}), train(FEDSAM)
    assert 0 < np.abs(federation.weights(near) - federation.weights(average)).max() < 1e-7
    assert np.abs(federation.weights(far) - federation.weights(average)).max() > 1e-3


@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_a_gradient_of_zero_is_no_direction_to_climb(executor: str) -> None:
    nothing = [(np.zeros_like(x), y) for x, y in federation.clients()]
    data = FederatedData.from_clients(nothing, test=nothing[3])
    experiment = Experiment(algorithm=FEDSAM, rounds=2, per_round=3, dtype="float64", executor=EXECUTORS[executor])
    result = run(experiment, data=data, model=federation.net())
    np.testing.assert_allclose(federation.weights(result), federation.start(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("executor", slow_but(["serial", "processes, stack 2"], "serial"))
def test_with_fedadam_on_the_server(executor: str) -> None:
    settings = {"rho": RHO, "server_lr": 0.05, "tau": 0.01}
    result, _ = train({"client": "fedsam", "server": "fedadam", **settings}, executor)
    np.testing.assert_allclose(federation.weights(result), by_hand(adam=(0.05, 0.01))[0], rtol=0, atol=1e-12)
    assert result.summary["algorithm"] == "fedsam+fedadam"


def test_nothing_more_travels_than_in_fedavg() -> None:
    average, aware = (federation.train(name)[0].summary for name in ("fedavg", "fedsam"))
    for key in ("bytes_up", "bytes_down"):
        assert aware[key] == average[key]


def test_the_second_pass_leaves_batch_norm_statistics_alone() -> None:
    """A single client of twelve samples, against a loop in plain PyTorch."""
    x, y = federation.clients()[3]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))
    local = {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
    experiment = Experiment(algorithm=FEDSAM, rounds=1, seed=SEED, dtype="float64", local=local, executor="serial")
    result = run(experiment, data=FederatedData.from_clients([(x, y)], test=(x, y)), model=net)

    hand = copy.deepcopy(net).double().train()
    weights = list(hand.parameters())
    for epoch in range(EPOCHS):
        order = streams.permutations(streams.keys(SEED, "batches", 1, 0, epoch), len(y))[0]
        for part in np.split(order, len(y) // BATCH):
            batch = torch.tensor(x[part]), torch.tensor(y[part])
            g = torch.autograd.grad(cross_entropy(hand(batch[0]), batch[1]), weights)
            norm = torch.cat([each.flatten() for each in g]).norm()
            there = copy.deepcopy(hand)  # what happens to its statistics is lost
            with torch.no_grad():
                for weight, each in zip(there.parameters(), g, strict=True):
                    weight += RHO * each / norm
            g = torch.autograd.grad(cross_entropy(there(batch[0]), batch[1]), list(there.parameters()))
            with torch.no_grad():
                for weight, each in zip(weights, g, strict=True):
                    weight -= LR * each
    assert result.model[1].num_batches_tracked == EPOCHS * 3  # type: ignore[index]
    for name, tensor in hand.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=0, atol=1e-9)


def test_both_passes_see_the_same_dropout_masks() -> None:
    masks: list[Tensor] = []
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    net[1].register_forward_hook(lambda _, inputs, output: masks.append((output == 0) & (inputs[0] != 0)))
    it = oracle(net, batch_size=5)
    w = weights(net)
    rule = SharpnessAware(rho=RHO)
    given = rule.begin(job(w, torch.full((1, 1), 0.1)), it)
    for _ in it.steps():
        rule.step(given, w, it)
    first, again, second, once_more = masks
    assert torch.equal(first, again)
    assert torch.equal(second, once_more)
    assert not torch.equal(first, second)
