"""FedNova against its rounds written out in numpy, and against optima of heterogeneous quadratics in closed form."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, Result, RoundEnd, run
from fedkeel.local.loop import Step, train
from fedkeel.methods.fedavg import Average
from fedkeel.methods.fednova import NormalisedAverage
from fedkeel.methods.fedprox import Proximal
from fedkeel.methods.job import Job, Updates
from fedkeel.methods.server import ServerRule, ServerState
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector


def normaliser(steps: int, lr: float, momentum: float, mu: float) -> float:
    """||a_i||_1: counted step by step as the authors do, or for momentum and pull together by powers of a matrix."""
    a = c = 0.0
    if momentum and mu:
        # One step takes (w - x, velocity) to this matrix times itself, plus the gradient times the vector.
        once = np.array([[1 - lr * mu, -lr * momentum], [mu, momentum]])
        coefficients = [np.linalg.matrix_power(once, k) @ [-lr, 1.0] for k in range(steps)]
        return float(-np.sum(coefficients, axis=0)[0] / lr)
    for _ in range(steps):
        c = momentum * c + 1
        a = a * (1 - lr * mu) + c
    return a


def by_hand(
    mu: float = 0.0,
    momentum: float = 0.0,
    tau_eff: str = "paper",
    server_momentum: float = 0.0,
    server_lr: float = 1.0,
    lr_decay: float = 1.0,
    rho: float = 0.0,
) -> tuple[Vector, list[list[float]]]:
    """The final weights, and the factor on every update of every round."""
    x = federation.start()
    buffer, factors = np.zeros_like(x), []
    for round_ in range(1, ROUNDS + 1):
        lr = LR * lr_decay ** (round_ - 1)
        moved, a, counts, sizes = [], [], [], []
        for client in federation.chosen(round_):
            w, v, steps = x.copy(), np.zeros_like(x), 0
            for batch in federation.batches(round_, client):
                g = federation.gradient(w, *batch)
                if rho:
                    g = federation.gradient(w + rho * g / np.linalg.norm(g), *batch)
                v = momentum * v + g + mu * (w - x)
                w, steps = w - lr * v, steps + 1
            moved.append(x - w)
            a.append(normaliser(steps, lr, momentum, mu))
            counts.append(steps)
            sizes.append(SIZES[client])
        p = np.array(sizes) / sum(sizes)
        effective = p @ (counts if tau_eff == "released" and mu else a)
        factors.append((effective * p / a).tolist())
        step = sum(f * d for f, d in zip(factors[-1], moved, strict=True))
        buffer = server_momentum * buffer + step / lr
        x = x - server_lr * lr * buffer
    return x, factors


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "proximal": {"mu": 0.7},
    "proximal, released": {"mu": 0.7, "tau_eff": "released"},
    "momentum and proximal": {"momentum": 0.9, "mu": 0.7},
    "momentum and proximal, released": {"momentum": 0.9, "mu": 0.7, "tau_eff": "released"},
    "momentum, released": {"momentum": 0.9, "tau_eff": "released"},
    "server momentum": {"server_momentum": 0.9},
    "server momentum, decay": {"server_momentum": 0.9, "lr_decay": 0.6, "momentum": 0.5},
    "server rate": {"server_lr": 0.4, "server_momentum": 0.5, "lr_decay": 0.6},
}


def trained(case: dict[str, Any], executor: str = "serial") -> tuple[Result, list[RoundEnd]]:
    local = {key: case[key] for key in ("momentum", "lr_decay") if key in case}
    rules = {"name": "fednova", **({"client": "fedprox"} if "mu" in case else {})}
    return federation.train({**rules, **{k: v for k, v in case.items() if k not in local}}, executor, local=local)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rounds_by_hand(case: dict[str, Any]) -> None:
    result, ends = trained(case)
    weights, factors = by_hand(**case)
    np.testing.assert_allclose(federation.weights(result), weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose([[arrival.weight for arrival in end.arrivals] for end in ends], factors, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
@pytest.mark.parametrize("case", ["plain", "momentum and proximal"])
def test_under_every_executor(case: str, executor: str) -> None:
    result, _ = trained(CASES[case], executor)
    np.testing.assert_allclose(federation.weights(result), by_hand(**CASES[case])[0], rtol=0, atol=1e-12)


def test_every_setting_matters_in_these_rounds() -> None:
    """Else the cases above would not tell one variant from another; without a pull, tau_eff is one and the same."""
    outcomes = [by_hand(**case)[0] for name, case in CASES.items() if name != "momentum, released"]
    outcomes.append(federation.weights(federation.train("fedavg")[0]))
    for i, one in enumerate(outcomes):
        assert all(np.abs(one - other).max() > 1e-4 for other in outcomes[:i])


def test_the_factors_do_not_sum_to_one() -> None:
    """Equal clients that made 1 and 3 steps: tau_eff = 2, so the factors are 1 and 1/3, not 3/4 and 1/4."""
    w = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    ones, layout = torch.ones(2, 1, dtype=torch.float64), Layout.of(nn.Linear(2, 1, bias=False))
    steps = torch.tensor([[1], [3]])
    updates = Updates(w, torch.zeros_like(w), ones, torch.ones(2, 1).long(), steps, 0.1 * ones, {}, layout)
    state, factors = NormalisedAverage().aggregate(ServerState(torch.zeros_like(w[0])), updates)
    np.testing.assert_allclose(factors, [1, 1 / 3], rtol=1e-12)
    np.testing.assert_allclose(state.w, [1, 1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_equal_work_is_fedavg(mu: float, momentum: float) -> None:
    rng = np.random.default_rng(4)
    clients = [(rng.normal(size=(5, federation.FEATURES)), rng.integers(0, federation.CLASSES, 5)) for _ in range(4)]
    data = FederatedData.from_clients(clients, test=clients[0])

    def weights(algorithm: dict[str, Any]) -> Vector:
        experiment = Experiment(
            algorithm=algorithm,
            rounds=3,
            per_round=3,
            dtype="float64",
            local={"epochs": 2, "batch_size": 2, "lr": 0.1, "momentum": momentum},
            executor="serial",
        )
        return federation.weights(run(experiment, data=data, model=federation.net()))

    client = {"client": "fedprox", "mu": mu} if mu else {}
    nova, average = weights({"name": "fednova", **client}), weights({"name": "fedavg", **client})
    np.testing.assert_allclose(nova, average, rtol=0, atol=1e-13)


class Quadratic:
    """f(w) = 1/2 a (w - b)^2 for each coordinate; one client, two mini-batches an epoch."""

    def __init__(self, a: Vector, b: Vector, epochs: int) -> None:
        self.a, self.b, self.epochs = torch.tensor(a), torch.tensor(b), epochs

    def steps(self) -> Iterator[Step]:
        yield from (Step(step // 2, 1) for step in range(2 * self.epochs))

    def grad(self, w: Tensor) -> Tensor:
        return self.a * (w - self.b)


WORK, SAMPLES = [1, 4, 6, 2], [10, 10, 30, 20]  # the first two: unequal epochs on data of one size


def fixed_point(rule: ServerRule, lr: float, momentum: float, mu: float, a: Vector, b: Vector) -> Vector:
    """Where rounds of fedkeel's loop and rule end: a round is affine in every coordinate, so two of them tell."""
    layout, rates = Layout.of(nn.Linear(a.shape[1], 1, bias=False)), torch.full((max(WORK),), lr).double()

    def round_(x: Vector) -> Vector:
        start, models = torch.tensor(x), []
        for epochs, n, own_a, own_b in zip(WORK, SAMPLES, a, b, strict=True):
            count, none = torch.tensor([[epochs]]), torch.zeros(1, 0)
            lr_ = rates[None, :epochs]
            job = Job(count, start[None], none, count, 2 * count, lr_, momentum, torch.tensor([[n]]), layout, {}, {})
            models.append(train(job, Proximal(mu=mu), Quadratic(own_a, own_b, epochs)).w[0])  # type: ignore[arg-type]
        epochs_, samples = torch.tensor(WORK)[:, None], torch.tensor(SAMPLES)[:, None]
        old, every = start.expand(len(WORK), -1), rates.expand(len(WORK), -1)
        updates = Updates(
            torch.stack(models), old, samples, epochs_, 2 * epochs_, every, {}, layout, momentum=momentum, pull=mu
        )
        return rule.aggregate(ServerState(start), updates)[0].w.numpy()

    offset = round_(np.zeros(a.shape[1]))
    slope = round_(np.ones(a.shape[1])) - offset
    assert (np.abs(slope) < 1).all()  # rounds converge to it
    x: Vector = offset / (1 - slope)
    np.testing.assert_allclose(round_(x), x, rtol=0, atol=1e-12)
    return x


