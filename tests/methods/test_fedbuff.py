"""FedBuff against its formulas in numpy, one arrival after the other."""

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, InputError, RoundEnd
from fedkeel.methods import ServerState
from fedkeel.methods.fedbuff import Buffered
from tests.helpers import federation
from tests.helpers.arrivals import arrival, layout_of, timeline, vector, view
from tests.helpers.federation import EVERY_EXECUTOR, LR, Vector

K = 4


def begin(rule: Buffered, x: Vector) -> ServerState:
    return rule.init(vector(x), layout_of(len(x)), torch.ones(3))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("server_lr", [1.0, 0.3])
def test_many_arrivals_by_hand(exponent: float, server_lr: float) -> None:
    """Each difference is from the model that the job started from, and K divides once."""
    rng = np.random.default_rng(0)
    rule = Buffered(buffer_size=K, exponent=exponent, server_lr=server_lr)
    x, version, gathered = rng.normal(size=5), 0, np.zeros(5)
    models = [x]
    state = begin(rule, x)
    for number in range(1, 41):
        start = int(rng.integers(max(0, version - 5), version + 1))
        w = rng.normal(size=5)
        state, receipt = rule.receive(state, arrival(w, models[start]), view(version, start))
        factor = (1 + version - start) ** -exponent
        gathered = gathered + factor * (w - models[start])
        assert receipt.weight == pytest.approx(server_lr * factor / K)
        assert receipt.accepted
        assert receipt.published == (number % K == 0)
        if number % K == 0:
            x, gathered, version = x + server_lr * gathered / K, np.zeros(5), version + 1
            models.append(x)
        np.testing.assert_allclose(state.w, x, rtol=0, atol=1e-12)


def test_between_two_steps_the_model_is_the_same_tensor() -> None:
    rule = Buffered(buffer_size=2)
    state = begin(rule, np.ones(3))
    after, _ = rule.receive(state, arrival([9.0, 9.0, 9.0], [1.0, 1.0, 1.0]), view())
    assert after.w is state.w


def test_an_update_that_did_not_move_leaves_the_model_alone_however_far_that_has_gone() -> None:
    """The difference from the current model would pull it back to where the job started."""
    rule = Buffered(buffer_size=1)
    after, _ = rule.receive(begin(rule, np.full(3, 7.0)), arrival([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]), view(9, 2))
    np.testing.assert_array_equal(after.w, np.full(3, 7.0))


@pytest.mark.parametrize("rest", ["drop", "flush"])
@pytest.mark.parametrize("arrivals", [0, 1, 3, K, K + 2])
def test_the_rest_is_dropped_or_flushed(rest: Any, arrivals: int) -> None:
    rng = np.random.default_rng(arrivals)
    rule, x = Buffered(buffer_size=K, rest=rest, server_lr=0.5), rng.normal(size=3)
    state, waiting = begin(rule, x), []
    for _ in range(arrivals):
        delta = rng.normal(size=3)
        waiting.append(delta)
        state, _ = rule.receive(state, arrival(x + delta, x), view())
        if len(waiting) == K:
            x, waiting = x + 0.5 * np.mean(waiting, axis=0), []
    if rest == "flush" and waiting:
        x = x + 0.5 * np.mean(waiting, axis=0)
    closed = rule.close(state)
    np.testing.assert_allclose(closed.w, x, rtol=0, atol=1e-12)
    assert rule.close(closed) is closed


def test_nothing_that_was_given_is_changed_in_place() -> None:
    rule = Buffered(buffer_size=2)
    state = begin(rule, np.ones(2))
    first, _ = rule.receive(state, arrival([2.0, 3.0], [1.0, 1.0]), view())
    kept = {name: tensor.clone() for name, tensor in first.memory.items()}
    for _ in range(2):
        after, _ = rule.receive(first, arrival([2.0, 3.0], [1.0, 1.0]), view())
        np.testing.assert_array_equal(after.w, [2.0, 3.0])
    assert all(torch.equal(first.memory[name], tensor) for name, tensor in kept.items())
    assert not int(state.memory["count"])


def test_what_is_refused() -> None:
    bad: list[dict[str, Any]] = [{"buffer_size": 0}, {"server_lr": 0}, {"exponent": -1}, {"rest": "keep"}]
    for settings in bad:
        (name,) = settings
        with pytest.raises(InputError, match=rf"^algorithm\.{name}\b.*; ."):
            Experiment(algorithm={"name": "fedbuff", **settings})
    assert Buffered().buffer_size == 10
    assert (Buffered.pace, Buffered.pair) == ("concurrency", None)


def by_hand(rest: str, size: int, server_lr: float = 1.0, exponent: float = 0.5) -> tuple[Vector, list[int]]:
    """(The model, each arrival's staleness)."""
    x, version = federation.start(), 0
    jobs: dict[int, tuple[int, Vector]] = {}
    gathered: list[Vector] = []
    told = []
    for event in timeline(most=4):
        if event.what == "sent":
            jobs[event.client] = version, x
            continue
        began, start = jobs[event.client]
        w = start
        for batch in federation.batches(event.wave, event.client):
            w = w - LR * federation.gradient(w, *batch)
        told.append(version - began)
        gathered.append((1 + version - began) ** -exponent * (w - start))
        if len(gathered) == size:
            x, version, gathered = x + server_lr * np.sum(gathered, axis=0) / size, version + 1, []
    if rest == "flush" and gathered:
        x = x + server_lr * np.mean(gathered, axis=0)
    return x, told


def train(executor: str = "serial", **settings: Any) -> tuple[Vector, list[RoundEnd]]:
    result, ends = federation.train({"name": "fedbuff", **settings}, executor, schedule={"concurrency": 4})
    return federation.weights(result), ends


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_a_run_by_hand(executor: str) -> None:
    w, ends = train(executor, buffer_size=3, server_lr=0.8, exponent=0.9)
    x, told = by_hand("drop", 3, 0.8, 0.9)
    assert len(set(told)) > 2
    assert [each.staleness for end in ends for each in end.arrivals] == told
    np.testing.assert_allclose(w, x, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 12, 50])
def test_the_rest_of_a_run_by_hand(size: int) -> None:
    """Twelve updates leave a rest of two, none, or never fill the buffer."""
    dropped, flushed = (train(buffer_size=size, rest=rest)[0] for rest in ("drop", "flush"))
    np.testing.assert_allclose(dropped, by_hand("drop", size)[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(flushed, by_hand("flush", size)[0], rtol=0, atol=1e-12)
    assert np.array_equal(dropped, flushed) == (size == 12)
    assert np.array_equal(dropped, federation.start()) == (size == 50)


def test_the_tested_versions_are_those_of_full_buffers() -> None:
    versions = {
        rest: federation.train({"name": "fedbuff", "buffer_size": 5, "rest": rest}, schedule={"concurrency": 4})[
            0
        ].history
        for rest in ("drop", "flush")
    }
    assert [row.version for row in versions["drop"]] == [0, 1, 1, 2]
    assert [row.version for row in versions["flush"]] == [0, 1, 1, 3]
