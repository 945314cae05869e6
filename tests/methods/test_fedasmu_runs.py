"""Whole runs of FedASMU and FedSSMU, written out in numpy event by event."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedkeel import Arrival, RoundEnd, streams
from fedkeel.methods import find
from fedkeel.methods.fedasmu import DynamicMixing, FreshMerge
from tests.helpers import federation
from tests.helpers.fedasmu import Server
from tests.helpers.federation import (
    BATCH,
    CLASSES,
    EVERY_EXECUTOR,
    FEATURES,
    LR,
    PER_ROUND,
    SEED,
    SIZES,
    N,
    Vector,
)

EPOCHS, ROUNDS, SECONDS, EVERY = 4, 5, 0.25, 2.0
"""Seconds are binary fractions, so that what happens at one instant does so on both sides."""
MOVING = {
    "lambda_lr": 3.0, "sigma_lr": 0.3, "iota_lr": 0.3, "gamma_lr": 1.0, "upsilon_lr": 0.1, "mu_a": 0.7, "mu_b": 1.2
}  # fmt: skip
"""Control parameters that move so much that it shows."""


def train(executor: str, algorithm: Any, **settings: Any) -> tuple[Vector, list[RoundEnd]]:
    schedule = {"trigger_seconds": EVERY, "busy_share": 1.0}
    settings = {"fleet": {"seconds_per_sample": SECONDS}, "schedule": schedule, "rounds": ROUNDS, **settings}
    result, ends = federation.train(
        algorithm, executor, local={"epochs": EPOCHS, **settings.pop("local", {})}, **settings
    )
    return federation.weights(result), ends


def rows(ends: list[RoundEnd]) -> list[Arrival]:
    return [arrival for end in ends for arrival in end.arrivals]


def loss(w: Vector, x: Vector, y: Any) -> float:
    logits = x @ w.reshape(CLASSES, FEATURES).T
    top = logits.max(axis=1)
    return float(np.mean(np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(len(y)), y]))


@dataclass
class Device:
    gamma: float
    upsilon: float
    start: int = 0
    """The version of its model, from 1."""
    wave: int = 0
    round: int = 0
    fresh: int | None = None
    told: dict[str, float] = field(default_factory=dict)


class Federation:
    """Server, devices and clock; versions from 1."""

    def __init__(self, name: str, after: int, **algorithm: Any) -> None:
        client, server = find(name).rules(algorithm)
        assert isinstance(client, FreshMerge)
        assert isinstance(server, DynamicMixing)
        self.name, self.rule, self.slot = name, client, after
        self.server = Server(federation.start(), server)
        self.devices = [Device(client.gamma, client.upsilon) for _ in SIZES]
        self.log: list[tuple[int, int, float, dict[str, float]]] = []

    def run(self) -> None:
        """Arrivals come before requests, and these before dispatches, at one instant; among them, by client."""
        heap: list[tuple[float, int, int]] = [(0.0, 2, 0)]
        busy: set[int] = set()
        wave = 0
        while len(self.log) < ROUNDS * PER_ROUND:
            now, what, client = heapq.heappop(heap)
            if what == 0:
                busy.remove(client)
                self.arrive(client)
                if self.name == "fedssmu" and not busy:
                    heapq.heappush(heap, (now, 2, 0))
            elif what == 1:
                device = self.devices[client]
                device.fresh = self.server.version if self.server.version > device.start else None
            else:
                wave += 1
                idle = [client for client in range(N) if client not in busy]
                drawn = streams.generator(SEED, "sampling", wave).choice(idle, min(PER_ROUND, len(idle)), replace=False)
                for client in sorted(drawn.tolist()):
                    busy.add(client)
                    device = self.devices[client]
                    device.start, device.wave, device.fresh = self.server.version, wave, None
                    device.round = 1 + len(self.log) // PER_ROUND
                    epoch = SIZES[client] * SECONDS
                    heapq.heappush(heap, (now + self.slot * epoch, 1, client))
                    heapq.heappush(heap, (now + EPOCHS * epoch, 0, client))
                wave -= not len(drawn)
                if self.name == "fedasmu":
                    heapq.heappush(heap, (now + EVERY, 2, 0))

    def arrive(self, client: int) -> None:
        device, server = self.devices[client], self.server
        start = server.models[device.start]
        w, beta, told = self.train(client, device, start)
        count = EPOCHS * -(-SIZES[client] // BATCH)
        moved = w - start
        if server.rule.reading == "literal":
            g = moved / (LR * EPOCHS)
        else:
            if device.fresh is not None:
                moved = (moved - beta * (server.models[device.fresh] - start)) / (1 - beta * self.slot / EPOCHS)
            g = -moved / (LR * count)
        root = None
        if self.name == "fedssmu":
            root = 1.0 if server.rule.reading == "practical" else 1.0 + len(self.log) // PER_ROUND
        weight = server.receive(client, device.start, w, g, root)
        told |= dict(zip(("lambda", "sigma", "iota"), server.control[client], strict=True))
        self.log.append((client, device.start, weight, told))

    def train(self, client: int, device: Device, w: Vector) -> tuple[Vector, float, dict[str, float]]:
        each = -(-SIZES[client] // BATCH)
        beta, told = 0.0, {}
        for step, batch in enumerate(federation.batches(device.wave, client, EPOCHS)):
            if device.fresh is not None and step == self.slot * each:
                w, beta, told = self.merge(device, w, self.server.models[device.fresh], batch)
            w = w - LR * federation.gradient(w, *batch)
        return w, beta, told

    def merge(self, device: Device, w: Vector, fresh: Vector, batch: Any) -> tuple[Vector, float, dict[str, float]]:
        assert device.fresh is not None
        rule, age = self.rule, device.fresh - device.start + 1
        root = np.sqrt(device.fresh if self.name == "fedasmu" else device.round)
        phi = device.gamma / root * (1 - device.upsilon / np.sqrt(age))
        beta = rule.mu_b * phi / (1 + rule.mu_b * phi)
        after = (1 - beta) * w + beta * fresh
        at, away = (after, w) if rule.reading == "practical" else (w, after)
        inner = rule.mu_b / (1 + rule.mu_b * phi) ** 2 * (federation.gradient(at, *batch) @ (fresh - away))
        by_gamma = inner * (1 - device.upsilon / np.sqrt(age)) / root
        by_upsilon = -inner * device.gamma / (root * np.sqrt(age))
        device.gamma = float(np.clip(device.gamma - rule.gamma_lr * by_gamma, 0, 1e3))
        device.upsilon = float(np.clip(device.upsilon - rule.upsilon_lr * by_upsilon, 0, 1))
        told = {"merge_weight": beta, "loss_before": loss(w, *batch), "loss_after": loss(after, *batch)}
        return after, beta, told | {"gamma": device.gamma, "upsilon": device.upsilon}


def check(executor: str, name: str, after: int = EPOCHS // 2, **algorithm: Any) -> list[Arrival]:
    w, ends = train(executor, {"name": name, **algorithm})
    hand = Federation(name, after, **algorithm)
    hand.run()
    arrivals = rows(ends)
    assert [(row.client, row.start_version + 1) for row in arrivals] == [each[:2] for each in hand.log]
    for row, (_, _, weight, told) in zip(arrivals, hand.log, strict=True):
        assert row.weight == pytest.approx(weight, rel=1e-9)
        assert row.notes == pytest.approx(told, rel=1e-8, abs=1e-10)
    np.testing.assert_allclose(w, hand.server.models[hand.server.version], rtol=0, atol=1e-9)
    merged = [row for row in arrivals if row.slot is not None]
    assert {row.slot for row in merged} == {after}
    assert len(merged) > 3
    assert len(arrivals) > len(merged)
    return arrivals


@pytest.mark.parametrize("name", ["fedasmu", "fedssmu"])
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_a_run_by_hand(executor: str, name: str) -> None:
    arrivals = check(executor, name, **MOVING)
    assert max(row.staleness for row in arrivals) > 1
    assert np.ptp([row.notes["lambda"] for row in arrivals if row.notes]) > 0.01
    assert np.ptp([row.notes["gamma"] for row in arrivals if row.notes and row.slot]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasmu", "fedssmu"])
@pytest.mark.parametrize(
    ("after", "settings"),
    [
        (2, {}),
        (2, {"reading": "literal", **MOVING}),
        (1, {"slot": "first"}),
        (3, {"slot": "penultimate"}),
        (3, {"slot_epoch": 3, **MOVING}),
    ],
    ids=str,
)
def test_settings_by_hand(name: str, after: int, settings: dict[str, Any]) -> None:
    check("stack 3", name, after, **settings)


def test_fedssmus_round_ends_with_the_mean_of_its_first_model_and_all_arrivals() -> None:
    _, ends = train("serial", "fedssmu")
    weights = np.array([row.weight for row in rows(ends)]).reshape(ROUNDS, PER_ROUND)
    np.testing.assert_allclose(weights, np.tile([1 / 2, 1 / 3, 1 / 4], (ROUNDS, 1)), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_without_both_parts_it_is_fedasync_with_a_bound_to_the_bit(executor: str) -> None:
    ablated, ends = train(executor, {"name": "fedasmu", "ablation": 0, "staleness_bound": 3})
    plain, others = train(executor, {"name": "fedasync", "mu": 0.0, "staleness_bound": 3})
    assert np.array_equal(ablated, plain)
    assert [end.arrivals.columns for end in ends] == [end.arrivals.columns for end in others]
    assert {row.accepted for row in rows(ends)} == {True, False}


@pytest.mark.slow
def test_each_part_can_be_left_out_alone() -> None:
    whole, still, plain, both = (
        rows(train("serial", {"name": "fedasmu", "ablation": ablation})[1]) for ablation in ("none", "FA", "DA", 0)
    )
    assert all(row.slot is None for row in [*still, *both])
    assert any(row.slot is not None for row in whole)
    assert [row.slot for row in plain] == [row.slot for row in whole]
    assert [row.weight for row in still] == pytest.approx([row.weight for row in whole], abs=1e-4)
    assert [row.weight for row in plain] == [row.weight for row in both]
    assert [row.weight for row in plain] == pytest.approx([0.6 / (row.staleness + 1) ** 0.5 for row in plain])
    up = federation.start().nbytes
    assert {row.bytes_up for row in whole} == {row.bytes_up for row in plain} == {up + 16}
    assert {row.bytes_up for row in still} == {up}
    assert {row.bytes_down for row in whole} == {up, 2 * up}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasmu", "fedssmu"])
def test_learnt_slots_are_the_same_however_clients_train(name: str) -> None:
    algorithm = {"name": name, "slot": "learned", "epsilon": 0.5, "q_lr": 0.5, "meta_lr": 1.0}
    settings: dict[str, Any] = {"rounds": 8, "local": {"epochs": 5}}
    told = {
        executor: train(executor, algorithm, **settings) for executor in ("serial", "stack 3", "processes, stack 2")
    }
    w, ends = told["serial"]
    arrivals = rows(ends)
    slots = {row.slot for row in arrivals} - {None}
    assert slots <= {1, 2, 3, 4}
    assert len(slots) > 2
    for client in range(N):
        own = [row.slot for row in arrivals if row.client == client and row.slot]
        assert all(abs(after - before) <= 1 for before, after in pairwise(own))
    for other, ends in told.values():
        np.testing.assert_allclose(other, w, rtol=0, atol=1e-12)
        assert [row.slot for row in rows(ends)] == [row.slot for row in arrivals]


@pytest.mark.slow
def test_a_proxy_judges_a_merge_by_what_others_have() -> None:
    """With fixed slots, that is for the record alone."""
    local, ends = train("stack 3", "fedasmu")
    proxy, others = train("stack 3", {"name": "fedasmu", "reward": "proxy"})
    alone, serial = train("serial", {"name": "fedasmu", "reward": "proxy"})
    assert np.array_equal(local, proxy)
    np.testing.assert_allclose(alone, proxy, rtol=0, atol=1e-12)
    merged = [row for row in rows(ends) if row.slot]
    for mine, other, third in zip(rows(ends), rows(others), rows(serial), strict=True):
        if mine.slot:
            assert mine.notes
            assert other.notes
            assert mine.notes["loss_before"] != other.notes["loss_before"]
            assert other.notes == pytest.approx(third.notes, rel=1e-9)
    assert len(merged) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "merges"),
    [
        ({"name": "fedasmu", "client": "fedprox"}, False),
        ({"name": "fedasync", "client": "fedasmu"}, True),
        ({"name": "fedbuff", "client": "fedasmu", "buffer_size": 2, "slot": "learned"}, True),
        ({"name": "fedavg", "client": "fedasmu"}, False),  # nothing newer is there before the barrier
    ],
    ids=str,
)
def test_both_rules_go_with_others(algorithm: dict[str, Any], merges: bool) -> None:
    w, ends = train("stack 3", algorithm)
    assert np.isfinite(w).all()
    assert any(row.slot for row in rows(ends)) == merges
