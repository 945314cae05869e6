"""FedASMU's formulas against finite differences, and its rules by hand in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkeel.errors import InputError
from fedkeel.methods import find
from fedkeel.methods.fedasmu import AsynchronousMixing, FreshMerge
from fedkeel.methods.mixing import (
    TINY,
    device_gradients,
    freshness,
    importance,
    own_displacement,
    saturated,
    server_gradients,
)
from fedkeel.methods.server import ServerState
from tests.helpers import arrivals
from tests.helpers.fedasmu import LAYOUT, RATES, Bowls, D, Server, fresh_model, job, upload
from tests.helpers.federation import N, Vector

lambdas, sigmas, iotas = st.floats(0.01, 20), st.floats(0, 4), st.floats(0, 1)
gammas, upsilons, mus = st.floats(0.01, 20), st.floats(0, 1), st.floats(0.05, 5)
versions, ages = st.integers(1, 200), st.integers(0, 99)


def server_weight(version: Any, start: Any, lambda_: Any, sigma: Any, iota: Any, mu: float) -> Any:
    """alpha of Eq. 2 in (0, 1), given versions t >= o >= 1."""
    return saturated(importance(version, version - start + 1, lambda_, sigma, iota), mu)


def device_weight(version: Any, start: Any, gamma: Any, upsilon: Any, mu: float) -> Any:
    """beta of Eq. 10 in [0, 1), given versions g >= o >= 1."""
    return saturated(freshness(version, version - start + 1, gamma, upsilon), mu)


def tensors(*numbers: float) -> list[Tensor]:
    return [torch.tensor(float(number), dtype=torch.float64) for number in numbers]


def test_weights_by_hand() -> None:
    xi = 5 / (2 * 3**0.5) + 0.05
    assert server_weight(4, 2, 5.0, 0.5, 0.05, 2.0) == pytest.approx(2 * xi / (1 + 2 * xi), rel=1e-14)
    phi = 3 / 3 * (1 - 0.1 / 2)
    assert device_weight(9, 6, 3.0, 0.1, 2.0) == pytest.approx(2 * phi / (1 + 2 * phi), rel=1e-14)


@given(versions, ages, lambdas, sigmas, iotas, mus)
def test_the_servers_weight_lies_between_nothing_and_all(
    start: int, age: int, lambda_: float, sigma: float, iota: float, mu: float
) -> None:
    alpha = server_weight(start + age, start, lambda_, sigma, iota, mu)
    assert 0 < alpha < 1
    t, o, first, second, third = tensors(start + age, start, lambda_, sigma, iota)
    assert float(server_weight(t, o, first, second, third, mu)) == pytest.approx(alpha, rel=1e-12)


@given(versions, ages, st.floats(0, 1000), st.floats(0, 10), mus)
def test_the_devices_weight_is_never_negative_and_below_all(
    start: int, age: int, gamma: float, upsilon: float, mu: float
) -> None:
    beta = device_weight(start + age, start, gamma, upsilon, mu)
    assert 0 <= beta < 1
    assert beta == 0 or upsilon < (age + 1) ** 0.5
    g, o, first, second = tensors(start + age, start, gamma, upsilon)
    assert float(device_weight(g, o, first, second, mu)) == pytest.approx(beta, rel=1e-12)


class Bowl:
    """F(w) = w A w / 2 - b w, and two points of its domain."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        half = rng.normal(size=(D, D))
        self.a, self.b = half @ half.T, rng.normal(size=D)
        self.here, self.there = rng.normal(size=(2, D))

    def loss(self, share: float) -> float:
        w = self.at(share)
        return float(w @ self.a @ w / 2 - self.b @ w)

    def at(self, share: float) -> Vector:
        mixed: Vector = self.here + share * (self.there - self.here)
        return mixed

    def along(self, share: float) -> float:
        """<dF/dw at the mixed model, w_there - w_here>"""
        return float((self.a @ self.at(share) - self.b) @ (self.there - self.here))


def differences(of: Callable[..., float], at: tuple[float, ...]) -> list[float]:
    """Central differences of a function by each of its arguments."""
    step = 1e-5
    slopes = []
    for place in range(len(at)):
        high, low = ([*at[:place], at[place] + sign * step, *at[place + 1 :]] for sign in (1, -1))
        slopes.append((of(*high) - of(*low)) / (2 * step))
    return slopes


