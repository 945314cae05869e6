"""FedEnt's rounds against the same written out in numpy, with a minimiser of its own."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from fedkeel import Experiment, InputError
from tests.helpers import federation
from tests.helpers.federation import EXECUTORS, LR, ROUNDS, SIZES, Vector
from tests.helpers.tiers import slow_but

D, NUMBER = federation.FEATURES * federation.CLASSES, 8  # weights of the federation's model, and bytes of a float64


def cost(eta: Any, a: float, q: float, h: float, share: float, phi2: float, beta: float) -> Any:
    p = share * (a - 2 * eta * q + eta * eta * h) / phi2
    return beta * p * np.log(p) + (1 - beta) * eta * eta


def minimiser(top: float, *problem: float) -> float:
    """By a grid, and bisection of the slope around the grid's valleys."""
    a, q, h, share, phi2, beta = problem

    def rises(eta: float) -> bool:
        p, slope = share * (a - 2 * eta * q + eta**2 * h) / phi2, share * (2 * eta * h - 2 * q) / phi2
        return bool(beta * (slope * np.log(p) + slope) + (1 - beta) * 2 * eta > 0)

    grid = np.union1d(np.linspace(0, top, 4001), top * np.geomspace(1e-9, 1, 400))
    padded = np.concatenate([[np.inf], cost(grid, *problem), [np.inf]])
    found = [0.0, top]
    for place in np.flatnonzero((padded[1:-1] < padded[:-2]) & (padded[1:-1] < padded[2:])):
        low, high = grid[max(int(place) - 1, 0)], grid[min(int(place) + 1, len(grid) - 1)]
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if rises(middle) else (middle, high)
        found.append(high)
    return min(found, key=lambda eta: float(cost(eta, *problem)))


def stars(a: float, q: Vector, h: Vector, shares: Vector, rule: dict[str, Any]) -> tuple[Vector, float, int]:
    beta, top = rule["beta"], rule["eta_max"]
    phi2, rates = a, np.zeros_like(q)
    change, sweep = a, 0
    while abs(change) > 1e-6 * phi2 and sweep < 100:
        sweep += 1
        if rule.get("reading") == "literal":
            p = shares * (a - 2 * rates * q + rates**2 * h) / phi2
            rates = np.clip(q / ((1 - beta) * phi2 / (beta * shares * (1 + np.log(p))) + h), 0, top)
        else:
            rates = np.array([minimiser(top, a, *each, phi2, beta) for each in zip(q, h, shares, strict=True)])
        change = float(shares @ (a - 2 * rates * q + rates**2 * h)) - phi2
        phi2 += change / 2
    return rates, phi2, sweep


@dataclass
class Hand:
    """What a run should come to."""

    x: Vector
    used: list[list[float]] = field(default_factory=list)
    reports: list[dict[str, float]] = field(default_factory=list)


@cache
def by_hand(name: str) -> Hand:
    rule, local = CASES[name]
    kept: dict[int, tuple[float, int]] = {}
    x = before = federation.start()
    hand = Hand(x)
    bound = smoothness = 0.0

    def gradient(at: Vector, part: tuple[Vector, NDArray[np.int64]]) -> Vector:
        decay: float = local.get("weight_decay", 0.0)
        return federation.gradient(at, *part) + decay * at

    for round_ in range(1, ROUNDS + 1):
        chosen, base = federation.chosen(round_), LR * local.get("lr_decay", 1) ** (round_ - 1)
        shares = np.array([SIZES[client] for client in chosen]) / sum(SIZES[client] for client in chosen)
        full = rule.get("gradient_batches") == "full"
        parts = [
            federation.clients()[client] if full else next(federation.batches(round_, client)) for client in chosen
        ]
        g = np.array([gradient(x, part) for part in parts])
        bound = max(bound, *np.sqrt((g**2).sum(1)))
        if round_ > 1:
            changes = [np.linalg.norm(now - gradient(before, part)) for now, part in zip(g, parts, strict=True)]
            smoothness = max(smoothness, *(np.array(changes) / np.linalg.norm(x - before)))
        rates, phi2, sweeps = stars(float(x @ x), g @ x, (g**2).sum(1), shares, rule)
        models, used = [], []
        for client, star in zip(chosen, rates, strict=True):
            last, when = kept.get(client, (rule.get("initial_rate", base), 0))
            gamma = rule["gamma"] ** (round_ - when if rule.get("smoothing") == "round" else 1)
            rate = gamma * last + (1 - gamma) * star
            kept[client] = rate, round_
            used.append(min(rate, (rule.get("cap", 10.0) or np.inf) * base))
            w = x
            for batch in federation.batches(round_, client):
                w = w - used[-1] * gradient(w, batch)
            models.append(w)
        p = shares * (np.array(models) ** 2).sum(1) / (shares @ (np.array(models) ** 2).sum(1))
        before, x = x, x + rule.get("server_lr", 1.0) * (shares @ np.array(models) - x)
        hand.used.append(used)
        report = {"phi2": phi2, "phi2_sweeps": sweeps, "entropy": -(p * np.log(p)).sum()}
        report |= {"rate_star_mean": rates.mean(), "rate_star_zero": (rates == 0).mean()}
        if rule.get("estimate_bounds"):
            report |= {"gradient_bound": bound, "smoothness": smoothness}
        hand.reports.append(report)
    hand.x = x
    return hand


