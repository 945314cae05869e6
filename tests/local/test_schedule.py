"""Schedules of the learning rate against PyTorch's own, over the rounds of a run and over the steps of a job."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as torches

from fedkeel import Experiment, FederatedData, InputError, streams
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Oracle
from fedkeel.params import FlatModel
from fedkeel.runner import clients
from fedkeel.wire.orders import Order
from tests.helpers import federation
from tests.helpers.native import needed

SEED, BATCH, SIZES, EPOCHS, WHOLE = 3, 4, [9, 1, 17, 4, 8, 8], [2, 3, 2, 1, 3, 1], 3
"""Unequal sizes and epochs; whole jobs are of three epochs, so that some clients see only the beginning of a curve."""
RATES = [0.2, 0.1, 0.3]
KINDS: dict[str, dict[str, Any]] = {
    "cosine": {"kind": "cosine"},
    "cosine to a share": {"kind": "cosine", "final": 0.2, "warmup": 2},
    "shorter cosine": {"kind": "cosine", "final": 0.1, "warmup": 1, "length": 5},
    "step": {"kind": "step", "every": 3, "gamma": 0.5},
    "warm-up and step": {"kind": "step", "every": 2, "warmup": 3},
    "exponential": {"kind": "exponential", "gamma": 0.8},
    "warm-up and exponential": {"kind": "exponential", "gamma": 0.8, "warmup": 2},
    "warm-up": {"kind": "warm-up", "warmup": 4},
}
ALL = pytest.mark.parametrize("name", list(KINDS))


def by_torch(told: dict[str, Any], length: int) -> list[float]:
    """The factors of so many rounds or steps, by PyTorch's schedulers."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup, final, whole = told.get("warmup", 0), told.get("final", 0.0), told.get("length") or length
    match told["kind"]:
        case "cosine":
            curve: Any = torches.CosineAnnealingLR(optimizer, max(1, whole - warmup), eta_min=final)
        case "step":
            curve = torches.StepLR(optimizer, told["every"], told.get("gamma", 0.1))
        case "exponential":
            curve = torches.ExponentialLR(optimizer, told["gamma"])
        case _:
            curve = torches.ConstantLR(optimizer, factor=1.0)
    if warmup:
        rising = torches.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        curve = torches.SequentialLR(optimizer, [rising, curve], milestones=[warmup])
    found = []
    for place in range(length):
        # PyTorch's cosine rises again behind its end; ours stays.
        found.append(final if told["kind"] == "cosine" and place >= whole else optimizer.param_groups[0]["lr"])
        optimizer.step()
        curve.step()
    return found