@given(st.integers(0, 1000), versions, ages, lambdas, st.floats(0.001, 4), st.floats(0.001, 1), mus)
def test_server_gradients_are_those_of_the_whole_chain(
    seed: int, start: int, age: int, lambda_: float, sigma: float, iota: float, mu: float
) -> None:
    bowl, version = Bowl(seed), start + age

    def loss(lambda_: float, sigma: float, iota: float) -> float:
        return bowl.loss(server_weight(version, start, lambda_, sigma, iota, mu))

    xi = importance(float(version), age + 1.0, lambda_, sigma, iota)
    along = bowl.along(mu * xi / (1 + mu * xi))
    got = server_gradients(along, xi, version, age + 1, lambda_, sigma, mu)
    np.testing.assert_allclose(got, differences(loss, (lambda_, sigma, iota)), rtol=1e-5, atol=1e-7)


@given(st.integers(0, 1000), versions, st.integers(1, 99), gammas, st.floats(0.001, 0.99), mus)
def test_device_gradients_are_those_of_the_whole_chain(
    seed: int, start: int, age: int, gamma: float, upsilon: float, mu: float
) -> None:
    bowl, version = Bowl(seed), start + age
    along = bowl.along(device_weight(version, start, gamma, upsilon, mu))
    got = device_gradients(along, version, age + 1, gamma, upsilon, mu)
    slopes = differences(lambda g, u: bowl.loss(device_weight(version, start, g, u, mu)), (gamma, upsilon))
    np.testing.assert_allclose(got, slopes, rtol=1e-5, atol=1e-7)


@given(st.floats(-9, 9), versions, ages, lambdas, st.floats(0.01, 4), iotas, mus)
def test_the_printed_gradient_by_sigma_has_ln_sigma_for_lambda_ln_staleness(
    along: float, start: int, age: int, lambda_: float, sigma: float, iota: float, mu: float
) -> None:
    root, staleness = float(start + age), age + 1.0
    numbers = along, importance(root, staleness, lambda_, sigma, iota), root, staleness, lambda_, sigma, mu
    derived, printed = server_gradients(*numbers), server_gradients(*numbers, reading="literal")
    assert (printed[0], printed[2]) == (derived[0], derived[2])
    assert printed[1] * lambda_ * np.log(staleness) == pytest.approx(derived[1] * np.log(sigma), rel=1e-9, abs=1e-12)


def test_ln_sigma_is_finite_at_zero() -> None:
    at_zero = server_gradients(1.0, 0.5, 4.0, 2.0, 5.0, 0.0, 1.0, "literal")
    assert at_zero[1] == pytest.approx(-np.log(TINY) * at_zero[0])
    assert np.isfinite(at_zero).all()


# The server.


FAST = {"lambda_lr": 3e4, "sigma_lr": 300.0, "iota_lr": 30.0}
"""So fast that every bound is met."""