@pytest.mark.parametrize(("momentum", "lr_mu"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.1), (0.8, 0.1)])
def test_the_bias_of_unequal_work_vanishes_with_the_learning_rate(momentum: float, lr_mu: float) -> None:
    """FedAvg's does not: it minimises a mean in which clients that work more count more."""
    rng = np.random.default_rng(6)
    a, b, p = rng.uniform(0.5, 2, (4, 3)), rng.normal(0, 3, (4, 3)), np.array(SAMPLES)[:, None] / sum(SAMPLES)
    best = (p * a * b).sum(0) / (p * a).sum(0)
    nova, average = [], []
    for lr in (1e-3, 5e-4, 2.5e-4):
        mu = lr_mu / lr  # lr mu stays, so that the pull shortens long paths at any rate
        nova.append(np.linalg.norm(fixed_point(NormalisedAverage(), lr, momentum, mu, a, b) - best))
        average.append(np.linalg.norm(fixed_point(Average(), lr, momentum, mu, a, b) - best))
    np.testing.assert_allclose([nova[0] / nova[1], nova[1] / nova[2]], 2, rtol=0.05)
    assert min(average) > 0.9 * max(average) > 20 * nova[-1]
    skewed = p * np.array([[normaliser(2 * epochs, 1.0, momentum, lr_mu)] for epochs in WORK])
    limit = (skewed * a * b).sum(0) / (skewed * a).sum(0)
    np.testing.assert_allclose(average[-1], np.linalg.norm(limit - best), rtol=0.05)


def test_with_sharpness_aware_clients() -> None:
    result, _ = federation.train({"name": "fednova", "client": "fedsam", "rho": 0.3})
    np.testing.assert_allclose(federation.weights(result), by_hand(rho=0.3)[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("dtype", "each"), [("float64", 8), ("float32", 4)])
def test_two_numbers_more_go_up_than_in_fedavg(dtype: str, each: int) -> None:
    result, _ = federation.train("fednova", dtype=dtype)
    jobs, size = ROUNDS * federation.PER_ROUND, federation.start().size
    assert result.summary["bytes_up"] == jobs * each * (size + 2)
    assert result.summary["bytes_down"] == jobs * each * size


def test_a_proximal_term_that_overshoots_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"algorithm\.mu=45 is too large for local\.lr=0\.1.*; choose mu \* lr below 1"
    ):
        federation.train(
            {"name": "fednova", "client": "fedprox", "mu": 45.0}, local={"epochs": 2, "batch_size": "full"}
        )