PLAIN = {"beta": 0.99, "eta_max": 1.0, "gamma": 0.6}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "inner": ({**PLAIN, "beta": 0.97, "eta_max": 0.3, "server_lr": 0.7}, {}),
    "literal": ({**PLAIN, "beta": 0.97, "reading": "literal"}, {}),
    "all data": ({**PLAIN, "gradient_batches": "full", "estimate_bounds": True}, {"weight_decay": 0.2}),
    "all rounds count": ({**PLAIN, "smoothing": "round", "cap": None}, {"lr_decay": 0.7}),
    "capped": ({**PLAIN, "cap": 2.0}, {}),
    "bounds": ({**PLAIN, "estimate_bounds": True}, {"lr_decay": 0.7}),
    "another start": ({**PLAIN, "initial_rate": 0.25, "reading": "literal", "smoothing": "round"}, {"lr_decay": 0.7}),
    "above the cap": ({**PLAIN, "initial_rate": 3.0, "cap": 2.0}, {"lr_decay": 0.7}),
}


def check(name: str, executor: str, model: nn.Module | None = None) -> None:
    rule, local = CASES[name]
    result, ends = federation.train({"name": "fedent", **rule}, executor, model, local=local)
    hand = by_hand(name)
    np.testing.assert_allclose(federation.weights(result), hand.x, rtol=0, atol=1e-9)
    for end, used, report in zip(ends, hand.used, hand.reports, strict=True):
        rates = [arrival.learning_rates for arrival in end.arrivals]
        np.testing.assert_allclose(
            rates, np.repeat(np.array(used)[:, None], federation.EPOCHS, axis=1), rtol=0, atol=1e-9
        )
        assert end.report.keys() == report.keys()
        for key, value in report.items():
            assert end.report[key] == pytest.approx(value, rel=1e-7 if key == "phi2" else 1e-9), key


@pytest.mark.parametrize("executor", slow_but(EXECUTORS, "serial"))
def test_rounds_by_hand(executor: str) -> None:
    """The model is a chain of layers, for which stacks have closed forms."""
    check("bounds", executor, nn.Sequential(federation.net()))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_every_setting_by_hand(executor: str, name: str) -> None:
    check(name, executor)


def test_a_rate_goes_on_without_its_cap() -> None:
    """Client 3 is capped in round 3; in round 4 its best rate is 0."""
    capped, again = by_hand("capped").used[2][1], by_hand("capped").used[3][0]
    assert federation.chosen(3)[1] == federation.chosen(4)[0] == 3
    assert capped == 2 * LR
    assert 2 * LR > again > PLAIN["gamma"] * capped + 0.01


def test_a_first_rate_of_its_own_is_smoothed_and_the_cap_stays_a_multiple_of_the_base_rate() -> None:
    """The first round's rates, with gamma near one; what is smoothed goes on above the cap."""
    gamma = {"name": "fedent", "reading": "literal", "gamma": 0.999}
    for initial, cap, expected in ((None, 10.0, LR), (0.02, 10.0, 0.02), (0.5, 10.0, 0.5), (0.5, 2.0, 2 * LR)):
        _, ends = federation.train({**gamma, "initial_rate": initial, "cap": cap}, rounds=1)
        np.testing.assert_allclose([each.learning_rates for each in ends[0].arrivals], expected, rtol=0.01)
    with pytest.raises(InputError, match=r"(?=.*0\.0)algorithm\.initial_rate\b.* greater than 0"):
        Experiment(algorithm={"name": "fedent", "initial_rate": 0.0})


def test_phi2_is_reported_as_exactly_as_it_is_known() -> None:
    _, ends = federation.train({"name": "fedent", **PLAIN}, rounds=1)
    assert ends[0].report["phi2"] == pytest.approx(by_hand("plain").reports[0]["phi2"], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("bounds", "up", "down"), [(False, 2, 1), (True, 3, 1 + D)])
def test_only_numbers_travel_beside_the_weights(bounds: bool, up: int, down: int) -> None:
    (plain, average), (more, entropy) = (
        federation.train("fedavg"),
        federation.train({"name": "fedent", "estimate_bounds": bounds}),
    )
    for before, after in zip(average, entropy, strict=True):
        for usual, own in zip(before.arrivals, after.arrivals, strict=True):
            assert own.bytes_up == usual.bytes_up + up * NUMBER
            assert own.bytes_down == usual.bytes_down + down * NUMBER
    for key, numbers in {"bytes_up": up, "bytes_down": down}.items():
        assert more.summary[key] == plain.summary[key] + numbers * NUMBER * ROUNDS * federation.PER_ROUND