@pytest.mark.parametrize("rates", [RATES, FAST], ids=["moving", "fast"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("reading", ["practical", "literal"])
def test_a_hundred_arrivals_by_hand(
    reading: Literal["practical", "literal"], shared: bool, rates: dict[str, float]
) -> None:
    rng = np.random.default_rng(3)
    rule = AsynchronousMixing(reading=reading, shared_control=shared, mu_a=0.8, **rates)
    w = rng.normal(size=D)
    state, server = rule.init(arrivals.vector(w), LAYOUT, torch.ones(N)), Server(w, rule)
    busy: dict[int, int] = dict.fromkeys(range(N), 0)
    seen = []
    for arrival in range(100):
        client = int(rng.integers(N))
        start = busy.pop(client)
        fresh = int(rng.integers(start, arrival + 1)) if rng.random() < 0.5 else start
        models = server.models
        update, g = upload(rng, models[start + 1], models[fresh + 1] if fresh > start else None)
        if reading == "literal":
            g = (update.w[0] - update.start[0]).numpy() / (0.05 * 4)
        state, receipt = rule.receive(state, update, arrivals.view(arrival, start, client, busy=busy))
        alpha = server.receive(client, start + 1, update.w[0].numpy(), g)
        assert receipt.weight == pytest.approx(alpha, rel=1e-9)
        assert (receipt.accepted, receipt.published) == (True, True)
        used = [receipt.notes[name] for name in ("lambda", "sigma", "iota")]
        np.testing.assert_allclose(used, server.control[0 if shared else client], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.w, models[arrival + 2], rtol=0, atol=1e-10)
        busy[client] = arrival + 1
        seen.append(used)
    assert state.memory["control"].shape == (1 if shared else N, 3)
    assert np.ptp(seen, axis=0).min() > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_is_that_of_the_mixing_that_made_the_model_whoever_was_mixed_in(seed: int) -> None:
    """Finite differences through the rule itself: one device's mixing, and the step that another then takes."""
    bowl, rng = Bowl(seed), np.random.default_rng(seed)
    rates = {"lambda_lr": 0.01, "sigma_lr": 0.02, "iota_lr": 0.003}
    rule = AsynchronousMixing(mu_a=0.8, **rates)
    first = rule.init(arrivals.vector(bowl.here), LAYOUT, torch.ones(2))
    theirs, own = (7.0, 0.8, 0.1), (2.0, 3.0, 0.5)
    there = arrivals.arrival(bowl.there, rng.normal(size=D), layout=LAYOUT)

    def mixed(*control: float) -> ServerState:
        controls = torch.tensor([control, own], dtype=torch.float64)
        return rule.receive(replace(first, memory={"control": controls}), there, arrivals.view(8, 3, client=0))[0]

    def loss(*control: float) -> float:
        w = mixed(*control).w.numpy()
        return float(w @ bowl.a @ w / 2 - bowl.b @ w)

    state = mixed(*theirs)
    w = state.w.numpy()
    update = arrivals.arrival(w - 0.1 * (bowl.a @ w - bowl.b), w, lr=0.1, layout=LAYOUT)
    _, receipt = rule.receive(state, update, arrivals.view(9, 9, client=1))
    moved = np.array([receipt.notes[name] for name in ("lambda", "sigma", "iota")]) - own
    np.testing.assert_allclose(moved, -np.array([*rates.values()]) * differences(loss, theirs), rtol=1e-5, atol=1e-9)


def test_at_the_paper_rates_the_control_parameters_hardly_move() -> None:
    rng = np.random.default_rng(0)
    rule = AsynchronousMixing()
    state = rule.init(torch.zeros(D, dtype=torch.float64), LAYOUT, torch.ones(N))
    for version in range(20):
        update, _ = upload(rng, state.w.numpy(), None)
        state, _ = rule.receive(state, update, arrivals.view(version, client=version % N))
    moved = (state.memory["control"] - torch.tensor(rule.control)).abs()
    assert 0 < float(moved.max()) < 1e-3


def test_what_is_too_stale_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    rule = AsynchronousMixing(staleness_bound=3, **RATES)
    state = rule.init(torch.zeros(D, dtype=torch.float64), LAYOUT, torch.ones(N))
    for version in range(3):
        state, _ = rule.receive(state, upload(rng, state.w.numpy(), None)[0], arrivals.view(version, busy={4: 1}))
    update, _ = upload(rng, state.w.numpy(), None)
    kept, receipt = rule.receive(state, update, arrivals.view(3, 1, client=2, busy={4: 1}))
    assert (receipt.accepted, receipt.published) == (True, True)
    assert not torch.equal(kept.w, state.w)
    after, receipt = rule.receive(state, update, arrivals.view(3, 0, client=2, busy={4: 1}))
    assert (receipt.weight, receipt.accepted, receipt.published) == (0.0, False, False)
    assert after.w is state.w
    assert after.memory is state.memory
    assert after.log.keys() == state.log.keys() == {1, 3}


@pytest.mark.slow
def test_the_log_never_outgrows_the_versions_in_flight() -> None:
    rng = np.random.default_rng(1)
    rule = AsynchronousMixing(staleness_bound=6)
    state, version, refused = rule.init(torch.zeros(D, dtype=torch.float64), LAYOUT, torch.ones(40)), 0, 0
    busy: dict[int, int] = {}
    update, _ = upload(rng, np.zeros(D), None)
    for _ in range(1500):
        for client in rng.integers(0, 40, int(rng.integers(3))).tolist():
            busy.setdefault(client, version)
        if not busy:
            continue
        client = int(rng.choice(list(busy)))
        start = busy.pop(client)
        assert not start or start in state.log  # whoever arrives finds the log of its version
        state, receipt = rule.receive(state, update, arrivals.view(version, start, client, busy=busy))
        version += receipt.published
        refused += not receipt.accepted
        assert version in state.log
        assert len(state.log) <= len({*busy.values()}) + 1
    assert version > 800
    assert refused > 50


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("rates", [[0.1] * 4, [0.1, 0.05, 0.02, 0.3]])
@pytest.mark.parametrize("slot", [0, 1, 3])
def test_a_constant_gradient_is_found_exactly_whatever_was_merged(
    slot: int, rates: list[float], momentum: float
) -> None:
    start, fresh, g = np.random.default_rng(slot).normal(size=(3, D))
    w, velocity = start, np.zeros(D)
    for epoch, lr in enumerate(rates):
        if slot and epoch == slot:
            w = 0.3 * w + 0.7 * fresh
        for _ in range(2):
            velocity = momentum * velocity + g
            w = w - lr * velocity
    merged: dict[str, Any] = {
        "slot": torch.tensor([[slot]]),
        "fresh": fresh_model(arrivals.vector(fresh)[None], 6),
        "momentum": momentum,
    }
    update = arrivals.arrival(
        w, start, epochs=4, steps=8, lr=rates, messages={"merge_weight": 0.7}, layout=LAYOUT, **merged
    )
    np.testing.assert_allclose(-own_displacement(update) / float(update.length), g, rtol=1e-12)


def test_the_ablated_server_weighs_as_fedasync_does() -> None:
    rng = np.random.default_rng(0)
    rule = AsynchronousMixing(ablation="DA", staleness_bound=9)
    state = rule.init(torch.zeros(D, dtype=torch.float64), LAYOUT, torch.ones(N))
    assert not state.memory
    update, _ = upload(rng, np.ones(D), np.zeros(D))
    after, receipt = rule.receive(state, update, arrivals.view(8))
    assert receipt.weight == 0.6
    assert torch.equal(after.w, torch.lerp(state.w, update.w[0], 0.6))
    _, receipt = rule.receive(state, update, arrivals.view(8, 5))
    assert receipt.weight == pytest.approx(0.6 / 2)
    assert not receipt.notes
    refused, receipt = rule.receive(state, update, arrivals.view(9, 0))
    assert refused is state
    assert not receipt.accepted


# The device.


def merge(rule: FreshMerge, w: Tensor, fresh: Tensor, oracle: Any, kept: Any) -> Any:
    """A refresh of version 6 into jobs that started from 2, 3, 4, ..., in the code's count from 0."""
    version = torch.arange(2, 2 + len(w))[:, None]
    begun = rule.begin(job(w, kept, version=version, fresh=fresh_model(fresh, 6)), oracle)
    return rule.refresh(begun, w, oracle)


def by_hand(
    rule: FreshMerge, w: Vector, fresh: Vector, centre: Vector, curve: Vector, start: int, gamma: float, upsilon: float
) -> tuple[float, ...]:
    """beta, the losses before and after, and the new gamma and upsilon."""
    g, o = 7, start + 1
    phi = gamma / np.sqrt(g) * (1 - upsilon / np.sqrt(g - o + 1))
    beta = rule.mu_b * phi / (1 + rule.mu_b * phi)
    after = (1 - beta) * w + beta * fresh
    at, away = (after, w) if rule.reading == "practical" else (w, after)
    r = (curve * (at - centre)) @ (fresh - away)
    kk = rule.mu_b / (1 + rule.mu_b * phi) ** 2
    by_gamma = kk * r * (1 - upsilon / np.sqrt(g - o + 1)) / np.sqrt(g)
    by_upsilon = -kk * r * gamma / (np.sqrt(g) * np.sqrt(g - o + 1))
    moved = 1.0 if rule.reward == "proxy" else 0.0
    losses = [float((curve * (each - centre - moved) ** 2).sum() / 2) for each in (w, after)]
    control = np.clip(gamma - rule.gamma_lr * by_gamma, 0, 1e3), np.clip(upsilon - rule.upsilon_lr * by_upsilon, 0, 1)
    return beta, *losses, *control


NAMES = ("merge_weight", "loss_before", "loss_after", "gamma", "upsilon")


@pytest.mark.parametrize("reward", ["local", "proxy"])
@pytest.mark.parametrize("reading", ["practical", "literal"])
@pytest.mark.parametrize("lr", [0.01, 10.0])
def test_a_merge_by_hand_alone_and_in_a_stack(reading: Any, reward: Any, lr: float) -> None:
    rng = np.random.default_rng(int(lr))
    centres, w, fresh = rng.normal(size=(3, 4, D))
    curves = rng.uniform(0.5, 2, (4, D))
    oracle = Bowls(centres, curves)
    rule = FreshMerge(reading=reading, reward=reward, mu_b=1.3, gamma_lr=lr, upsilon_lr=lr)
    rows = torch.tensor([3, 0, 2])
    kept = {
        "gamma": torch.tensor([[2.0], [3.0], [0.5]]).double(),
        "upsilon": torch.tensor([[0.1], [0.9], [0.0]]).double(),
    }
    stack = merge(rule, torch.tensor(w)[rows], torch.tensor(fresh)[rows], oracle.pick(rows), kept)
    for place, row in enumerate(rows.tolist()):
        numbers = 2 + place, float(kept["gamma"][place]), float(kept["upsilon"][place])
        expected = by_hand(rule, w[row], fresh[row], centres[row], curves[row], *numbers)
        np.testing.assert_allclose(stack.share[place], expected[:1], rtol=1e-12)
        np.testing.assert_allclose([float(stack.notes[name][place]) for name in NAMES], expected, rtol=1e-12)
    alone = merge(
        rule,
        torch.tensor(w[3:]),
        torch.tensor(fresh[3:]),
        Bowls(centres[3:], curves[3:]),
        {name: tensor[:1] for name, tensor in kept.items()},
    )
    for name in NAMES:
        assert alone.notes[name].shape == (1, 1)
        np.testing.assert_allclose(alone.notes[name], stack.notes[name][:1], rtol=1e-12)


def test_what_a_device_sends_keeps_and_is_charged_for() -> None:
    rule, w = FreshMerge(), torch.zeros(3, D)
    kept = {name: torch.stack([tensor] * 3) for name, tensor in rule.initial(w[0], w[0, :0]).items()}
    assert {name: tensor.dtype for name, tensor in kept.items()} == dict.fromkeys(("gamma", "upsilon"), torch.float64)
    begun = rule.begin(job(w, kept), Bowls(np.zeros(D), np.ones(D)))  # type: ignore[arg-type]
    carry = {**begun.carry, "gamma": begun.carry["gamma"] + 1}
    messages, after = rule.end(replace(begun, carry=carry), w, Bowls(np.zeros(D), np.ones(D)))  # type: ignore[arg-type]
    assert tuple(messages) == rule.recorded == NAMES
    assert after["gamma"].tolist() == [[4.0]] * 3
    sends = rule.sends(LAYOUT, {})
    assert tuple(sends) == NAMES
    assert sum(not each.recorded for each in sends.values()) == 2  # the others are for the record


@pytest.mark.parametrize("ablation", ["FA", "0", 0])
def test_without_merges_nothing_is_asked_sent_or_kept(ablation: Any) -> None:
    rule, w = FreshMerge(ablation=ablation), torch.zeros(1, D)
    assert rule.initial(w[0], w[0, :0]) == {}
    assert rule.asks_after({}, {}, 10, (0.0, 0.0)) == 0
    begun = rule.begin(job(w, {}), None)  # type: ignore[arg-type]
    assert rule.end(begun, w, None) == ({}, {})  # type: ignore[arg-type]
    assert rule.sends(LAYOUT, {}) == {}


def test_phi_stays_finite_and_gamma_can_come_back_from_zero() -> None:
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert float(freshness(one * 4, one * 2, zero, one)) == 0
    by_gamma, by_upsilon = device_gradients(-one, one * 4, one * 2, zero, one, 1.0)
    assert float(by_gamma) < 0
    assert float(by_upsilon) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ablation": "XY"}, "algorithm.ablation"),
        ({"lambda_": 0.0}, "algorithm.lambda_"),
        ({"upsilon": 1.5}, "algorithm.upsilon"),
        ({"slot": "late"}, "algorithm.slot"),
        ({"staleness_bound": 0}, "algorithm.staleness_bound"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        find("fedasmu").rules(settings)


def test_both_rules_get_the_settings_they_share() -> None:
    client, server = find("fedasmu").rules({"reading": "literal", "ablation": 0, "slot": "first", "mu_a": 2.0})
    assert isinstance(client, FreshMerge)
    assert isinstance(server, AsynchronousMixing)
    assert (client.reading, client.ablation, client.slot) == (server.reading, server.ablation, server.slot)
    assert server.mu_a == 2.0
