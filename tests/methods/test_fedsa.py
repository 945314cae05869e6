"""FedSA's two stages, and its mixing in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, InputError
from fedkeel.methods.fedsa import TwoStages
from fedkeel.methods.server import Progress
from tests.helpers import federation
from tests.helpers.arrivals import arrival, job_seconds, layout_of, timeline, vector, view
from tests.helpers.federation import EPOCHS, EVERY_EXECUTOR, LR, PER_ROUND, ROUNDS, Vector


def asked(rule: TwoStages, version: int, planned: int = 100, per_round: int = 10) -> tuple[int, float]:
    return rule.work(5, 0.1, Progress(version, version, planned, per_round))


def test_one_epoch_at_first_then_all_at_rates_that_fall() -> None:
    rule = TwoStages()
    assert [asked(rule, version) for version in (0, 1, 19)] == [(1, 0.1)] * 3
    assert asked(rule, 20) == (5, 0.1)
    for version in (21, 30, 99):
        epochs, lr = asked(rule, version)
        assert epochs == 5
        assert lr == pytest.approx(0.1 / (1 + 0.1 * (version - 20) / 10))
    assert asked(rule, 30)[1] == pytest.approx(0.1 / 1.1)


def test_the_stages_grow_with_the_run_and_the_rate_falls_with_rounds() -> None:
    """A second stage may begin between two versions."""
    rule = TwoStages(stage1=0.25, decay=0.4)
    assert asked(rule, 12, 50) == (1, 0.1)
    assert asked(rule, 13, 50) == (5, pytest.approx(0.1 / (1 + 0.4 * 0.5 / 10)))
    assert asked(rule, 22, 50, per_round=19)[1] == pytest.approx(0.1 / 1.2)


@pytest.mark.parametrize(("stage1", "expected"), [(0.0, 5), (1.0, 1)])
def test_one_stage_alone(stage1: float, expected: int) -> None:
    got = [asked(TwoStages(stage1=stage1, decay=0.0), version) for version in (0, 50, 99)]
    assert got == [(expected, 0.1)] * 3


def test_many_arrivals_by_hand() -> None:
    rng = np.random.default_rng(0)
    rule, x = TwoStages(alpha=0.8, a=0.7), rng.normal(size=5)
    state = rule.init(vector(x), layout_of(5), torch.ones(3))
    for version in range(100):
        staleness, w = int(rng.integers(0, min(version, 8) + 1)), rng.normal(size=5)
        state, receipt = rule.receive(state, arrival(w, rng.normal(size=5)), view(version, version - staleness))
        alpha = 0.8 * (1 + staleness) ** -0.7
        x = x + alpha * (w - x)
        assert receipt.weight == pytest.approx(alpha)
        assert receipt.published
        np.testing.assert_allclose(state.w, x, rtol=0, atol=1e-12)


def test_what_is_refused() -> None:
    bad: list[dict[str, Any]] = [{"stage1": 1.1}, {"stage1": -0.1}, {"decay": -1}, {"alpha": 0}, {"a": -1}]
    for settings in bad:
        (name,) = settings
        with pytest.raises(InputError, match=rf"^algorithm\.{name}\b.*; ."):
            Experiment(algorithm={"name": "fedsa", **settings})
    assert (TwoStages.pair, TwoStages.pace) == (None, "periodic")
    assert TwoStages().model_dump() == {"alpha": 0.6, "stage1": 0.2, "decay": 0.1, "a": 0.5}


def whole_run(stage1: float, decay: float) -> tuple[Vector, list[tuple[int, int, float]]]:
    """(The model, each arrival's client, epochs and learning rate); a job of one epoch is back earlier."""
    x, version = federation.start(), 0
    jobs: dict[int, tuple[int, Vector, int, float]] = {}
    told = []
    for event in timeline(most=4, every=4.0, seconds=lambda client: job_seconds(client, jobs[client][2])):
        if event.what == "sent":
            since = version - stage1 * ROUNDS * PER_ROUND
            work = (1, LR) if since < 0 else (EPOCHS, LR / (1 + decay * since / PER_ROUND))
            jobs[event.client] = version, x, *work
            continue
        began, w, epochs, lr = jobs[event.client]
        for batch in federation.batches(event.wave, event.client, epochs):
            w = w - lr * federation.gradient(w, *batch)
        told.append((event.client, epochs, lr))
        alpha = 0.6 * (1 + version - began) ** -0.5
        x, version = x + alpha * (w - x), version + 1
    return x, told


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_a_run_by_hand(executor: str) -> None:
    settings = {"name": "fedsa", "stage1": 0.3, "decay": 2.0}
    result, ends = federation.train(settings, executor, schedule={"trigger_seconds": 4.0, "busy_share": 0.7})
    x, told = whole_run(0.3, 2.0)
    assert len({(epochs, lr) for _, epochs, lr in told}) > 3
    arrivals = [each for end in ends for each in end.arrivals]
    assert [(each.client, each.epochs) for each in arrivals] == [each[:2] for each in told]
    for each, (_, epochs, lr) in zip(arrivals, told, strict=True):
        assert each.learning_rates == pytest.approx([lr] * epochs)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
