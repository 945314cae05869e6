"""FedLGA against Algorithm 2 with the outer product really formed, and its rounds written out in numpy."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkeel import Experiment, RoundEnd, run
from fedkeel.errors import DivergenceError
from fedkeel.methods import ServerState, Updates
from fedkeel.methods.fedlga import Completion, GradientApproximation, completion_factor
from fedkeel.params import Layout
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.federation import BATCH, EVERY_EXECUTOR, LR, SIZES, Vector

READINGS: list[Completion] = ["practical", "literal", "own-path"]
"""Those that need nothing but one update and its round's mean."""
EPOCHS, PER_ROUND, ROUNDS = 5, 4, 4
SOME, NOBODY = {"rho": 0.5}, {"rho": 1.0}
"""Who finishes."""
RUNAWAY = [
    "model=mlp-400", "clients=20", "per_round=5", "rounds=10", "dataset.train_limit=1000", "dataset.test_limit=100",
    "partition=classes", "partition.classes=2", "local.epochs=5", "local.batch_size=10", "local.lr=0.003",
    "fleet.rho=0.5", "executor.kind=serial", "algorithm=fedlga",
]  # fmt: skip


def approximate_update(
    delta: Tensor,
    mean_full_delta: Tensor,
    epochs_done: int,
    epochs: int,
    lr: float,
    steps_per_epoch: int,
    reading: Completion = "practical",
) -> Tensor:
    """[D], what `epochs` would have made of an update `delta` [D] after `epochs_done` of them.

    `mean_full_delta` [D] is the mean update of those who finished.
    """
    wide, full = delta.double(), mean_full_delta.double()
    numbers = lr * steps_per_epoch * epochs_done, epochs - epochs_done, epochs_done
    length, missing, done = (torch.tensor(float(number), dtype=torch.float64) for number in numbers)
    factor = completion_factor(wide @ full, wide @ wide, length, missing, done, reading)
    return (factor * wide).to(delta)


@pytest.fixture(autouse=True)
def _steep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger gradients than the federation has, so that some completions are cut and others are not."""
    clients = federation.clients()
    monkeypatch.setattr(federation, "clients", lambda: [(4 * x, y) for x, y in clients])


def expansion(
    delta: Vector, full: Vector, done: int, asked: int, length: float, reading: Completion, rest: float | None = None
) -> Vector:
    """Delta + g g^T (w_hat - w_i), or Delta - g |<g, w_hat - w_i>| with the added part cut to its largest norm.

    Or many small steps further on, each by a gradient that the one before has changed by g g^T, until that turns back;
    `rest` is how long they are together, if not by the epochs.
    """
    g, away = -delta / length, full - delta
    if reading == "own-path":
        pieces, rest = 1000, (asked - done) / done * length if rest is None else rest
        way = (np.arange(pieces) + 0.5) / pieces * rest  # in the middle of each step
        slopes = np.array([g + np.outer(g, g) @ (-s * g) for s in way])
        added = -slopes.sum(0) * rest / pieces
        return delta + added if added @ delta > 0 else delta
    if reading == "literal":
        return delta + np.outer(g, g) @ away
    added = -g * abs(g @ away)
    most, norm = (asked - done) * np.linalg.norm(delta) / done, np.linalg.norm(added)
    return delta + added * (most / norm if norm > most else 1.0)


def way(lr: float, steps: int, momentum: float = 0.0, mu: float = 0.0) -> float:
    """How far PyTorch's SGD leads downhill at a slope of one, with a pull mu back to where it began."""
    at = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - mu * at
        at += lr * velocity
    return at


