"""FedSSMU: FedASMU's mixing and merges, counted in rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel.methods.fedssmu import RoundMerge, StreamedMixing
from tests.helpers import arrivals
from tests.helpers.fedasmu import LAYOUT, RATES, Bowls, D, Server, fresh_model, job, upload
from tests.helpers.federation import N


def test_a_round_ends_with_the_plain_mean() -> None:
    rng = np.random.default_rng(0)
    rule = StreamedMixing(lambda_lr=0.0, sigma_lr=0.0, iota_lr=0.0)
    start = rng.normal(size=D)
    state, came = rule.init(arrivals.vector(start), LAYOUT, torch.ones(N)), [start]
    for k in range(10):
        w = rng.normal(size=D)
        update = arrivals.arrival(w, start, layout=LAYOUT)
        state, receipt = rule.receive(state, update, arrivals.view(30 + k, 30, client=k % N, round=4, busy={0: 30}))
        came.append(w)
        assert receipt.weight == pytest.approx(1 / (k + 2))
        np.testing.assert_allclose(state.w, np.mean(came, axis=0), rtol=1e-12)


def test_the_printed_weights_let_the_last_arrival_win() -> None:
    rule = StreamedMixing(reading="literal")
    state = rule.init(torch.zeros(D, dtype=torch.float64), LAYOUT, torch.ones(N))
    update, weights = arrivals.arrival(np.ones(D), np.zeros(D), layout=LAYOUT), []
    for k in range(3):
        state, receipt = rule.receive(state, update, arrivals.view(k, 0, round=1, busy={0: 0}))
        xi = 5 / (k + 1) ** 0.5 + 0.05
        assert receipt.weight == pytest.approx(xi / (1 + xi))
        weights.append(receipt.weight)
    assert weights[2] > weights[0] * (1 - weights[1]) * (1 - weights[2])
    _, receipt = rule.receive(state, update, arrivals.view(3, 3, round=9))
    assert receipt.weight == pytest.approx((5 / 3 + 0.05) / (1 + 5 / 3 + 0.05), abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "control"),
    [
        ({}, (1.0, 1.0, 0.0)),
        ({"reading": "literal"}, (5.0, 0.5, 0.05)),
        ({"lambda_": 2.0, "iota": 0.1}, (2.0, 1.0, 0.1)),
        ({"reading": "literal", "sigma": 0.0}, (5.0, 0.0, 0.05)),
    ],
)
def test_each_reading_has_its_own_defaults(settings: dict[str, Any], control: tuple[float, ...]) -> None:
    assert StreamedMixing(**settings).control == control


@pytest.mark.parametrize("reading", ["practical", "literal"])
def test_rounds_by_hand(reading: Any) -> None:
    """The control parameters learn from the last mixing of the round before, which made the model all start from."""
    rng = np.random.default_rng(2)
    rule = StreamedMixing(reading=reading, mu_a=0.9, **RATES)
    w = rng.normal(size=D)
    state, server = rule.init(arrivals.vector(w), LAYOUT, torch.ones(N)), Server(w, rule)
    seen = []
    for version in range(24):
        start, round = version - version % 4, 1 + version // 4
        update, g = upload(rng, server.models[start + 1], None)
        if reading == "literal":
            g = (update.w[0] - update.start[0]).numpy() / (0.05 * 4)
        client = version % N
        waiting = {20 + place: start for place in range(3 - version % 4)}
        state, receipt = rule.receive(state, update, arrivals.view(version, start, client, round=round, busy=waiting))
        alpha = server.receive(client, start + 1, update.w[0].numpy(), g, float(round) if reading == "literal" else 1.0)
        assert receipt.weight == pytest.approx(alpha, rel=1e-9)
        np.testing.assert_allclose(state.w, server.models[version + 2], rtol=0, atol=1e-10)
        assert len(state.log) <= 2
        seen.append(server.control[client].copy())
    assert np.ptp(seen, axis=0).min() > 0.01


def test_a_merge_counts_in_rounds() -> None:
    rule, w = RoundMerge(), torch.zeros(2, D, dtype=torch.float64)
    kept = {name: torch.stack([tensor] * 2) for name, tensor in rule.initial(w[0], w[0, :0]).items()}
    told = {
        "round": torch.tensor([[1], [9]]),
        "version": torch.tensor([[0], [80]]),
        "fresh": fresh_model(torch.ones_like(w), torch.tensor([[3], [81]])),
    }
    oracle: Any = Bowls(np.zeros((2, D)), np.ones((2, D)))
    merge = rule.refresh(rule.begin(job(w, kept, **told), oracle), w, oracle)
    phi = np.array([3 * (1 - 0.1 / 2), 3 / 3 * (1 - 0.1 / 2**0.5)])
    np.testing.assert_allclose(merge.share[:, 0], phi / (1 + phi), rtol=1e-12)
