"""ASO-Fed against its steps and arrivals written out in numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, InputError
from fedkeel.methods import Job, Oracle, ServerState
from fedkeel.methods.asofed import Accumulated, Followed, widened
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.arrivals import arrival, layout_of, make_job, timeline, vector, view
from tests.helpers.federation import EVERY_EXECUTOR, LR, SIZES, Vector

D = 4
CURVATURE, CENTRE = np.array([0.5, 1.0, 2.0, 3.0]), np.array([1.0, -2.0, 0.0, 4.0])


class Bowl(Oracle):
    """The gradient of sum_j curvature_j (w_j - centre_j)^2 / 2, shifted in every mini-batch by other noise."""

    def __init__(self, noise: Vector) -> None:
        self.noise = iter(noise)

    def grad(self, w: Tensor, at: Tensor | None = None) -> Tensor:
        return vector(CURVATURE) * (w - vector(CENTRE)) + vector(next(self.noise))


def train(rule: Followed, job: Job, noise: Vector, lr: float) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A job of as many steps as there is noise: (the weights, what is kept)."""
    oracle, w = Bowl(noise), job.start
    job = rule.begin(job, oracle)
    for _ in noise:
        direction, job = rule.advance(job, w, oracle)
        w = w - lr * direction
    messages, kept = rule.end(job, w, oracle)
    assert not messages
    return (w, kept) if len(w) > 1 else (w[0], {name: each[0] for name, each in kept.items()})


