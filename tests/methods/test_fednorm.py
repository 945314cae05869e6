"""FedNorm against its one-dimensional problem and its rounds written out in numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedkeel.methods.fednorm import NormRate, norm_learning_rate
from tests.helpers import federation
from tests.helpers.arrivals import make_job
from tests.helpers.federation import EVERY_EXECUTOR, LR, ROUNDS, SIZES, Vector

D, NUMBER = federation.FEATURES * federation.CLASSES, 8  # weights of the federation's model, and bytes of a float64
RULE: dict[str, Any] = {"gamma": 0.5, "beta": 0.9}
MISTAKES = ["towards the move", "the first model's move", "a rate an epoch", "the capped rate goes on", "no floor"]


@pytest.mark.slow
@given(st.integers(0, 10_000), st.floats(0.02, 0.98), st.floats(-2, 2))
def test_the_rate_is_the_best_of_a_grid(seed: int, beta: float, power: float) -> None:
    rng = np.random.default_rng(seed)
    w, g, phi = rng.normal(size=5), rng.normal(size=5) * 10**power, rng.normal(size=5)
    rate = float(norm_learning_rate(torch.tensor(g @ (w - phi)), torch.tensor(g @ g), beta))
    away = np.linspace(-1, 1, 2001) * (abs(rate) + 1e-3)
    eta = rate + away[:, None]
    costs = (1 - beta) * eta[:, 0] ** 2 + beta * np.sum((w - eta * g - phi) ** 2, axis=1)
    assert abs(int(costs.argmin()) - len(away) // 2) <= 1


def test_one_rate_a_client() -> None:
    dots, squares = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[1.0], [0.0], [0.0]])
    np.testing.assert_allclose(norm_learning_rate(dots, squares, 0.75), np.array([[0.75], [-6], [0]]))


def by_hand(
    rule: dict[str, Any], local: dict[str, Any] | None = None, wrong: str | None = None
) -> tuple[Vector, list[list[float]]]:
    """(x, the rates used in each round); `wrong` names a mistake to make: see `MISTAKES`."""
    local = local or {}
    x = federation.start()
    move = np.zeros_like(x)
    kept: dict[int, tuple[float, int]] = {}
    history = []
    for round_ in range(1, ROUNDS + 1):
        chosen, base = federation.chosen(round_), LR * local.get("lr_decay", 1) ** (round_ - 1)
        models, used = [], []
        for client in chosen:
            w, v, rate = x, np.zeros_like(x), 0.0
            for number, batch in enumerate(federation.batches(round_, client)):
                g = federation.gradient(w, *batch)
                norm = np.linalg.norm(g)
                g = g * min(1, local.get("clip_norm", np.inf) / (norm + 1e-6)) + local.get("weight_decay", 0) * w
                again = wrong == "a rate an epoch" and number == -(-SIZES[client] // federation.BATCH)
                if not number or again:
                    phi = x - move if wrong == "towards the move" else x + move
                    best = rule["beta"] * g @ (w - phi) / (1 - rule["beta"] + rule["beta"] * g @ g)
                    star = min(best if wrong == "no floor" else max(best, 0), rule.get("eta_max", 1.0))
                    star = 0.0 if rule.get("reading") == "literal" else star
                    last, when = kept.get(client, (rule.get("initial_rate", base), 0))
                    gamma = rule["gamma"] ** (round_ - when if rule.get("smoothing") == "round" else 1)
                    smoothed = gamma * last + (1 - gamma) * star
                    cap = rule.get("cap", 10.0)
                    rate = smoothed if cap is None else min(smoothed, cap * base)
                    kept[client] = (rate if wrong == "the capped rate goes on" else smoothed), round_
                v = local.get("momentum", 0) * v + g
                w = w - rate * v
            models.append(w)
            used.append(rate)
        mean = np.average(models, axis=0, weights=[SIZES[client] for client in chosen])
        after = x + rule.get("server_lr", 1.0) * (mean - x)
        if wrong != "the first model's move" or round_ == 1:
            move = after - x
        x = after
        history.append(used)
    return x, history


def check(rule: dict[str, Any], executor: str, local: dict[str, Any] | None = None, **settings: Any) -> None:
    result, ends = federation.train({"name": "fednorm", **rule}, executor, local=local or {}, **settings)
    x, history = by_hand(rule, local)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        rates(ends), np.repeat(np.array(history)[..., None], federation.EPOCHS, axis=2), atol=1e-12
    )


def rates(ends: Any) -> list[list[list[float]]]:
    return [[arrival.learning_rates for arrival in end.arrivals] for end in ends]


@pytest.mark.parametrize("reading", ["practical", "literal"])
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, reading: str) -> None:
    """The model is a chain of layers: stacks have closed forms for it, and whole steps."""
    check({**RULE, "reading": reading, "server_lr": 1.3}, executor, model=nn.Sequential(federation.net()))


CAPPED = ({"gamma": 0.3, "beta": 0.99, "cap": 1.0}, {"lr_decay": 0.7})
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (RULE, {}),
    "momentum": (RULE, {"momentum": 0.6}),
    "clipped and decayed": (RULE, {"weight_decay": 0.3, "clip_norm": 0.3}),
    "all rounds count": ({**RULE, "smoothing": "round"}, {"lr_decay": 0.7, "momentum": 0.3}),
    "capped": CAPPED,
    "without a cap": ({**RULE, "cap": None}, {"lr_decay": 0.2}),
    "bounded": ({**RULE, "eta_max": 0.05}, {}),
    "another start": ({**RULE, "initial_rate": 0.3}, {"lr_decay": 0.7}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_every_setting_by_hand(executor: str, name: str) -> None:
    """Clients of unequal sizes leave the stack one after the other."""
    rule, local = CASES[name]
    check(rule, executor, local)


@pytest.mark.parametrize("wrong", MISTAKES)
def test_the_federation_tells_the_method_from_mistakes(wrong: str) -> None:
    assert np.abs(by_hand(*CAPPED)[0] - by_hand(*CAPPED, wrong=wrong)[0]).max() > 1e-5


def test_as_printed_a_clients_rate_falls_by_gamma_whenever_it_takes_part() -> None:
    _, ends = federation.train({"name": "fednorm", "reading": "literal", "gamma": 0.8}, "stack 3")
    times = np.zeros(federation.N, dtype=int)
    for round_, row in enumerate(rates(ends), start=1):
        chosen = federation.chosen(round_)
        times[chosen] += 1
        for client, used in zip(chosen, row, strict=True):
            np.testing.assert_allclose(used, [0.8 ** times[client] * LR] * federation.EPOCHS, rtol=1e-12)
    assert times.max() >= 3


def test_the_first_round_has_no_move_to_follow() -> None:
    """Then and as printed, the best rate is 0."""
    (practical, _), (literal, _) = (
        federation.train({"name": "fednorm", "reading": r}, rounds=1) for r in ("practical", "literal")
    )
    np.testing.assert_array_equal(federation.weights(practical), federation.weights(literal))


def test_the_last_move_goes_down_beside_the_weights() -> None:
    plain, more = (federation.train(name)[0].summary for name in ("fedavg", "fednorm"))
    assert more["bytes_up"] == plain["bytes_up"]
    assert more["bytes_down"] == plain["bytes_down"] + D * NUMBER * ROUNDS * federation.PER_ROUND


def test_a_rate_that_has_decayed_to_nothing_does_not_start_anew() -> None:
    """In float32, 0.5^k runs out of numbers; whether a client has a rate yet is another question."""
    rule = NormRate(reading="literal", gamma=0.5)
    kept = {"rate": torch.zeros(1, 1), "round": torch.tensor([[143]])}
    job = replace(make_job(torch.ones(1, D)), lr=torch.tensor([[0.01]]))
    later = replace(job, kept=kept, round=torch.tensor([[144]]))
    assert rule.smoothed(later, torch.zeros(1, 1)).lr.tolist() == [[0.0]]
    first = replace(job, kept={**kept, "round": torch.tensor([[0]])}, round=torch.tensor([[1]]))
    assert rule.smoothed(first, torch.zeros(1, 1)).lr.item() == pytest.approx(0.005)
