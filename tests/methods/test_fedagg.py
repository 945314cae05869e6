"""FedAgg: its control problem against brute force, its rounds written out in numpy, and where the paper's reading ends.

"By hand" is numpy; the control problem is solved by least squares there, which a minimiser confirms.
"""

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize  # type: ignore[import-untyped]
from torch import nn

from fedkeel import Experiment, InputError, RoundEnd, run
from fedkeel.methods.epochs import passed
from fedkeel.methods.fedagg import optimal_learning_rates
from fedkeel.methods.job import Sums
from fedkeel.methods.types import exact_sum
from tests.helpers import federation, quadratics
from tests.helpers.federation import EPOCHS, EVERY_EXECUTOR, EXECUTORS, LR, ROUNDS, SIZES, Vector
from tests.helpers.tiers import slow_but

Settings = dict[str, Any]
D, BYTES = federation.FEATURES * federation.CLASSES, 8
DEFAULTS: Settings = {"alpha": 0.1, "floor": 0.1, "cap": 10.0, "sweeps": 20, "tolerance": 1e-3, "lr": LR}
STEEP, BOUNDED = {"lr_decay": 0.7, "epochs": 3}, {"weight_decay": 0.2, "clip_norm": 0.25}


def path(start: Vector, phi1: Vector, rates: Vector) -> Vector:
    """[L + 1, D], w_{l+1} = w_l - eta_l phi1_l."""
    points = [start]
    for gradient, rate in zip(phi1, rates, strict=True):
        points.append(points[-1] - rate * gradient)
    return np.array(points)


def cost(rates: Vector, start: Vector, phi1: Vector, phi2: Vector, alpha: float) -> float:
    return float(alpha * np.sum(rates**2) + (1 - alpha) * np.sum((path(start, phi1, rates) - phi2) ** 2))


def solve(start: Vector, phi1: Vector, phi2: Vector, alpha: float) -> Vector:
    """Its minimiser: a row for each rate, and one for each number of each w_k - phi2_k."""
    each = range(1, len(phi1) + 1)
    rows = [np.sqrt(alpha) * np.eye(len(phi1)), *(np.sqrt(1 - alpha) * (phi1.T * (np.array(each) <= k)) for k in each)]
    wanted = [np.zeros(len(phi1)), *(np.sqrt(1 - alpha) * (start - phi2[k]) for k in each)]
    return np.array(np.linalg.lstsq(np.concatenate(rows), np.concatenate(wanted), rcond=None)[0])


def solved(start: Vector, phi1: Vector, phi2: Vector, alpha: float) -> Vector:
    """fedkeel's."""
    w, gradients, parameters = (torch.from_numpy(each) for each in (start, phi1, phi2))
    return optimal_learning_rates(w, gradients, parameters, alpha).numpy()


Problem = tuple[Vector, Vector, Vector, float]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """(start, phi1, phi2, alpha)"""
    epochs, dimensions = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    start, phi1, phi2 = draw(st.sampled_from([0.1, 1.0, 3.0])) * rng.normal(size=(3, epochs + 1, dimensions))
    return start[0], phi1[1:], phi2, draw(st.floats(0.02, 0.98))


@given(problems())
@settings(deadline=None, max_examples=50)
def test_the_rates_are_those_a_brute_force_minimiser_finds(p: Problem) -> None:
    rates = solved(*p)
    found = minimize(cost, np.zeros(len(rates)), p, jac="3-point", options={"gtol": 1e-8})
    np.testing.assert_allclose(rates, found.x, rtol=1e-4, atol=1e-4)
    assert cost(rates, *p) <= found.fun * (1 + 1e-9)
    np.testing.assert_allclose(rates, solve(*p), rtol=1e-7, atol=1e-9)