def by_hand(
    w: Vector, s: Vector, h: Vector, noise: Vector, lr: float, lam: float, beta: float, late: bool, r: float = 1.0
) -> tuple[Vector, Vector, Vector]:
    start = w
    for shift in noise:
        new = CURVATURE * (w - CENTRE) + shift + lam * (w - start)
        if not late:
            h = beta * h + (1 - beta) * s
        w = w - lr * r * (new - s + h)
        if late:
            h = beta * h + (1 - beta) * s
        s = new
    return w, s, h


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.001, 0.5])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_three_jobs_by_hand_and_the_past_lasts(late: bool, beta: float, lam: float) -> None:
    rng = np.random.default_rng(0)
    rule = Followed(lam=lam, h_decay=beta, late=late)
    kept = rule.initial(torch.zeros(D, dtype=torch.float64), torch.zeros(0))
    s = h = np.zeros(D)
    for seconds, r in ((0.0, 1.0), (2.0, 1.0), (50.0, np.log(50))):
        start, noise = rng.normal(size=D), rng.normal(size=(6, D))
        got, kept = train(rule, make_job(vector(start), kept, {"delay": vector([seconds])}), noise, 0.05)
        w, s, h = by_hand(start, s, h, noise, 0.05, lam, beta, late, r)
        np.testing.assert_allclose(got, w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(kept["s"], s, rtol=0, atol=1e-12)
        np.testing.assert_allclose(kept["h"], h, rtol=0, atol=1e-12)
        assert np.abs(s).min() > 0


def test_a_stack_trains_as_its_clients_do() -> None:
    rng = np.random.default_rng(1)
    rule, noise = Followed(h_decay=0.3), rng.normal(size=(5, D))
    starts, past = rng.normal(size=(3, D)), rng.normal(size=(2, 3, D))
    delays = vector([0.5, 20.0, 1e4])[:, None]
    kept = {"s": vector(past[0]), "h": vector(past[1])}
    stacked, after = train(rule, make_job(vector(starts), kept, {"delay": delays}), noise, 0.05)
    for row in range(3):
        own = {name: tensor[row] for name, tensor in kept.items()}
        w, last = train(rule, make_job(vector(starts[row]), own, {"delay": delays[row]}), noise, 0.05)
        np.testing.assert_allclose(stacked[row], w, rtol=0, atol=1e-12)
        assert {name: tensor.shape for name, tensor in after.items()} == {"s": (3, D), "h": (3, D)}
        np.testing.assert_allclose(after["h"][row], last["h"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(kept["s"], past[0])


def test_the_proximal_term_changes_the_gradient() -> None:
    """Far away from where the job started, by lam times the way; at the start not at all."""
    start = torch.zeros(D, dtype=torch.float64)
    away = vector([1.0, 2.0, 3.0, 4.0])
    for lam in (0.0, 0.7):
        rule = Followed(lam=lam)
        assert rule.pull == lam
        job = rule.begin(make_job(start, rule.initial(start, start[:0])), Bowl(np.zeros((1, D))))
        direction, _ = rule.advance(job, away[None], Bowl(np.zeros((1, D))))
        np.testing.assert_allclose(direction[0], CURVATURE * (away.numpy() - CENTRE) + lam * away.numpy(), rtol=1e-12)


def test_with_no_decay_the_direction_is_the_gradient_itself() -> None:
    """h is then the previous gradient."""
    noise, start = np.random.default_rng(2).normal(size=(8, D)), np.ones(D)
    rule = Followed(lam=0.0, h_decay=0.0)
    got, _ = train(rule, make_job(vector(start), rule.initial(vector(start), vector([]))), noise, 0.1)
    w = start
    for shift in noise:
        w = w - 0.1 * (CURVATURE * (w - CENTRE) + shift)
    np.testing.assert_allclose(got, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("late", "limit"), [(False, 2.0), (True, 2 / 3)])
def test_where_it_becomes_unstable(late: bool, limit: float) -> None:
    """Learning rate times the largest curvature, 3; plain SGD's limit is 2."""
    for share, grows in ((0.97, False), (1.03, True)):
        rule, start = Followed(lam=0.0, late=late), vector(CENTRE + 1)
        job = make_job(start, rule.initial(start, start[:0]))
        got, _ = train(rule, job, np.zeros((800, D)), share * limit / 3)
        assert (float(abs(got - vector(CENTRE)).max()) > 10) == grows


def test_the_factor_is_the_logarithm_of_the_mean_delay_and_at_least_one() -> None:
    delays = [0.0, 1e-9, 1.0, np.e, 10.0, 1e6]
    np.testing.assert_allclose(widened(vector(delays)), [1, 1, 1, 1, np.log(10), np.log(1e6)], rtol=1e-15)


@pytest.mark.parametrize("received", [{}, {"delay": vector([1000.0])}], ids=["another server", "told"])
def test_slow_clients_step_wider_only_if_wanted_and_told(received: dict[str, Tensor]) -> None:
    start, noise = torch.zeros(D, dtype=torch.float64), np.zeros((1, D))
    moved = {}
    for dynamic in (True, False):
        rule = Followed(dynamic_rate=dynamic)
        moved[dynamic], _ = train(rule, make_job(start, rule.initial(start, start[:0]), received), noise, 0.01)
    np.testing.assert_allclose(moved[False], 0.01 * CURVATURE * CENTRE)
    np.testing.assert_allclose(moved[True], moved[False] * (np.log(1000.0) if received else 1.0))


def begin(rule: Accumulated, x: Vector, samples: list[int]) -> ServerState:
    return rule.init(vector(x), layout_of(len(x)), torch.tensor(samples))


@pytest.mark.parametrize("server_lr", [1.0, 20.0])
def test_many_arrivals_by_hand(server_lr: float) -> None:
    """The share is that in the samples of all clients, those without data and those at home included."""
    rng = np.random.default_rng(0)
    sizes, x = [30, 0, 12, 58], rng.normal(size=3)
    rule = Accumulated(server_lr=server_lr)
    state = begin(rule, x, sizes)
    delays: dict[int, list[float]] = {client: [] for client in range(4)}
    for version in range(30):
        client, seconds = [0, 2, 3][rng.integers(3)], float(rng.uniform(1, 100))
        start, w = rng.normal(size=(2, 3))
        given = view(version, max(0, version - 4), client, seconds=seconds)
        state, receipt = rule.receive(state, arrival(w, start, sizes[client]), given)
        x = x + server_lr * sizes[client] / 100 * (w - start)
        delays[client].append(seconds)
        assert receipt.weight == pytest.approx(server_lr * sizes[client] / 100)
        assert (receipt.published, receipt.accepted) == (True, True)
        np.testing.assert_allclose(state.w, x, rtol=1e-12)
        for who, all_ in delays.items():
            sent = rule.send(state, who)
            assert {name: tensor.shape for name, tensor in sent.items()} == {"delay": (1,)}
            assert float(sent["delay"]) == pytest.approx(np.mean(all_) if all_ else 0.0)
    assert Accumulated(dynamic_rate=False).send(state, 0) == {}


def test_what_is_sent_has_the_type_of_the_weights() -> None:
    state = Accumulated().init(torch.zeros(2), layout_of(2), torch.ones(3))
    assert Accumulated().send(state, 1)["delay"].dtype == torch.float32


@pytest.mark.parametrize("feature", [False, True])
def test_the_step_on_the_first_layer(feature: bool) -> None:
    """w_ij <- w_ij exp|w_ij| / sum_j exp|w_ij| after the update; the bias and later layers stay."""
    layout = Layout.of(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2)))
    rng = np.random.default_rng(0)
    x, delta = rng.normal(size=(2, layout.size))
    rule = Accumulated(feature=feature)
    state = rule.init(vector(x), layout, torch.tensor([1, 3]))
    after, _ = rule.receive(state, arrival(delta, np.zeros_like(x), 1, layout=layout), view())
    expected = x + delta / 4
    if feature:
        first = expected[:24].reshape(3, 8)
        first = first * np.exp(abs(first)) / np.exp(abs(first)).sum(axis=1, keepdims=True)
        expected = np.concatenate([first.flatten(), expected[24:]])
    np.testing.assert_allclose(after.w, expected, rtol=1e-12)
    np.testing.assert_array_equal(state.w, x)


def test_what_is_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"lam": -1},
        {"h_decay": 1},
        {"server_lr": 0},
        {"feature": 2},
        {"dynamic_rate": "maybe"},
    ]
    for settings in bad:
        (name,) = settings
        with pytest.raises(InputError, match=rf"^algorithm\.{name}\b.*; ."):
            Experiment(algorithm={"name": "asofed", **settings})
    assert (Followed.pair, Accumulated.pair, Accumulated.pace) == (None, None, "periodic")