class Fitted:
    """The law of growth with the kappa of all rounds so far, from the updates themselves."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Vector, Vector, Vector, Vector, Vector]] = []
        """Norms, paths, how much longer these should be, losses, and who is late."""

    def factors(self, *told: Vector) -> Vector:
        self.rounds.append(told)  # type: ignore[arg-type]
        kappa = np.exp(min(np.linspace(-2, 2, 81), key=self._cost))
        return np.where(told[-1], grown(kappa, *told[:-1]), 1.0)

    def _cost(self, log_kappa: float) -> float:
        gap = weight = squares = freedom = 0.0
        for norms, paths, stretches, losses, late in self.rounds:
            if late.any() and not late.all():
                logs, longer = np.log(norms), np.log(grown(np.exp(log_kappa), norms, paths, stretches, losses))
                middle = logs[~late].mean()
                precision = 1 / (1 / late.sum() + 1 / (~late).sum())  # of the difference of two means
                gap = 0.9 * gap + precision * (logs + longer - middle)[late].mean()
                squares = 0.9 * squares + ((logs[~late] - middle) ** 2).sum()
                weight, freedom = 0.9 * weight + precision, 0.9 * freedom + (~late).sum() - 1
        variance = (squares + 2 * 0.1**2) / (freedom + 2)
        return float(gap**2 / max(weight, 0.5) / variance + (log_kappa / 0.7) ** 2)


def grown(kappa: float, norms: Vector, paths: Vector, stretches: Vector, losses: Vector) -> Vector:
    own = (np.exp(kappa * norms**2 / paths / (np.exp(losses) - 1)) - 1) / paths
    x = paths * np.sqrt(own * np.exp(np.median(np.log(own))))
    return np.asarray(np.log(1 + x * stretches) / np.log(1 + x))


def mean_loss(w: Vector, x: Vector, y: Any) -> float:
    logits = x @ w.reshape(federation.CLASSES, federation.FEATURES).T
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))


class ByHand(NamedTuple):
    """What rounds come to."""

    model: Vector
    factors: list[list[float]]
    """Of each round's stragglers."""
    errors: list[dict[str, list[float]]]
    """Of their updates: against what all epochs would have made of them."""


def distance(delta: Vector, whole: Vector) -> float:
    return float(np.linalg.norm(delta - whole) / np.linalg.norm(whole))