@given(problems())
@settings(deadline=None, max_examples=25)
def test_every_client_of_a_stack_has_its_own_rates_and_where_phi2_begins_does_not_matter(p: Problem) -> None:
    start, phi1, phi2, alpha = p
    starts, moved = start + np.arange(3)[:, None], np.concatenate([phi2[:1] + 7, phi2[1:]])
    expected = [solve(each, phi1, moved, alpha) for each in starts]
    np.testing.assert_allclose(solved(starts, phi1, phi2, alpha), expected, rtol=1e-7, atol=1e-8)


def test_one_epoch_has_a_closed_form_and_no_gradient_gives_no_rate() -> None:
    start, g, phi2 = np.array([1.0, 2.0]), np.array([[3.0, -1.0]]), np.array([[9.0, 9.0], [0.5, 4.0]])
    assert solved(start, g, phi2, 0.2) == pytest.approx(4 * (3 * 0.5 + 1 * 2) / (1 + 4 * 10))
    assert (solved(start, np.zeros((3, 2)), np.ones((4, 2)), 0.2) == 0).all()
    assert optimal_learning_rates(torch.ones(2), torch.ones(1, 2), torch.ones(2, 2), 0.2).dtype == torch.float32


@given(problems(), st.floats(0.02, 0.98))
@settings(deadline=None, max_examples=50)
def test_a_smaller_alpha_means_larger_rates(p: Problem, other: float) -> None:
    large, small = (np.linalg.norm(solved(*p[:3], alpha)) for alpha in sorted([p[3], other]))
    assert large >= small * (1 - 1e-9)