@ALL
@pytest.mark.parametrize("length", [1, 3, 12])
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_factors_are_those_of_torch(name: str, length: int) -> None:
    schedule = LocalSettings(schedule=KINDS[name]).schedule
    expected = by_torch(KINDS[name], length)
    assert schedule.factor(np.arange(length), length).tolist() == pytest.approx(expected, rel=1e-12)
    assert [float(schedule.factor(place, length)) for place in range(length)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("over", ["rounds", "steps"])
def test_a_constant_rate_and_one_over_steps_do_not_change_from_round_to_round(over: str) -> None:
    assert LocalSettings(lr=0.3, lr_decay=0.5).rate(3, 9) == 0.3 * 0.5**2
    assert LocalSettings(lr=0.3).curve is None
    local = LocalSettings(lr=0.3, schedule={"kind": "exponential", "gamma": 0.5, "over": over})
    assert local.rate(3, 9) == (0.075 if over == "rounds" else 0.3)
    assert (local.curve is None) == (over == "rounds")


# Over the steps of a job.


def net() -> nn.Sequential:
    """Has closed forms, and can be trained by native kernels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 6, 6)), rng.integers(0, 3, n)) for n in SIZES]
    return FederatedData.from_clients(parts, test=parts[0]).to(torch.float64)


class Stepping(ClientRule):
    """SGD in a step of its own, so that no course says it."""

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(w)


class Watching(ClientRule):
    """SGD that looks at epochs only, so that steps between might be made in one go."""

    watches_epochs = True

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        return oracle.grad(w), job


def trained_by_torch(local: LocalSettings, told: dict[str, Any], client: int, epochs: int) -> Tensor:
    """One job by torch.optim.SGD, at the epoch's rate times the factor of the step in a whole job."""
    module, federated = copy.deepcopy(net()), data()
    own = federated.client(client)
    batches = [range(first, min(first + BATCH, len(own))) for first in range(0, len(own), BATCH)]
    factors = by_torch(told, WHOLE if local.by_step else WHOLE * len(batches))
    momentum = {"momentum": local.momentum, "nesterov": local.nesterov}
    optimizer = torch.optim.SGD(module.parameters(), lr=1, **momentum)
    for step in range(epochs if local.by_step else epochs * len(batches)):
        number, place = divmod(step, len(batches))
        order = streams.permutations(streams.keys(SEED, "batches", 1, client, number), len(own))[0]
        x, y = federated.train_batch(own[order[list(batches[place])]])
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        for group in optimizer.param_groups:
            group["lr"] = RATES[step if local.by_step else number] * factors[step]
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


WAYS = {
    "serial": ExecutorSettings(kind="serial"),
    "stack": ExecutorSettings(kind="vectorised", stack=100),
    "native": ExecutorSettings(kind="vectorised", stack=100, native=True),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(
    ("name", "rule", "local"),
    [
        ("cosine", ClientRule(), {}),
        ("warm-up and exponential", ClientRule(), {"momentum": 0.9}),
        ("step", ClientRule(), {"momentum": 0.9, "nesterov": True}),
        ("cosine to a share", Stepping(), {}),
        ("cosine", Watching(), {}),
        ("shorter cosine", Watching(), {"steps": WHOLE}),
        ("warm-up", ClientRule(), {"steps": WHOLE}),
    ],
    ids=str,
)
def test_every_step_of_every_client_has_its_rate(name: str, rule: ClientRule, local: dict[str, Any], way: str) -> None:
    if WAYS[way].native:
        needed()
    told = KINDS[name]
    length = {} if "steps" in local else {"epochs": WHOLE}
    settings = LocalSettings(batch_size=BATCH, schedule={**told, "over": "steps"}, **length, **local)
    shop = Workshop(net(), data(), rule, settings, SEED)
    start, rates = FlatModel(shop.module).w, torch.tensor(RATES, dtype=torch.float64)
    orders = [
        Order(client, client, 1, epochs, start, torch.zeros(0), rates[:epochs], {}, {})
        for client, epochs in enumerate(EPOCHS)
    ]
    got = shop.executor(WAYS[way].completed).train(orders).columns
    expected = torch.stack([trained_by_torch(settings, told, client, n) for client, n in enumerate(EPOCHS)])
    torch.testing.assert_close(got["w"], expected, rtol=1e-9, atol=1e-9)
    assert got["lr"][2, :2].tolist() == RATES[:2]  # what the server is told are the rates before the curve


# Over the rounds of a run.


def by_hand(factors: list[float], lr: float = federation.LR) -> federation.Vector:
    w = federation.start()
    for round, factor in enumerate(factors, 1):
        chosen, trained = federation.chosen(round), []
        for client in chosen:
            own = w
            for x, y in federation.batches(round, client):
                own = own - lr * factor * federation.gradient(own, x, y)
            trained.append(own)
        w = np.average(trained, axis=0, weights=[federation.SIZES[c] for c in chosen])
    return w


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", ["cosine to a share", "warm-up and step", "exponential"])
def test_a_run_by_hand(name: str) -> None:
    result, ends = federation.train("fedavg", local={"schedule": KINDS[name]})
    factors = by_torch(KINDS[name], federation.ROUNDS)
    np.testing.assert_allclose(federation.weights(result), by_hand(factors), rtol=1e-8, atol=1e-10)
    used = [end.arrivals[0].learning_rates[0] for end in ends]
    assert used == pytest.approx([federation.LR * factor for factor in factors])


def test_an_exponential_schedule_is_lr_decay() -> None:
    told = {"schedule": {"kind": "exponential", "gamma": 0.7}}, {"lr_decay": 0.7}
    one, other = (federation.weights(federation.train("fedavg", local=local)[0]) for local in told)
    assert (one == other).all()


def test_without_a_barrier_a_job_has_the_rate_of_the_round_in_which_it_was_dispatched() -> None:
    """A round is as many arrivals as a round has clients, and every arrival is a version; slow jobs arrive later."""
    settings = {"local": {"schedule": {"kind": "exponential", "gamma": 0.5}}, "fleet": {"speed_ratio": 20}}
    _, ends = federation.train("fedasync", rounds=6, **settings)
    told = [(end.round, arrival) for end in ends for arrival in end.arrivals]
    dispatched = [arrival.start_version // federation.PER_ROUND for _, arrival in told]
    used = [arrival.learning_rates for _, arrival in told]
    assert used == [pytest.approx([federation.LR * 0.5**round] * federation.EPOCHS) for round in dispatched]
    assert any(round - 1 > before for (round, _), before in zip(told, dispatched, strict=True))


@pytest.mark.parametrize(("over", "expected"), [("rounds", 0.5**3), ("steps", 1.0)])
def test_fine_tuning_begins_at_the_rate_of_the_last_round(
    over: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[list[float]] = []
    real = clients.finetuned

    def watched(models: Any, executor: Any, data: Any, round: int, lr: Tensor) -> Any:
        rates.append(lr.tolist())
        return real(models, executor, data, round, lr)

    monkeypatch.setattr(clients, "finetuned", watched)
    schedule = {"kind": "exponential", "gamma": 0.5, "over": over}
    federation.train("fedavg", local={"schedule": schedule}, finetune={"epochs": 2})
    assert rates == [pytest.approx([federation.LR * expected] * 2)]


# What is refused, and how it is spelled.


def test_spellings_of_a_schedule(tmp_path: Path) -> None:
    word = Experiment.load(overrides=["local.schedule=cosine", "local.schedule.final=0.1"])
    section = Experiment(local={"schedule": {"kind": "cosine", "final": 0.1}})
    assert word == section
    assert Experiment(local={"schedule": "cosine"}).local.schedule.kind == "cosine"
    path = tmp_path / "a.yaml"
    path.write_text("local:\n  schedule: {kind: step, every: 5}\n")
    changed = Experiment.load(path, ["local.schedule.every=7"])
    assert changed.local.schedule.model_dump() == {
        "kind": "step", "over": "rounds", "warmup": 0, "every": 7, "gamma": 0.1
    }  # fmt: skip
    path.write_text(changed.to_yaml())
    assert Experiment.load(path) == changed
    assert Experiment.load(path, ["local.schedule=constant"]).local == LocalSettings()


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        ({"schedule": "cosin"}, r"^local\.schedule\.kind: 'cosin' .*did you mean cosine"),
        ({"schedule": {"over": "steps"}}, r"^local\.schedule\.kind is missing; choose constant, cosine, step, "),
        ({"schedule": {"kind": "constant", "over": "steps"}}, r"^local\.schedule\.over"),
        ({"schedule": "step"}, r"^local\.schedule\.every"),
        ({"schedule": "exponential"}, r"^local\.schedule\.gamma"),
        ({"schedule": {"kind": "exponential", "gamma": 1.5}}, r"^local\.schedule\.gamma"),
        ({"schedule": {"kind": "cosine", "over": "epochs"}}, r"^local\.schedule\.over"),
        ({"schedule": {"kind": "warm-up", "warmup": 0}}, r"^local\.schedule\.warmup"),
        (
            {"schedule": {"kind": "cosine", "final": 0.1, "warmup": 4, "length": 4}},
            r"^local\.schedule\.length must be greater than local\.schedule\.warmup=4; got 4$",
        ),
        (
            {"schedule": {"kind": "cosine", "length": 4}},
            r"^local\.schedule\.length needs .*final greater than 0.*; ",
        ),
        ({"schedule": "cosine", "lr_decay": 0.9}, r"^local\.lr_decay is .* over rounds, and .*; keep one of the two$"),
        ({"nesterov": True}, r"^local\.nesterov needs momentum; set local\.momentum, such as 0\.9"),
        (
            {"nesterov": True, "optimizer": "adam"},
            r"^local\.nesterov works only with .*=sgd, but adam is chosen",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(local: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Experiment(local=local)


def test_lr_decay_goes_with_a_schedule_over_steps() -> None:
    local = LocalSettings(lr=0.4, lr_decay=0.5, schedule={"kind": "cosine", "over": "steps"})
    assert local.rate(2, 9) == 0.2