def by_hand(
    ends: list[RoundEnd],
    reading: Completion = "fitted",
    server_lr: float = 1.0,
    weighting: str = "uniform",
    lr_decay: float = 1.0,
    momentum: float = 0.0,
    mu: float = 0.0,
    seen_mu: float | None = None,
    steps: int | None = None,
) -> ByHand:
    """Who does how many epochs is read from the arrivals; with `steps`, which must be as many, these are mini-batches.

    `seen_mu` is the pull that the server reckons with, if not the true one.
    """
    x, told, wrong, fit = federation.start(), [], [], Fitted()
    for end in ends:
        lr = LR * lr_decay ** (end.round - 1)
        deltas, wholes, lengths, rests, losses = [], [], [], [], []
        done: list[int] = [*end.arrivals.columns["epochs"]]
        clients: list[int] = [*end.arrivals.columns["client"]]
        for client, epochs in zip(clients, done, strict=True):
            w, v, path, seen = x.copy(), np.zeros_like(x), [x], []
            each = 1 if steps else -(-SIZES[client] // BATCH)
            for batch in [*federation.batches(end.round, client, EPOCHS)][: EPOCHS * each]:
                seen.append((mean_loss(w, *batch), len(batch[1])))
                v = momentum * v + federation.gradient(w, *batch) + mu * (w - x)
                w = w - lr * v
                path.append(w)
            made = epochs * each
            deltas.append(path[made] - x)
            wholes.append(path[-1] - x)
            pull = mu if seen_mu is None else seen_mu
            lengths.append(way(lr, made, momentum, pull))
            rests.append(way(lr, len(path) - 1, momentum, pull) - lengths[-1])
            losses.append(np.average([loss for loss, _ in seen[:made]], weights=[size for _, size in seen[:made]]))
        p = np.array([SIZES[client] if weighting == "samples" else 1 for client in clients], dtype=float)
        finished = [row for row, epochs in enumerate(done) if epochs == EPOCHS]
        stretched = [EPOCHS / epochs * delta for epochs, delta in zip(done, deltas, strict=True)]
        full = np.average(stretched, axis=0, weights=p)
        if finished:
            full = np.average([deltas[row] for row in finished], axis=0, weights=p[finished])
        if reading == "fitted":
            norms, ways, more = np.linalg.norm(deltas, axis=1), np.array(lengths), np.array(rests)
            factors = fit.factors(norms, ways, 1 + more / ways, np.array(losses), np.array(done) < EPOCHS)
            completed = [factor * delta for factor, delta in zip(factors, deltas, strict=True)]
        else:
            completed = [
                delta if epochs == EPOCHS else expansion(delta, full, epochs, EPOCHS, length, reading, rest)
                for delta, epochs, length, rest in zip(deltas, done, lengths, rests, strict=True)
            ]
        pairs = zip(completed, deltas, done, strict=True)
        told.append([float(hat @ d / (d @ d)) for hat, d, epochs in pairs if epochs < EPOCHS])
        late = [each[:3] for each in zip(completed, deltas, wholes, done, strict=True) if each[3] < EPOCHS]
        wrong.append(
            {
                "error_completed": [distance(hat, whole) for hat, _, whole in late],
                "error_untouched": [distance(delta, whole) for _, delta, whole in late],
                "error_best_factor": [
                    distance(np.linalg.lstsq(delta[:, None], whole)[0][0] * delta, whole) for _, delta, whole in late
                ],
            }
        )
        x = x + server_lr * np.average(completed, axis=0, weights=p)
    return ByHand(x, told, wrong)


def train(
    executor: str = "serial", fleet: dict[str, Any] = SOME, local: dict[str, Any] | None = None, **algorithm: Any
) -> tuple[Vector, list[RoundEnd]]:
    units = {} if local and "steps" in local else {"epochs": EPOCHS}
    settings: dict[str, Any] = {
        "local": {**units, **(local or {})},
        "fleet": fleet,
        "rounds": ROUNDS,
        "per_round": PER_ROUND,
    }
    result, ends = federation.train({"name": "fedlga", **algorithm}, executor, **settings)
    return federation.weights(result), ends


def check(executor: str, fleet: dict[str, Any], local: dict[str, Any] | None = None, **algorithm: Any) -> None:
    w, ends = train(executor, fleet, local, **algorithm)
    diagnosed = algorithm.pop("diagnose", False)
    hand = by_hand(ends, **algorithm, **(local or {}))
    np.testing.assert_allclose(w, hand.model, rtol=0, atol=1e-9)
    for end, expected, errors in zip(ends, hand.factors, hand.errors, strict=True):
        told = {name: value for name, value in end.report.items() if name.startswith("error")}
        means = {name: np.mean(values) for name, values in errors.items()} if diagnosed and expected else {}
        assert told == pytest.approx(means, abs=1e-9)
        done = [epochs for epochs in end.arrivals.columns["epochs"] if epochs < EPOCHS]
        cut = sum(factor == pytest.approx(EPOCHS / each) for factor, each in zip(expected, done, strict=True))
        assert end.report["mean_factor"] == pytest.approx(np.mean(expected), abs=1e-9)
        assert end.report["stragglers"] == len(expected)
        assert end.report.get("capped") == (cut if algorithm.get("reading") == "practical" else None)


def drawn(seed: int, size: int, scale: float) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(seed)
    delta, full = scale * rng.normal(size=(2, size))
    return delta, full


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("done", [1, 2, 4, 5])
@pytest.mark.parametrize("scale", [1e-3, 0.03, 1.0])
def test_an_update_is_completed_as_the_outer_product_says(reading: Completion, done: int, scale: float) -> None:
    delta, full = drawn(done, 7, scale)
    got = approximate_update(torch.tensor(delta), torch.tensor(full), done, 5, 0.05, 3, reading)
    length = 0.05 * 3 * done
    expected = delta if done == 5 else expansion(delta, full, done, 5, length, reading)
    np.testing.assert_allclose(got, expected, rtol=1e-9 if reading == "own-path" else 1e-12, atol=0)
    if reading == "literal" and done < 5:
        factor = 1 + (delta @ full - delta @ delta) / length**2
        np.testing.assert_allclose(got, delta * factor, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("scale", "cut"), [(1e-3, False), (1.0, True)])
def test_practical_with_and_without_a_cut(scale: float, cut: bool) -> None:
    delta, full = (torch.tensor(each) for each in drawn(1, 7, scale))
    got = approximate_update(delta, full, 1, 5, 0.05, 3)
    assert torch.equal(got, approximate_update(delta, full, 1, 5, 0.05, 3, "practical"))
    assert torch.allclose(got, 5 * delta) == cut


@given(
    st.integers(0, 1000), st.integers(1, 6), st.floats(-4, 2), st.floats(-4, 0), st.integers(1, 9), st.integers(0, 9),
    st.integers(1, 20), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_practical_neither_turns_an_update_nor_goes_beyond_linear_extrapolation(
    seed: int, size: int, scale: float, lr: float, done: int, missing: int, batches: int, dtype: torch.dtype
) -> None:
    delta, full = (torch.tensor(each, dtype=dtype) for each in drawn(seed, size, 10**scale))
    got = approximate_update(delta, full, done, done + missing, 10**lr, batches)
    assert got.dtype == dtype
    if not missing:
        assert torch.equal(got, delta)
    d, added = delta.double().numpy(), (got.double() - delta.double()).numpy()
    slack = 1e-6 if dtype == torch.float32 else 1e-12
    assert np.linalg.norm(added) <= np.linalg.norm(d) * (missing / done * (1 + slack) + slack)
    along = float(added @ d / (d @ d))
    assert along >= -slack
    assert np.linalg.norm(added - along * d) <= slack * np.linalg.norm(d) * (1 + missing / done)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reading", READINGS)
def test_a_finished_device_keeps_its_update_to_the_bit(reading: Completion, dtype: torch.dtype) -> None:
    delta, full = (torch.tensor(each, dtype=dtype) for each in drawn(3, 50, 10.0))
    got = approximate_update(delta, full, 4, 4, 0.01, 2, reading)
    assert got.dtype == dtype
    assert torch.equal(got, delta)


def test_literal_reverses_an_orthogonal_straggler_with_a_large_gradient() -> None:
    """Its own step was 1 = lr * steps * |g| with |g| = 20, so g g^T = 400 e e^T, and the others went elsewhere."""
    delta, full = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    got = approximate_update(delta, full, 1, 5, 0.01, 5, "literal")
    np.testing.assert_allclose(got, [1 - 400.0, 0.0], rtol=1e-5)
    np.testing.assert_allclose(approximate_update(delta, full, 1, 5, 0.01, 5), [5.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
@pytest.mark.parametrize("fleet", [SOME, NOBODY], ids=["some finish", "nobody finishes"])
def test_rounds_by_hand(executor: str, fleet: dict[str, Any]) -> None:
    check(executor, fleet, server_lr=0.7, diagnose=True)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
@pytest.mark.parametrize("reading", READINGS)
def test_the_other_readings_by_hand(executor: str, reading: Completion) -> None:
    check(executor, SOME, reading=reading, server_lr=0.1, diagnose=True)


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [NOBODY, {"rho": 0.6, "tau_max": 3}])
@pytest.mark.parametrize(
    "settings",
    [
        {"weighting": "samples"},
        {"local": {"lr_decay": 0.5}},
        {"local": {"momentum": 0.8}},
        {"weighting": "samples", "server_lr": 1.3, "local": {"lr_decay": 0.8, "momentum": 0.5}},
        {"reading": "practical", "local": {"momentum": 0.8}},
        {"reading": "own-path", "diagnose": True, "local": {"lr_decay": 0.8, "momentum": 0.5}},
        {"diagnose": True, "local": {"steps": EPOCHS}},
        {"reading": "own-path", "diagnose": True, "local": {"steps": EPOCHS, "momentum": 0.5}},
    ],
    ids=str,
)
def test_settings_by_hand(settings: dict[str, Any], fleet: dict[str, Any]) -> None:
    check("stack 3", fleet, **settings)


def test_the_report_counts_stragglers_and_those_whose_completion_was_cut() -> None:
    _, ends = train(reading="practical")
    done = [epochs for end in ends for epochs in end.arrivals.columns["epochs"]]
    assert len({*done} - {EPOCHS}) > 2
    assert [end.report["stragglers"] for end in ends] == [PER_ROUND // 2] * ROUNDS
    assert 0 < sum(end.report["capped"] for end in ends) < ROUNDS * PER_ROUND // 2
    assert any(factor < 1 for factors in by_hand(ends, "literal").factors for factor in factors)


@pytest.mark.parametrize("reading", ["fitted", "practical", "own-path", "literal"])
def test_a_rate_that_has_come_to_nothing_leaves_the_model_alone(reading: str) -> None:
    decayed = {"lr": 1e-30, "lr_decay": 1e-300}  # 0 from the second round on
    w, ends = train(local=decayed, reading=reading)
    assert np.isfinite(w).all()
    assert [end.report["mean_factor"] for end in ends[1:]] == [1.0] * (ROUNDS - 1)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_a_proximal_pull_shortens_the_path_by_which_the_server_divides(executor: str) -> None:
    w, ends = train(executor, client="fedprox", mu=2.0)
    np.testing.assert_allclose(w, by_hand(ends, mu=2.0).model, rtol=0, atol=1e-9)
    assert np.abs(w - by_hand(ends, mu=2.0, seen_mu=0.0).model).max() > 1e-4


@pytest.mark.slow
def test_it_goes_with_other_client_rules() -> None:
    rules: list[dict[str, Any]] = [{}, {"client": "fedsam"}, {"client": "fedprox", "mu": 1.0}]
    plain, sharp, near = (train(**rule)[0] for rule in rules)
    assert np.isfinite([plain, sharp, near]).all()
    assert min(np.abs(plain - sharp).max(), np.abs(plain - near).max(), np.abs(sharp - near).max()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [{"rho": 0.0}, {"rho": 1.0, "tau_max": 0}], ids=str)
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_when_everybody_finishes_it_is_fedavg_to_the_bit(fleet: dict[str, Any], server_lr: float) -> None:
    completed, ends = train("stack 3", fleet, server_lr=server_lr)
    average, others = train("stack 3", fleet, name="fedavg", weighting="uniform", server_lr=server_lr)
    assert np.array_equal(completed, average)
    assert [end.report for end in ends] == [{"stragglers": 0, "mean_factor": 1}] * ROUNDS
    assert [end.arrivals.columns["weight"] for end in ends] == [end.arrivals.columns["weight"] for end in others]


@pytest.mark.parametrize(("reading", "numbers"), [("fitted", 2), ("practical", 1)])
@pytest.mark.parametrize(("dtype", "width"), [("float64", 8), ("float32", 4)])
def test_a_number_or_two_more_go_up_than_in_fedavg(reading: str, numbers: int, dtype: str, width: int) -> None:
    rules: list[Any] = ["fedavg", {"name": "fedlga", "reading": reading}]
    average, completed = (federation.train(rule, fleet=SOME, dtype=dtype)[1] for rule in rules)
    for plain, end in zip(average, completed, strict=True):
        assert [a.bytes_up for a in end.arrivals] == [a.bytes_up + numbers * width for a in plain.arrivals]
        assert [a.bytes_down for a in end.arrivals] == [a.bytes_down for a in plain.arrivals]


@pytest.mark.slow
def test_literal_stops_when_it_runs_away_and_says_what_to_do(tmp_path: Path) -> None:
    stopped = fedkeel("run", *RUNAWAY, "algorithm.reading=literal", cwd=tmp_path)
    assert stopped.returncode == DivergenceError.exit_code == 3
    assert "FedLGA ran away" in stopped.stderr
    assert "set algorithm.reading to fitted, practical or own-path; there is no checkpoint yet" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    ends: list[RoundEnd] = []
    run(Experiment.load(overrides=RUNAWAY).replace(rounds=4), progress=ends.append)
    assert all(1 <= end.report["mean_factor"] <= 5 for end in ends)


def late(done: list[int], asked: int, delta: float) -> Updates:
    """Updates of two weights of length `delta`, one along each axis in turn, by one step of 0.1 an epoch."""
    count = len(done)
    w = delta * torch.eye(2, dtype=torch.float64).repeat(count, 1)[:count]
    layout, epochs = Layout.of(torch.nn.Linear(2, 1, bias=False)), torch.tensor(done)[:, None]
    lr = torch.full((count, max(done)), 0.1, dtype=torch.float64)
    return Updates(w, torch.zeros_like(w), torch.ones(count, 1), epochs, epochs, lr, {}, layout, asked=asked)


@pytest.mark.parametrize("asked", [100, 200])
def test_practical_may_stretch_an_update_as_far_as_epochs_are_missing(asked: int) -> None:
    """The cap is all that bounds it: it is never told to take the reading that it has."""
    state = ServerState(torch.zeros(2, dtype=torch.float64))
    after, _ = GradientApproximation(reading="practical").aggregate(state, late([asked, 1], asked, 100.0))
    np.testing.assert_allclose(after.w, [50.0, 50.0 * asked], rtol=1e-12)


def test_a_finished_device_has_the_same_weight_with_and_without_stragglers_around() -> None:
    """As in FedAvg, whose recorded weights are shares."""
    state, rule = (
        ServerState(torch.zeros(2, dtype=torch.float64)),
        GradientApproximation(server_lr=0.5, reading="practical"),
    )
    alone, among = (rule.aggregate(state, late(done, 5, 0.01))[1] for done in ([5, 5], [5, 1]))
    assert float(alone[0]) == float(among[0])