@given(problems(), st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_the_mean_of_the_rates_is_s_times_those_of_the_mean_path(p: Problem, clients: int) -> None:
    """S contracts: iterated, it leads to 0."""
    start, phi1, _, alpha = p
    ahead, rng = np.arange(len(phi1), 0, -1), np.random.default_rng(clients)
    cm = (1 - alpha) / alpha * np.minimum.outer(ahead, ahead) * (phi1 @ phi1.T)
    s = cm @ np.linalg.inv(np.eye(len(cm)) + cm)
    values = np.linalg.eigvals(s).real
    assert values.min() > -1e-9
    assert values.max() < 1
    starts, rates = start + rng.normal(size=(clients, len(start))), rng.uniform(0, 1, len(phi1))
    mean = solved(starts, phi1, path(starts.mean(0), phi1, rates), alpha).mean(0)
    np.testing.assert_allclose(mean, s @ rates, rtol=1e-7, atol=1e-8)
    for _ in range(5):
        before, rates = rates, solved(start, phi1, path(start, phi1, rates), alpha)
        assert np.linalg.norm(rates) <= np.linalg.norm(before) * values.max() + 1e-9


@cache
def samples(client: int, round_: int = 0) -> list[tuple[Vector, Any]]:
    """A client's mini-batches of a round's first three epochs, or all that it has."""
    return list(federation.batches(round_, client, 3)) if round_ else [federation.clients()[client]]


def gradient(w: Vector, batch: tuple[Vector, Any], how: Settings) -> Vector:
    """Clipped as PyTorch does it, then decayed."""
    g = federation.gradient(w, *batch)
    kept = min(1.0, how.get("clip_norm", np.inf) / (np.linalg.norm(g) + 1e-6))
    return np.array(g * kept + how.get("weight_decay", 0) * w)


def clip(rates: Vector, base: float, how: Settings) -> Vector:
    return np.clip(rates, how["floor"] * base, (how["cap"] or np.inf) * base)


def walk(w: Vector, round_: int, client: int, rates: Vector, how: Settings, field: Any = None) -> tuple[Any, ...]:
    """(Where a job ends; of each epoch: the gradient at its start, its way for a rate of one, its rate).

    With `field` (phi1, phi2, base), the loop is closed.
    """
    velocity, gradients, ways, used = np.zeros_like(w), [], [], []
    parts, each = samples(client, round_), len(samples(client, round_)) // 3
    for epoch, rate in enumerate(rates):
        before, mine = w, parts[epoch * each : (epoch + 1) * each]
        seen = samples(client)[0] if how.get("gradient_batches") == "full" else mine[0]
        gradients.append(gradient(w, seen, how))
        anew = rate if field is None else solve(w, field[0][epoch:], field[1][epoch:], how["alpha"])[0]
        used.append(rate if field is None else float(clip(anew, field[2], how)))
        for batch in mine:
            velocity = how.get("momentum", 0) * velocity + gradient(w, batch, how)
            w = w - used[-1] * velocity
        ways.append((w - before) / used[-1])
    return w, gradients, ways, used


def means(walks: list[tuple[Any, ...]], before: Vector) -> Vector:
    """[2, L, D], gradients and ways over those who did each epoch; where nobody did, as before."""
    after = before.copy()
    for what, epoch in np.ndindex(before.shape[:2]):
        known = [one[1 + what][epoch] for one in walks if len(one[1]) > epoch]
        after[what, epoch] = np.mean(known, axis=0) if known else before[what, epoch]
    return after


def sweeps(x: Vector, round_: int, base: Vector, how: Settings) -> tuple[Vector, Vector, Vector]:
    """Algorithm 1: (rates, the same unclipped, of each sweep the changes of phi1 and phi2 and the largest rate)."""
    whole = how.get("gradient_batches") == "full"
    seen = [samples(client, 0 if whole else round_)[0] for client in federation.chosen(round_)]

    def mean_gradients(points: Any) -> Vector:
        return np.array([np.mean([gradient(point, batch, how) for batch in seen], axis=0) for point in points])

    phi1 = mean_gradients([x] * len(base))
    phi2, change = path(x, phi1, base), [np.inf]
    trace: list[list[float]] = []
    while len(trace) < how["sweeps"] and max(change) > how["tolerance"]:
        unclipped = solve(x, phi1, phi2, how["alpha"])
        rates = np.clip(unclipped, 0, 1)
        new2 = path(x, phi1, rates)
        new1 = mean_gradients(new2[:-1])
        change = [np.linalg.norm(each, axis=1).sum() for each in (new1 - phi1, new2 - phi2)]
        phi1, phi2 = new1, new2
        trace.append([*change, rates.max()])
    return rates, unclipped, np.array(trace)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def check(chosen: Settings, executor: str = "serial", local: Settings | None = None, **more: Any) -> list[RoundEnd]:
    """fedkeel's run, which is also made by hand: model, rates and what the server remembers."""
    result, ends = federation.train({"name": "fedagg", **chosen}, executor, local=local or {}, **more)
    how = {**DEFAULTS, **chosen, **(local or {})}
    count, probe, literal = how.get("epochs", EPOCHS), how.get("probe"), how.get("reading") == "literal"
    x, known = federation.start(), None
    for round_, end in enumerate(ends, 1):
        base = np.full(count, how["lr"] * how.get("lr_decay", 1.0) ** (round_ - 1))
        jobs = list(zip(federation.chosen(round_), end.arrivals.columns["epochs"], strict=True))
        rates, unclipped, field = base, base, None
        if probe:
            pilots = [walk(x, round_, client, base[:done], how) for client, done in jobs]
            known = means(pilots, np.zeros((2, count, D)) if known is None else known)
        if literal:
            rates, unclipped, trace = sweeps(x, round_, base, how)
            close(end.report["sweeps"], trace)
        elif known is not None:
            phi1, phi2 = known[0], x + base[0] * np.concatenate([np.zeros((1, D)), known[1].cumsum(axis=0)])
            unclipped = solve(x, phi1, phi2, how["alpha"])
            rates = clip(unclipped, base[0], how)
            field = (phi1, phi2, base[0]) if how.get("closed_loop") else None
        walks = [walk(x, round_, client, rates[:done], how, field) for client, done in jobs]
        if not probe and not literal:
            known = means(walks, np.zeros((2, count, D)) if known is None else known)
        x = np.average([one[0] for one in walks], axis=0, weights=[SIZES[client] for client, _ in jobs])
        close(end.report["planned_rates"], rates)
        close(end.report["unclipped_rates"], unclipped)
        for used, (*_, expected) in zip(end.arrivals.columns["learning_rates"], walks, strict=True):
            close(used, expected)
    close(federation.weights(result), x)
    if known is not None:
        close(torch.stack([result.simulation.core.model.state.memory[name] for name in ("gradient", "way")]), known)
    return ends


@pytest.mark.parametrize("chosen", [{}, {"gradient_batches": "full"}, {"probe": True}, {"closed_loop": True}], ids=str)
@pytest.mark.parametrize("executor", EVERY_EXECUTOR)
def test_rounds_by_hand(executor: str, chosen: Settings) -> None:
    check(chosen, executor, {"epochs": 3})


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"gradient_batches": "full", "probe": True, "closed_loop": True}], ids=str)
@pytest.mark.parametrize(
    "local", [STEEP, {"momentum": 0.6}, BOUNDED, {**STEEP, **BOUNDED, "momentum": 0.6, "lr": 0.4}], ids=str
)
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_falling_rates_momentum_decay_and_clipping_by_hand(executor: str, local: Settings, chosen: Settings) -> None:
    """The gradient that is recorded is clipped and decayed, but without momentum; the way has it all."""
    check(chosen, executor, local)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"probe": True, "gradient_batches": "full"}, {"closed_loop": True}], ids=str)