def whole_run(lam: float, beta: float, server_lr: float) -> tuple[Vector, list[float]]:
    """(The model, the factor r of each arrival), with clients that remember their past and their delays."""
    x = federation.start()
    zero = np.zeros_like(x)
    past: dict[int, tuple[Vector, Vector]] = {}
    delays: dict[int, list[float]] = {}
    jobs: dict[int, tuple[float, Vector, float]] = {}
    factors = []
    for event in timeline(most=4, every=4.0):
        client = event.client
        if event.what == "sent":
            mean = np.mean(delays[client]) if client in delays else 1.0
            jobs[client] = event.time, x, max(1.0, np.log(mean))
            continue
        began, start, r = jobs[client]
        w, (s, h) = start, past.get(client, (zero, zero))
        for batch in federation.batches(event.wave, client):
            new, h = federation.gradient(w, *batch) + lam * (w - start), beta * h + (1 - beta) * s
            w, s = w - LR * r * (new - s + h), new
        past[client] = s, h
        delays.setdefault(client, []).append(event.time - began)
        factors.append(r)
        x = x + server_lr * SIZES[client] / sum(SIZES) * (w - start)
    return x, factors


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_a_run_by_hand(executor: str) -> None:
    """Every client is back several times, the slow ones after more than e seconds."""
    settings = {"name": "asofed", "lam": 0.7, "h_decay": 0.3, "server_lr": 2.0}
    schedule = {"trigger_seconds": 4.0, "busy_share": 0.7}
    result, ends = federation.train(settings, executor, schedule=schedule)
    x, factors = whole_run(0.7, 0.3, 2.0)
    assert max(factors) > 1.5
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)
    for each in (each for end in ends for each in end.arrivals):
        assert each.weight == pytest.approx(2 * SIZES[each.client] / sum(SIZES))
        assert each.bytes_down == each.bytes_up + 8


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_its_clients_go_with_other_servers_and_its_server_with_other_clients(executor: str) -> None:
    plain, theirs, ours = (
        federation.weights(federation.train({"name": "asofed", **halves}, executor)[0])
        for halves in ({}, {"client": "fedprox", "mu": 1.0}, {"server": "fedavg"})
    )
    assert np.isfinite([plain, theirs, ours]).all()
    assert min(np.abs(plain - theirs).max(), np.abs(plain - ours).max()) > 1e-4


def test_nothing_more_travels_where_rates_are_all_the_same() -> None:
    _, ends = federation.train({"name": "asofed", "dynamic_rate": False})
    assert all(each.bytes_down == each.bytes_up for end in ends for each in end.arrivals)
