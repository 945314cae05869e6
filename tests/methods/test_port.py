"""PORT against its formulas in numpy, one arrival after the other."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import Experiment, InputError
from fedkeel.methods import ServerState
from fedkeel.methods.port import Weighed, cosine
from tests.helpers import federation
from tests.helpers.arrivals import arrival, job_seconds, layout_of, timeline, vector, view
from tests.helpers.federation import EVERY_EXECUTOR, LR, SIZES, Vector

K = 3


def begin(rule: Weighed, x: Vector) -> ServerState:
    return rule.init(vector(x), layout_of(len(x)), torch.ones(3))


def raw(delta: Vector, models: list[Vector], start: int, bound: float, similarity: float, stale: float) -> float:
    """Of an update that meets the last of all models so far."""
    staleness = len(models) - 1 - start
    cos = 1.0
    if staleness > 1:
        way = models[-1] - models[-3]
        cos = float(delta @ way / np.sqrt(delta @ delta * (way @ way)))
    return similarity * (cos + 1) / 2 + stale * bound / (staleness + bound)


@pytest.mark.parametrize(("similarity", "stale", "bound"), [(1.0, 3.0, 10), (5.0, 0.1, 2), (0.0, 1.0, 4)])
def test_many_arrivals_by_hand(similarity: float, stale: float, bound: int) -> None:
    rng = np.random.default_rng(0)
    rule = Weighed(minimum=K, similarity=similarity, staleness_weight=stale, staleness_bound=bound)
    models = [rng.normal(size=5)]
    state = begin(rule, models[0])
    buffer: list[tuple[float, Vector]] = []
    for number in range(1, 31):
        version = len(models) - 1
        start, samples, w = (
            int(rng.integers(max(0, version - 5), version + 1)),
            int(rng.integers(1, 50)),
            rng.normal(size=5),
        )
        state, receipt = rule.receive(state, arrival(w, models[start], samples), view(version, start))
        delta = w - models[start]
        buffer.append((samples * raw(delta, models, start, bound, similarity, stale), delta))
        if number % K:
            assert (receipt.weight, receipt.published, receipt.earlier) == (None, False, ())
        else:
            weights = np.array([each for each, _ in buffer])
            weights /= weights.sum()
            assert [*receipt.earlier, receipt.weight] == pytest.approx(weights.tolist())
            assert sum([*receipt.earlier, receipt.weight or 0]) == pytest.approx(1)
            assert receipt.published
            models.append(models[-1] + sum(a * d for a, (_, d) in zip(weights, buffer, strict=True)))
            buffer = []
        np.testing.assert_allclose(state.w, models[-1], rtol=0, atol=1e-12)


def after_versions(rule: Weighed, models: list[list[float]]) -> ServerState:
    """The state after one update for each model that follows the first; needs `minimum=1`, whose weights are all 1."""
    state = begin(rule, np.array(models[0]))
    for version, (old, new) in enumerate(pairwise(models)):
        state, _ = rule.receive(state, arrival(new, old), view(version))
    return state


@pytest.mark.parametrize(
    ("delta", "cos"), [([3.0, 0.0], 1.0), ([0.0, 2.0], 0.0), ([-0.1, 0.0], -1.0), ([5.0, 5.0], 0.5**0.5)]
)
def test_the_direction_is_that_of_the_update_against_two_versions(delta: list[float], cos: float) -> None:
    """The weights themselves lie along (1, 1) all the time, and the last version alone went another way."""
    rule = Weighed(minimum=1)
    models = [[100.0, 100.0], [98.0, 101.0], [101.0, 100.0]]
    state = after_versions(rule, models)
    np.testing.assert_array_equal(state.w, models[-1])
    for staleness, expected in ((2, cos), (7, cos), (1, 1.0), (0, 1.0)):
        got = rule.raw(vector(delta), state, staleness)
        assert got == pytest.approx((expected + 1) / 2 + 3 * 10 / (staleness + 10))


def test_without_a_direction_the_cosine_is_zero() -> None:
    assert cosine(vector([0.0, 0.0]), vector([1.0, 2.0])) == cosine(vector([1.0, 2.0]), vector([0.0, 0.0])) == 0
    tiny = torch.tensor([1e-30, 0.0])
    assert cosine(tiny, torch.tensor([1.0, 1.0])) == pytest.approx(0.5**0.5)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=6))
def test_cosines_are_cosines(pairs: list[tuple[float, float]]) -> None:
    x, y = (vector(each) for each in zip(*pairs, strict=True))
    assert -1 <= cosine(x, y) <= 1


def test_who_falls_behind_the_bound_is_told_once() -> None:
    """Clients 4, 5 and 6 started from versions 0, 0 and 2; 5 comes back in between and starts from 3."""
    rule = Weighed(minimum=2, staleness_bound=3)
    state, told = begin(rule, np.zeros(2)), {}
    for number in range(16):
        version = number // 2
        busy = {6: 2, 4: 0, 5: 0 if version < 3 else 3}
        state, receipt = rule.receive(state, arrival([1.0, 0.0], [0.0, 0.0]), view(version, busy=busy))
        assert receipt.published == bool(number % 2)
        told[number] = list(receipt.interrupt)
    assert {number: clients for number, clients in told.items() if clients} == {7: [4], 11: [6], 13: [5]}


def test_all_who_fall_behind_together_are_told_unless_nobody_is() -> None:
    busy = {9: 0, 2: 0, 5: 1}
    for notify, expected in ((True, [2, 9]), (False, [])):
        rule = Weighed(minimum=1, staleness_bound=3, notify=notify)
        _, receipt = rule.receive(begin(rule, np.zeros(2)), arrival([1.0, 0.0], [0.0, 0.0]), view(3, busy=busy))
        assert list(receipt.interrupt) == expected


@pytest.mark.parametrize("rest", ["drop", "flush"])
def test_the_rest_is_dropped_or_flushed(rest: Any) -> None:
    rule, x = Weighed(minimum=K, rest=rest), np.array([1.0, 2.0])
    state = begin(rule, x)
    assert torch.equal(rule.close(state).w, state.w)
    deltas = np.array([[1.0, 0.0], [0.0, 4.0]])
    for samples, delta in zip((1, 3), deltas, strict=True):
        state, _ = rule.receive(state, arrival(x + delta, x, samples), view())
    closed = rule.close(state)
    np.testing.assert_allclose(closed.w, x + np.array([0.25, 3.0]) if rest == "flush" else x)
    assert rule.close(closed) is closed


def test_single_precision_stays_single() -> None:
    rule = Weighed(minimum=1)
    state = rule.init(torch.ones(2), layout_of(2), torch.ones(3))
    update = arrival([1.0, 0.0], [0.0, 0.0], 7)
    single = type(update)(**{**vars(update), "w": update.w.float(), "start": update.start.float()})
    after, _ = rule.receive(state, single, view())
    assert {after.w.dtype, after.memory["sum"].dtype} == {torch.float32}
    np.testing.assert_allclose(after.w, [2.0, 1.0])


def test_what_is_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"minimum": 0}, {"similarity": -1}, {"staleness_weight": 0}, {"staleness_bound": 0}, {"notify": 3}, {"rest": 1}
    ]  # fmt: skip
    for settings in bad:
        (name,) = settings
        with pytest.raises(InputError, match=rf"^algorithm\.{name}\b.*; ."):
            Experiment(algorithm={"name": "port", **settings})
    assert (Weighed.pace, Weighed.pair) == ("concurrency", None)


EPOCHS, BOUND = 5, 2


def whole_run(minimum: int, notify: bool) -> tuple[Vector, list[tuple[int, int, int]], list[float]]:
    """(The model, each arrival's client, staleness and epochs, the weights of those that were aggregated)."""
    models, buffer, told, weights = [federation.start()], [], [], []
    work: dict[int, tuple[float, int, int]] = {}
    ends: dict[int, float] = {}
    for event in timeline(most=4, seconds=lambda client: job_seconds(client, 1, 1), ends=ends):
        version = len(models) - 1
        if event.what == "sent":
            work[event.client] = event.time, version, EPOCHS
            continue
        _, start, epochs = work.pop(event.client)
        w = models[start]
        for batch in federation.batches(event.wave, event.client, epochs):
            w = w - LR * federation.gradient(w, *batch)
        told.append((event.client, version - start, epochs))
        delta = w - models[start]
        buffer.append((SIZES[event.client] * raw(delta, models, start, BOUND, 1.0, 3.0), delta))
        if len(buffer) < minimum:
            continue
        total = sum(each for each, _ in buffer)
        weights += [each / total for each, _ in buffer]
        models.append(models[-1] + sum(each / total * delta for each, delta in buffer))
        buffer = []
        for client, (began, start, epochs) in work.items():
            if notify and len(models) - 1 - start > BOUND and epochs == EPOCHS:
                each = job_seconds(client, 1, 1) / EPOCHS
                done = max(1, int((event.time - began) / each))
                if done < EPOCHS:
                    work[client] = began, start, done
                    ends[client] = max(event.time, began + done * each)
    return models[-1], told, weights


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
@pytest.mark.parametrize("notify", [True, False])
def test_a_run_by_hand(executor: str, notify: bool) -> None:
    """Devices that are told send the epochs that they have finished."""
    settings = {"name": "port", "minimum": 2, "staleness_bound": BOUND, "notify": notify}
    more: dict[str, Any] = {"schedule": {"concurrency": 4}, "local": {"epochs": EPOCHS}}
    result, ends = federation.train(settings, executor, **more)
    x, told, weights = whole_run(2, notify)
    arrivals = [each for end in ends for each in end.arrivals]
    assert [(each.client, each.staleness, each.epochs) for each in arrivals] == told
    assert max(staleness for _, staleness, _ in told) > 1
    assert any(epochs < EPOCHS for *_, epochs in told) == notify
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    known = [(each.weight, weight) for each, weight in zip(arrivals, weights, strict=True) if each.weight is not None]
    assert len(known) >= len(arrivals) // 2
    np.testing.assert_allclose(*zip(*known, strict=True), rtol=1e-9)