@pytest.mark.parametrize("rho", [0.5, 0.7])
@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_stragglers_by_hand(executor: str, rho: float, chosen: Settings) -> None:
    """With the larger share, nobody does the last epoch of the second round."""
    ends = check(chosen, executor, {"epochs": 3}, fleet={"rho": rho})
    most = [max(end.arrivals.columns["epochs"]) for end in ends]
    assert most == ([3, 3, 3, 3] if rho == 0.5 else [3, 2, 3, 3])


@pytest.mark.slow
def test_the_first_round_runs_at_the_base_rate() -> None:
    for chosen in ({}, {"closed_loop": True}):
        _, ends = federation.train({"name": "fedagg", **chosen}, local={"epochs": 3})
        assert ends[0].report["planned_rates"] == ends[0].report["unclipped_rates"] == [LR] * 3
        assert ends[0].arrivals.columns["learning_rates"] == [[LR] * 3] * federation.PER_ROUND
        assert ends[1].report["planned_rates"] != [LR] * 3


def test_rates_stay_between_floor_and_cap_and_the_report_shows_what_they_would_have_been() -> None:
    ends = check({"floor": 0.9, "cap": 1.2}, local={"epochs": 3, "lr_decay": 0.9})
    rates, free = (np.array([end.report[key] for end in ends]) for key in ("planned_rates", "unclipped_rates"))
    low, high = (limit * LR * 0.9 ** np.arange(ROUNDS)[:, None] for limit in (0.9, 1.2))
    np.testing.assert_allclose(rates, np.minimum(np.maximum(free, low), high), rtol=1e-12)
    assert (free < low).any()
    assert (free > high).any()
    assert max(check({"floor": 0.9, "cap": None})[2].report["planned_rates"]) > 2 * LR


def test_a_smaller_alpha_means_larger_rates_in_a_run_too() -> None:
    second = [federation.train({"name": "fedagg", "alpha": a}, rounds=2)[1][1].report for a in (0.01, 0.1, 0.5, 0.9)]
    assert (np.diff([np.array(report["unclipped_rates"]) for report in second], axis=0) < 0).all()


def test_a_rate_of_zero_is_not_for_good() -> None:
    local = {"epochs": 1, "batch_size": 1, "lr": 0.5}
    _, ends = federation.train({"name": "fedagg", "floor": 0.0}, seed=0, rounds=8, local=local)
    rates = [end.report["planned_rates"][0] for end in ends]
    assert rates[1] == 0
    assert max(rates[2:]) > 0


def test_ways_of_clients_that_hardly_move_or_do_not_are_numbers() -> None:
    """However small a rate is; without one there is no way."""
    w = torch.tensor([[0.0, 1e-3], [0.0, 1e-3], [2.0, torch.inf]])
    lr = torch.tensor([[1e-39], [0.5], [0.0]])
    made = replace(quadratics.job(torch.zeros_like(w), lr), sums=Sums.of(("way",), 1, w))
    for rows, expected in (([1], [0.0, 2e-3]), ([2], [0.0, 0.0]), ([1, 2], [0.0, 2e-3])):
        made.sums.totals["way"].zero_()
        passed(made, w, torch.tensor(rows), 0, 1)
        torch.testing.assert_close(made.sums.totals["way"][0], torch.tensor(expected, dtype=torch.float64))
        passed(made, w, torch.tensor(rows), 0, -1)
        assert made.sums.totals["way"].abs().max() < 1e-9
    passed(made, w, torch.tensor([0]), 0, 1)
    assert bool(made.sums.totals["way"].isfinite().all())


def test_an_epoch_that_nobody_has_done_yet_runs_at_the_base_rate() -> None:
    _, ends = federation.train("fedagg", per_round=1, rounds=2, seed=1, local={"epochs": 3}, fleet={"rho": 0.6})
    assert [end.arrivals.columns["epochs"] for end in ends] == [[1], [3]]
    assert ends[1].report["planned_rates"][1:] == [LR, LR]


@pytest.mark.slow
def test_a_small_network_collapses_without_the_cap_and_learns_with_it() -> None:
    """Clients of two classes each, and many mini-batches in an epoch: the way of one is far longer than a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    base, accuracy, largest = 0.006, [], []
    for algorithm in ("fedavg", "fedagg", {"name": "fedagg", "cap": None}):
        ends: list[RoundEnd] = []
        experiment = Experiment(
            dataset={"name": "fashion-mnist-mini", "train_limit": 1000, "test_limit": 1000},
            partition={"kind": "classes", "classes": 2},
            clients=10,
            rounds=3,
            algorithm=algorithm,
            local={"epochs": 3, "batch_size": 4, "lr": base},
            executor={"kind": "vectorised", "stack": 10, "channels_last": False},
        )
        accuracy.append(run(experiment, model=model, progress=ends.append).accuracy)
        largest.append(max(max(rates) for end in ends for rates in end.arrivals.columns["learning_rates"]))
    average, capped, free = accuracy
    assert capped > average
    assert free < average - 0.1
    assert largest[1] <= 10.001 * base < 10.001 * 2 * base < largest[2]


@pytest.mark.slow
@pytest.mark.parametrize("local", [{"epochs": 3, "lr": 6.0}, BOUNDED], ids=str)
@pytest.mark.parametrize(
    ("executor", "batches"), [("serial", 1), ("serial", "full"), ("stack 3", "full"), ("processes, stack 2", 1)]
)
def test_algorithm_1_by_hand(executor: str, batches: int | str, local: Settings) -> None:
    """Where the base rate is large, the first sweeps are clipped to 1."""
    ends = check({"reading": "literal", "gradient_batches": batches, "sweeps": 3}, executor, local)
    assert (max(end.report["sweeps"][0][2] for end in ends) == 1) == ("lr" in local)


@pytest.mark.slow
def test_sweeps_end_by_their_number_or_by_the_tolerance_and_rates_shrink_from_sweep_to_sweep() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traces = [np.array(end.report["sweeps"]) for end in check({"reading": "literal"}, "stack 3")]
    assert len(traces[0]) == 20
    assert (traces[0][-1, :2] > 1e-3).any()
    assert len(traces[1]) < 20
    assert (traces[1][-1, :2] <= 1e-3).all()
    for trace in traces:
        assert (trace[:-1, :2] > 1e-3).any(axis=1).all()
        assert (np.diff(trace[:, 2]) < 0).all()


@pytest.mark.slow
def test_sweeps_without_end_lead_to_rates_of_zero_with_a_warning() -> None:
    chosen = {"name": "fedagg", "reading": "literal", "sweeps": 70, "tolerance": 1e-12}
    with pytest.warns(UserWarning, match=r"stalls: after 70 sweeps.*; set algorithm\.reading=practical$"):
        result, ends = federation.train(chosen, "stack 3", rounds=1)
    assert len(ends[0].report["sweeps"]) == 70
    assert max(ends[0].report["planned_rates"]) < LR / 1000
    np.testing.assert_allclose(federation.weights(result), federation.start(), rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["stack 3", "processes"], "stack 3"))
def test_numbers_that_travel_beside_the_weights_in_closed_form(executor: str) -> None:
    def beside(name: str = "fedagg", **chosen: Any) -> tuple[list[list[float]], list[RoundEnd]]:
        """[rounds, (up, down)], the same for every client."""
        result, ends = federation.train({"name": name, **chosen}, executor, rounds=2, local={"epochs": 3})
        each = [[{*end.arrivals.columns[key]} for key in ("bytes_up", "bytes_down")] for end in ends]
        totals = [sum(next(iter(pair[way])) for pair in each) * federation.PER_ROUND for way in (0, 1)]
        assert [result.summary["bytes_up"], result.summary["bytes_down"]] == totals
        assert {len(way) for pair in each for way in pair} == {1}
        return [[next(iter(way)) / BYTES - D for way in pair] for pair in each], ends

    assert beside("fedavg")[0] == [[0, 0], [0, 0]]
    assert beside()[0] == [[2 * 3 * D, 3], [2 * 3 * D, 3]]
    assert beside(closed_loop=True)[0] == [[2 * 3 * D, 3], [2 * 3 * D, 3 + 3 * D + 4 * D + 3]]
    assert beside(probe=True)[0] == [[2 * 3 * D, 3 + 3]] * 2
    literal, ends = beside(reading="literal", sweeps=3)
    asked = [1 + len(end.report["sweeps"]) for end in ends]
    assert literal == [[n * 3 * D, n * 3 * D + 3] for n in asked]


@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([1e-9, 1.0, 50.0, 2000.0]))
@settings(deadline=None, max_examples=50)
def test_an_exact_sum_is_the_same_in_any_order_and_grouping(seed: int, count: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    drawn = scale * rng.normal(size=(count, 5)) * 10.0 ** rng.integers(-6, 1, (count, 5))
    total = exact_sum(torch.from_numpy(drawn))
    np.testing.assert_allclose(total, drawn.sum(axis=0), rtol=0, atol=count * 2.0**-37 + 1e-12 * scale)
    mixed, cut = drawn[rng.permutation(count)], int(rng.integers(0, count + 1))
    assert torch.equal(exact_sum(torch.from_numpy(mixed)), total)
    assert torch.equal(exact_sum(torch.from_numpy(mixed[:cut])) + exact_sum(torch.from_numpy(mixed[cut:])), total)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "dtype"), [({}, "float32"), ({}, "float64"), ({"reading": "literal", "sweeps": 2}, "float64")]
)
def test_how_many_workers_there_are_changes_no_bit(
    chosen: Settings, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Settings = {"stack": 2, "channels_last": False}
    monkeypatch.setitem(EXECUTORS, "here", {"kind": "vectorised", **known})
    monkeypatch.setitem(EXECUTORS, "alone", {"kind": "processes", "workers": 1, **known})
    runs = [
        federation.train({"name": "fedagg", **chosen}, executor, dtype=dtype, per_round=federation.N)
        for executor in ("here", "alone", "processes, stack 2", "processes, stack 2")
    ]
    for result, ends in runs[1:]:
        assert torch.equal(result.simulation.core.model.state.w, runs[0][0].simulation.core.model.state.w)
        assert [end.report for end in ends] == [end.report for end in runs[0][1]]


@pytest.mark.parametrize("option", ["probe", "closed_loop"])
def test_what_the_literal_reading_would_ignore_is_refused(option: str) -> None:
    with pytest.raises(
        InputError, match=rf"algorithm\.{option}=true .*\.reading=literal; remove it or set .*\.reading=practical$"
    ):
        Experiment(algorithm={"name": "fedagg", "reading": "literal", option: True})
