"""Edges of the virtual clock: rounds that nobody answers, servers that starve, wake-ups, statistics, deadlines."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel import Arrival, Experiment, FederatedData, Result, RoundEnd, run
from fedkeel.errors import FedkeelError, InputError
from fedkeel.methods import ClientRule, Job, Message, Oracle, method, registry
from fedkeel.methods.client import Merge
from fedkeel.methods.server import View
from fedkeel.params import FlatModel
from fedkeel.record.runs import RunRecord
from fedkeel.report.curves import learning_curves
from fedkeel.report.staleness import staleness_histograms, weight_histograms
from fedkeel.report.timeline import timeline
from fedkeel.runner.simulation import Simulation
from fedkeel.server import core
from fedkeel.server.clients import Landed
from fedkeel.server.events import Command, Event
from fedkeel.server.model import GlobalModel
from fedkeel.wire.orders import Order, Trained
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings
from fedkeel.world.flights import Begin, Flight, Planned
from fedkeel.world.inflight import Flights
from tests.helpers import clock, federation
from tests.helpers.clock import Instant, Watched, experiment, watch
from tests.helpers.federation import BATCH, EXECUTORS, LR, SEED, SIZES, N, Vector, normed

SECONDS = {"seconds_per_sample": 0.5}
"""A job of two epochs takes as many seconds as its client has samples: 3, 9, 4, 12, 1, 7."""


def begun(described: Experiment, executor: Instant | None = None) -> Simulation:
    """A run that has not begun, whose executor takes no time."""
    model = FlatModel(federation.net().double())
    return Simulation(described, federation.data().to(torch.float64), model, executor or Instant())


def trained(described: Experiment, out: Path | None = None) -> tuple[Result, list[RoundEnd]]:
    """The same experiment in earnest."""
    ends: list[RoundEnd] = []
    serial = described.replace(executor=EXECUTORS["serial"])
    return run(serial, out, data=federation.data(), model=federation.net(), progress=ends.append), ends


def many(count: int, monkeypatch: pytest.MonkeyPatch) -> FederatedData:
    """So many clients with one sample each."""
    monkeypatch.setattr(clock, "SIZES", [1] * count)
    one = np.zeros((1, federation.FEATURES)), np.zeros(1, dtype=np.int64)
    return FederatedData.from_clients([one] * count, test=federation.clients()[3])


# Rounds that nobody answers.


def rows(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedssmu"])
def test_the_records_of_a_run_with_empty_rounds(name: str, tmp_path: Path) -> None:
    folder, plots = tmp_path / "run", tmp_path / "plots"
    _, ends = trained(experiment(name, per_round=1, rounds=12, fleet={"dropout": 0.6}), folder)
    empty = [len(end.arrivals) == 0 for end in ends]
    assert 2 < sum(empty) < 10
    for file in folder.glob("*.jsonl"):
        assert all(isinstance(row, dict) for row in rows(folder, file.name))
    assert [Arrival(**row) for row in rows(folder, "clients.jsonl")] == [a for end in ends for a in end.arrivals]
    assert len(rows(folder, "unfinished.jsonl")) == sum(empty)
    assert [row["train_loss"] is None for row in rows(folder, "rounds.jsonl")] == empty
    record = RunRecord.read(folder)
    assert ["train_loss" not in row for row in record.history] == empty
    assert [isnan(loss) for loss in record.column("train_loss")] == empty
    assert not any(isnan(loss) for loss in record.column("loss"))
    learning_curves([record], [plots / "curves.svg"], "virtual_seconds")
    timeline(record, [plots / "timeline.svg"])
    staleness_histograms([record], [plots / "staleness.svg"])
    weight_histograms([record], [plots / "weights.svg"])
    assert len(list(plots.iterdir())) == 4


@pytest.mark.slow
def test_the_records_of_a_run_without_arrivals(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, (end,) = trained(experiment("fedasmu", limit_seconds=1), folder)
    assert len(end.arrivals) == 0
    assert (folder / "clients.jsonl").read_text() == ""
    assert [row["why"] for row in rows(folder, "unfinished.jsonl")] == ["in flight"] * 3
    record = RunRecord.read(folder)
    assert [*record.arrivals()] == []
    assert [isnan(loss) for loss in record.column("train_loss")] == [True]
    learning_curves([record], [tmp_path / "curves.svg"])
    timeline(record, [tmp_path / "timeline.svg"])
    with pytest.raises(InputError, match="no update has arrived yet"):
        staleness_histograms([record], [tmp_path / "staleness.svg"])


# Servers that starve, and that do not.


@pytest.mark.slow
def test_thousands_that_are_not_needed_starve_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    data = many(2200, monkeypatch)
    (end,) = watch(experiment("fedavg", clients=2200, per_round=1100, rounds=1, schedule={"over_select": 1}), data).ends
    assert len(end.arrivals) == 1100
    assert Counter(row.why for row in end.unfinished) == {"not needed": 1100}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dropout"), [("fedavg", 0.3), ("fedavg", 0.8), ("fedssmu", 0.8), ("fedasync", 0.8), ("fedbuff", 0.8)]
)
def test_thousands_that_fail_before_the_first_arrives_starve_nobody(
    name: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All take ten seconds, so whoever fails does so before anybody arrives."""
    data, count = many(1500, monkeypatch), 1500
    schedule = {"fedasync": {"busy_share": 1.0}, "fedbuff": {"concurrency": count}}.get(name, {})
    algorithm = {"name": name, "ablation": "FA"} if name == "fedssmu" else name
    fleet = {"dropout": dropout}
    described = experiment(
        algorithm, clients=count, per_round=count, rounds=1, fleet=fleet, schedule=schedule, limit_seconds=10
    )
    seen = watch(described, data)
    first = [row for row in seen.unfinished if row["why"] == "dropped out" and row["dispatched"] == 0]
    assert abs(len(first) / count - dropout) < 0.06
    assert len(seen.arrivals) == count - len(first)


def empty_rounds(described: Experiment) -> tuple[list[bool], str]:
    """Whether nobody answered in each round until the run ends or the server starves; and what it says then."""
    found: list[bool] = []
    try:
        found.extend(len(end.arrivals) == 0 for end in begun(described).rounds())
    except FedkeelError as error:
        return found, str(error)
    return found, ""


def test_rounds_that_come_to_nothing_starve_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many in a row as are allowed, however many jobs these were."""
    monkeypatch.setattr(core, "STARVED", 7)
    for name in ("fedavg", "fedssmu"):
        found, said = empty_rounds(experiment(name, rounds=30, schedule={"deadline_seconds": 0.01}))
        assert found == [True] * 7
        assert "starves: 7 rounds in a row" in said
    described = experiment("fedavg", per_round=1, rounds=60, fleet={"dropout": 0.6})
    whole, _ = empty_rounds(described)
    streaks = [len(streak) for streak in "".join("x" if empty else " " for empty in whole).split()]
    longest = max(streaks)
    assert len(whole) == 60
    assert sum(streaks) > 10 > longest > 2
    monkeypatch.setattr(core, "STARVED", longest)
    assert empty_rounds(described) == (whole, "")
    monkeypatch.setattr(core, "STARVED", longest - 1)
    cut, said = empty_rounds(described)
    assert said
    assert cut == whole[: len(cut)]
    assert cut[1 - longest :] == [True] * (longest - 1)


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
@pytest.mark.parametrize(("allowed", "jobs"), [(5, 10 * N), (100, 100)])
def test_lost_jobs_starve_a_server_without_rounds(
    name: str, allowed: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "STARVED", allowed)
    running = begun(experiment(name, fleet={"dropout": 0.9999999}))
    with pytest.raises(FedkeelError, match=f"starves: {jobs} jobs in a row"):
        list(running.rounds())
    assert running.core.ledger.lost == jobs + 1


# Devices that come on.


def on(time: Any, phase: float, period: float, share: float) -> Any:
    return (time - phase) % period < share * period


@pytest.mark.slow
def test_triggers_wait_for_devices_with_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every multiple, somebody who is on, idle and has data gets a job; nobody does at another time."""
    monkeypatch.setattr(core, "STARVED", 100)
    every, period, share, limit = 20.0, 86400.0, 0.1, 3
    fleet = {"availability": share, "availability_period": period, "fastest_job_seconds": 6000}
    phases = Fleet.of(FleetSettings(**fleet), np.array(SIZES), 2, SEED).phase
    awake = np.stack([on(phases, phase, period, share) for phase in phases]).sum(axis=0)
    alone = int(np.flatnonzero(awake == 1)[0])  # comes on while all the others are off
    nothing = (np.zeros((0, federation.FEATURES)), np.zeros(0, dtype=np.int64))
    parts = [nothing if client == alone else part for client, part in enumerate(federation.clients())]
    data = FederatedData.from_clients(parts, federation.clients()[3])
    schedule = {"trigger_seconds": every, "busy_share": 0.5}
    seen = watch(experiment("fedasync", per_round=1, rounds=36, fleet=fleet, schedule=schedule), data)
    last = seen.ends[-1].virtual_seconds
    assert len(seen.arrivals) == 36
    assert last > period
    times = np.arange(0.0, last, every)
    busy = np.zeros((len(times), N), dtype=np.bool_)
    for arrival in seen.arrivals:
        busy[:, arrival.client] |= (times > arrival.dispatched) & (times < arrival.arrived)
    for row in seen.unfinished:
        busy[:, row["client"]] |= (times > row["dispatched"]) & (times < row["ended"])
    free = np.stack([on(times, phase, period, share) for phase in phases], axis=1) & ~busy
    free[:, alone] = False
    due = times[free.any(axis=1) & (busy.sum(axis=1) < limit)]
    assert [each.time for each in seen.dispatched] == due.tolist()
    assert np.diff(due).max() > 2 * core.STARVED * every


def dawn(clients: int, seed: int) -> dict[str, list[float]]:  # noqa: ARG001
    """The first comes on exactly at a multiple of seven seconds, the second does not; the others much later."""
    return {
        "availability": [0.1] * clients,
        "availability_period": [1e5] * clients,
        "availability_phase": [7e3, 24_500.5] + [8e4] * (clients - 2),
    }


@pytest.mark.slow
def test_who_comes_on_at_a_trigger_gets_a_job_then() -> None:
    fleet = {"profile": f"{__name__}:dawn", "fastest_job_seconds": 9990}
    described = experiment("fedasync", fleet=fleet, schedule={"trigger_seconds": 7.0}, limit_seconds=30_000)
    seen = watch(described)
    assert (seen.dispatched[0].time, seen.dispatched[0].client) == (7000, 0)
    assert min(each.time for each in seen.dispatched if each.client == 1) == 24_507


def staggered(clients: int, seed: int) -> dict[str, list[float]]:  # noqa: ARG001
    """The first is always on, and its job takes for ever; the others come on one after the other."""
    return {
        "seconds_per_sample": [1e5] + [15 / size for size in SIZES[1:]],
        "availability": [1.0] + [0.5] * (clients - 1),
        "availability_period": [100.0] * clients,
        "availability_phase": [10.0 * client for client in range(clients)],
    }


def nested(clients: int, seed: int) -> dict[str, list[float]]:
    """The same, but of the others only the second comes on often, and the third one day."""
    return {
        **staggered(clients, seed),
        "availability_period": [100.0, 100.0] + [9000.0] * (clients - 2),
        "availability_phase": [0.0, 10.0] + [4000.0] * (clients - 2),
        "availability": [1.0, 0.5] + [0.1] * (clients - 2),
    }


def wake_ups(running: Simulation) -> list[int]:
    """How many are planned for one later moment at most, after every dispatch."""
    pending: list[int] = []
    carry_out = running.world.carry_out

    def counted(command: Command) -> list[Event]:
        events = carry_out(command)
        heap, now = running.world.flights.queue.heap, running.world.flights.now
        times = [time for time, _, _, what in heap if isinstance(what, Begin) and time > now]
        pending.append(max(map(times.count, times), default=0))
        return events

    running.world.carry_out = counted  # type: ignore[method-assign]
    return pending


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["staggered", "nested"])
def test_who_comes_on_is_dispatched_at_once(profile: str) -> None:
    """Although somebody else is still at work; and one wake-up a moment is enough."""
    described = experiment(
        "fedbuff", fleet={"profile": f"{__name__}:{profile}"}, schedule={"concurrency": N}, rounds=10
    )
    seen = watch(described)
    when = defaultdict(set)
    for each in seen.dispatched:
        when[each.client].add(each.time)
    assert when[0] == {0.0}
    assert not {a.client for a in seen.arrivals} & {0}
    columns, last = globals()[profile](N, SEED), seen.ends[-1].virtual_seconds
    for client in range(1, N):
        mornings = np.arange(columns["availability_phase"][client], last, columns["availability_period"][client])
        assert when[client] >= set(mornings.tolist())
        assert all(on(time, mornings[0], *(columns[f"availability{name}"][client] for name in ("_period", "")))
                   for time in when[client])  # fmt: skip
    running = begun(described)
    pending = wake_ups(running)
    assert sum(len(end.arrivals) for end in running.rounds()) == len(seen.arrivals) == 30
    assert len(pending) > 30
    assert max(pending) == 1


# What is not held for ever.


class Forgetful(Instant):
    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        done = super().train(orders, limit)
        self.trained.clear()
        return done


def halves(clients: int, seed: int) -> dict[str, list[float]]:  # noqa: ARG001
    """One half a million times as slow as the other."""
    return {"speed_factor": [1.0] * (clients // 2) + [1e6] * (clients - clients // 2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedssmu"])
@pytest.mark.parametrize(("per_round", "schedule"), [(N, {"deadline_seconds": 40.0}), (N // 2, {"over_select": 1.0})])
def test_events_hold_no_models(name: str, per_round: int, schedule: dict[str, Any]) -> None:
    algorithm = {"name": name, "ablation": "FA"} if name == "fedssmu" else name
    fleet = {"profile": f"{__name__}:halves"}
    described = experiment(algorithm, per_round=per_round, rounds=40, fleet=fleet, schedule=schedule)
    running = begun(described, Forgetful())
    models = []
    for end in running.rounds():
        assert len(end.arrivals) == len(end.unfinished) == N // 2
        models.append(weakref.ref(running.core.model.state.w))
    heap = running.world.flights.queue.heap
    assert bool(heap) == ("over_select" in schedule)
    for time, rank, number, what in heap:
        assert all(isinstance(value, int | float) for value in (time, number, *rank))
        assert all(isinstance(value, int) for value in vars(what).values())
    if "over_select" in schedule:
        assert sum(isinstance(what, Planned) for *_, what in heap) == 40 * (N // 2)
    gc.collect()
    assert [model() is not None for model in models] == [False] * 39 + [True]


# Bytes of surveys.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "answer"), [({"probe": True}, 2 * 2 * 48), ({"reading": "literal", "sweeps": 1}, 2 * 2 * 48), ({}, 0)]
)
@pytest.mark.parametrize("schedule", [{}, {"over_select": 0.5}])
@pytest.mark.filterwarnings("ignore:FedAgg's literal reading stalls")
def test_answers_of_those_who_are_lost_are_counted(
    settings: dict[str, Any], answer: int, schedule: dict[str, Any]
) -> None:
    """A probe answers with a gradient and a way for each of two epochs; one sweep with two gradients, twice."""
    fleet = {"dropout": 0.4}
    result, ends = federation.train({"name": "fedagg", **settings}, rounds=5, fleet=fleet, schedule=schedule)
    lost = [row for end in ends for row in end.unfinished]
    arrivals = [arrival for end in ends for arrival in end.arrivals]
    assert len(lost) > 3
    assert len(arrivals) > 3
    assert {row.bytes_up for row in lost} == {answer}
    assert {arrival.bytes_up for arrival in arrivals} == {48 + (answer or 2 * 2 * 48)}  # sums go up with the weights
    total = sum(row.bytes_up for row in lost) + sum(arrival.bytes_up for arrival in arrivals)
    assert result.summary["bytes_up"] == result.history[-1].bytes_up == total


# Batch-norm statistics.


@dataclass
class Taken:
    before: Tensor
    arrived: Tensor
    staleness: int
    published: bool
    accepted: bool
    after: Tensor


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Taken]:
    """Statistics before and after each arrival of a run."""
    seen: list[Taken] = []
    receive = GlobalModel.receive

    def watched(self: GlobalModel, flight: Landed, trained: Trained, view: View) -> Any:
        before = self.buffers.clone()
        receipt = receive(self, flight, trained, view)
        arrived = trained.buffers[0].clone()
        seen.append(Taken(before, arrived, view.staleness, receipt.published, receipt.accepted, self.buffers.clone()))
        return receipt

    monkeypatch.setattr(GlobalModel, "receive", watched)
    return seen


def with_statistics(algorithm: dict[str, Any], **settings: Any) -> Result:
    """Clients whose mini-batches are all larger than one."""
    parts = [part for part in federation.clients() if len(part[1]) in (3, 4, 7, 12)]
    described = experiment(
        algorithm, clients=len(parts), fleet={"speed_ratio": 4}, executor=EXECUTORS["serial"], **settings
    )
    return run(described, data=FederatedData.from_clients(parts, parts[2]), model=normed())


def mixed(old: Tensor, new: Sequence[Tensor], weight: float) -> Vector:
    mean = np.mean([each.numpy() for each in new], axis=0)
    after: Vector = (1 - weight) * old.numpy() + weight * mean
    return after


@pytest.mark.parametrize("server_lr", [0.7, 5.0])
def test_statistics_of_a_buffer(server_lr: float, taken: list[Taken]) -> None:
    algorithm = {"name": "fedbuff", "buffer_size": 4, "server_lr": server_lr}
    result = with_statistics(algorithm, local={"lr": 0.01})
    weights = []
    for number, each in enumerate(taken, 1):
        weights.append(server_lr * (1 + each.staleness) ** -0.5 / 4)
        assert each.published == (number % 4 == 0)
        if not each.published:
            assert torch.equal(each.after, each.before)
            continue
        weight = min(1.0, sum(weights))
        assert (weight == 1) == (server_lr > 1)
        expected = mixed(each.before, [other.arrived for other in taken[number - 4 : number]], weight)
        np.testing.assert_allclose(each.after, expected, rtol=1e-12, atol=1e-12)
        assert not np.allclose(expected, each.before)
        weights = []
    assert len({each.staleness for each in taken}) > 1
    assert torch.equal(result.simulation.core.model.buffers, taken[-1].after)


def test_statistics_of_a_buffer_whose_weights_add_up_to_one(taken: list[Taken]) -> None:
    with_statistics({"name": "port", "minimum": 3, "staleness_bound": 2}, per_round=4)
    for number, each in enumerate(taken, 1):
        assert each.published == (number % 3 == 0)
        if each.published:
            expected = mixed(each.before, [other.arrived for other in taken[number - 3 : number]], 1.0)
            np.testing.assert_allclose(each.after, expected, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(each.after, each.before)


@pytest.mark.parametrize("bound", [None, 2])
def test_statistics_of_updates_that_are_mixed_one_by_one(bound: int | None, taken: list[Taken]) -> None:
    with_statistics({"name": "fedasync", "staleness_bound": bound}, schedule={"trigger_seconds": 2.0})
    assert {each.accepted for each in taken} == ({True} if bound is None else {True, False})
    for each in taken:
        weight = 0.6 * (1 + each.staleness) ** -0.5 * each.accepted
        np.testing.assert_allclose(each.after, mixed(each.before, [each.arrived], weight), rtol=1e-12, atol=1e-12)


# A short run is the beginning of a longer one.

PREFIXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedasync": ({}, {"trigger_seconds": 1.0, "busy_share": 1.0}),
    "fedasmu": ({"slot": "first"}, {"trigger_seconds": 0.5, "busy_share": 1.0}),
    "fedbuff": ({"buffer_size": 2}, {"concurrency": N}),
}
"""Settings of methods and their schedules, with which many are at work."""


@dataclass
class Logged(Instant):
    calls: list[list[int]] = field(default_factory=list)

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        self.calls.append([order.job for order in orders])
        return super().train(orders, limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", PREFIXES)
def test_a_short_run_is_the_beginning_of_a_longer_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, for the same jobs are trained side by side."""
    more, schedule = PREFIXES[name]
    algorithm = {"name": name, **more}
    settings: dict[str, Any] = {"local": {"epochs": 4}, "fleet": {"speed_ratio": 3}, "per_round": 1}
    settings["schedule"] = schedule
    monkeypatch.setattr(clock, "Instant", Logged)
    short, long = (watch(experiment(algorithm, rounds=rounds, **settings)).executor for rounds in (2, 6))
    assert isinstance(short, Logged)
    assert isinstance(long, Logged)
    assert short.calls == long.calls[: len(short.calls)]
    assert max(map(len, short.calls)) > 2  # more than the shorter run will receive

    models: dict[tuple[int, int], Tensor] = {}
    evaluate = Simulation._evaluate

    def evaluated(self: Simulation, told: Any) -> Any:
        models[self.experiment.rounds, told.round] = self.core.model.state.w.clone()
        return evaluate(self, told)

    monkeypatch.setattr(Simulation, "_evaluate", evaluated)
    told = []
    for rounds in (2, 6):
        _, ends = federation.train(algorithm, "stack 3", federation.net(5), rounds=rounds, dtype="float32", **settings)
        tests = [(end.evaluation.accuracy, end.evaluation.loss) for end in ends if end.evaluation is not None]
        told.append([([*end.arrivals], test) for end, test in zip(ends, tests, strict=True)][:2])
    assert told[0] == told[1]
    for round in (1, 2):
        assert torch.equal(models[2, round], models[6, round])
    assert not torch.equal(models[6, 2], models[6, 6])


# Rounds whose updates are received at once, with a deadline and over-selection.

STREAM = {"name": "fedssmu", "ablation": "FA"}


def jobs(seen: Watched) -> dict[tuple[int, float], int]:
    """Of each client and moment of dispatch."""
    return {(each.client, each.time): each.job for each in seen.dispatched}


@pytest.mark.parametrize(("deadline", "last"), [(7.0, 7), (6.5, 4), (12.0, 12), (3.0, 3)])
def test_who_will_be_late_is_not_trained(deadline: float, last: int) -> None:
    """Who arrives at that very moment is not late."""
    schedule = {"deadline_seconds": deadline}
    seen = watch(experiment(STREAM, per_round=5, rounds=6, fleet=SECONDS, schedule=schedule))
    known = jobs(seen)
    start = 0.0
    for round, end in enumerate(seen.ends, 1):
        drawn = federation.chosen(round, 5)
        first = sorted((SIZES[client], client) for client in drawn if SIZES[client] <= last)
        late = [client for client in drawn if SIZES[client] > last]
        assert [(a.arrived, a.client) for a in end.arrivals] == [(start + seconds, client) for seconds, client in first]
        assert [(row.client, row.why, row.ended) for row in end.unfinished] == [
            (client, "too late", start + deadline) for client in late
        ]
        start += deadline if late else first[-1][0]
        assert end.virtual_seconds == start
    assert sorted(order.job for order in seen.executor.trained) == sorted(
        known[a.client, a.dispatched] for a in seen.arrivals
    )
    assert {SIZES[a.client] for a in seen.arrivals} >= {last}


@pytest.mark.parametrize("deadline", [None, 7.0])
@pytest.mark.parametrize("algorithm", [STREAM, {"name": "fedssmu", "slot": "first"}], ids=["FA", "merges"])
def test_over_selected_jobs_are_trained_once_at_most(algorithm: dict[str, Any], deadline: float | None) -> None:
    schedule = {"deadline_seconds": deadline, "over_select": 0.7}
    seen = watch(experiment(algorithm, per_round=2, rounds=8, fleet=SECONDS, schedule=schedule))
    done = [order.job for order in seen.executor.trained]
    assert len(seen.dispatched) == 8 * 4
    assert len(set(done)) == len(done) <= len(seen.dispatched)
    known = jobs(seen)
    arrived = {known[a.client, a.dispatched] for a in seen.arrivals}
    assert arrived <= set(done)
    if algorithm is STREAM:
        assert arrived == set(done)
    late = {known[row["client"], row["dispatched"]] for row in seen.unfinished if row["why"] == "too late"}
    assert not late & set(done)


SHARE = 0.3


def followed(described: Experiment, arrivals: Sequence[Arrival]) -> Vector:
    """The last model: every job is plain SGD in numpy, mixed in with the weight in the record."""
    times = dict.fromkeys(each.time for each in watch(described).dispatched)
    waves = {time: wave for wave, time in enumerate(times, 1)}
    models = [federation.start()]
    for arrival in arrivals:
        w, each = models[arrival.start_version], -(-SIZES[arrival.client] // BATCH)
        for step, batch in enumerate(federation.batches(waves[arrival.dispatched], arrival.client, arrival.epochs)):
            if arrival.slot is not None and step == arrival.slot * each:
                assert arrival.fresh_version is not None
                w = (1 - SHARE) * w + SHARE * models[arrival.fresh_version]
            w = w - LR * federation.gradient(w, *batch)
        assert arrival.weight is not None
        models.append((1 - arrival.weight) * models[-1] + arrival.weight * w)
    return models[-1]


@pytest.mark.parametrize("deadline", [None, 5.0])
def test_the_first_to_arrive_make_the_model(deadline: float | None) -> None:
    schedule = {"deadline_seconds": deadline, "over_select": 0.7}  # 3.4 is rounded up
    described = experiment(STREAM, per_round=2, rounds=6, fleet=SECONDS, schedule=schedule)
    result, ends = trained(described)
    for round, end in enumerate(ends, 1):
        order = sorted((SIZES[client], client) for client in federation.chosen(round, 4))[:2]
        who = [client for seconds, client in order if deadline is None or seconds <= deadline]
        assert [arrival.client for arrival in end.arrivals] == who
    arrivals = [arrival for end in ends for arrival in end.arrivals]
    np.testing.assert_allclose(federation.weights(result), followed(described, arrivals), rtol=0, atol=1e-12)


# Counts.


@pytest.mark.parametrize(
    ("per_round", "more", "count"), [(100, 0.1, 110), (100, 0.07, 107), (100, 0.101, 111), (10, 0.3, 13), (3, 0.0, 3)]
)
def test_over_selection_is_not_rounded_up_by_an_error_of_rounding(
    per_round: int, more: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, schedule = many(120, monkeypatch), {"over_select": more}
    described = experiment("fedavg", clients=120, per_round=per_round, rounds=1, schedule=schedule)
    assert len(watch(described, data).dispatched) == count


@pytest.mark.parametrize(("share", "count"), [(0.29, 29), (0.57, 57), (0.289, 28), (1.0, 100), (0.001, 1)])
def test_a_share_is_not_rounded_down_by_one(share: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, schedule = many(100, monkeypatch), {"busy_share": share}
    described = experiment("fedasync", clients=100, per_round=100, schedule=schedule, limit_seconds=5)
    assert described.busy_limit == count
    assert [each.time for each in watch(described, data).dispatched] == [0.0] * count


# Who is told to send what it has, and has stopped before.


@pytest.mark.parametrize(
    ("now", "epochs", "finished"), [(3.0, 2, 3.0), (2.0, 2, 2.0), (1.5, 1, 1.5), (0.5, 1, 1.0), (4.75, 2, 4.75)]
)
def test_a_device_that_has_run_out_of_time_sends_at_once(now: float, epochs: int, finished: float) -> None:
    """It did two of five epochs, each of a second, and would have used all five seconds."""
    flights = Flights(Fleet.of(FleetSettings(), np.array(SIZES), 5, SEED))
    w = torch.zeros(6)
    order = Order(1, 0, 1, 2, w, torch.zeros(0), torch.full((2,), LR), {}, {})
    flight = Flight(order, 0.0, 0.0, 1.0, 5.0, 0.25, np.inf, "in flight", 0)
    flights.launch(flight)
    flights.queue.now = now
    assert flights.interrupt(flight)
    assert (flight.order.epochs, len(flight.order.lr)) == (epochs, epochs)
    assert (flight.finished, flight.arrives) == (finished, finished + 0.25)
    assert not flights.interrupt(flight)


def test_nobody_who_is_told_waits_for_epochs_that_it_does_not_do() -> None:
    epochs = 6
    algorithm = {"name": "port", "minimum": 1, "staleness_bound": 1}
    settings: dict[str, Any] = {"fleet": {"speed_ratio": 9, "rho": 0.6}, "schedule": {"concurrency": 5}, "rounds": 40}
    seen = watch(experiment(algorithm, local={"epochs": epochs}, **settings))
    published = [arrival.arrived for arrival in seen.arrivals]  # a version each
    fleet, stopped = seen.simulation.world.flights.fleet, 0
    for arrival in seen.arrivals:
        epoch = fleet.seconds[arrival.client] * SIZES[arrival.client] / np.mean(SIZES) / epochs
        place = arrival.start_version + 1  # of the arrival that leaves it two versions behind
        told = published[place] if place < len(published) else np.inf
        whole = arrival.began + epochs * epoch
        done = max(1, int((told - arrival.began) / epoch + 1e-9)) if told < whole else epochs
        finished = max(told, arrival.began + done * epoch) if done < epochs else whole
        if told < whole and arrival.epochs < done:
            stopped += 1
            finished = told
        assert arrival.epochs <= done
        assert arrival.finished == pytest.approx(min(finished, whole))
    assert stopped > 3


# What is refused, and rules of one's own.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "scheme1", "schedule": {"over_select": 0.5}},
         r"schedule\.over_select=0\.5 needs sampling=uniform.*; change one of them"),
        ({"algorithm": "fedlga", "sampling": "scheme1", "schedule": {"over_select": 1}},
         r"schedule\.over_select=1 needs sampling=uniform"),
        ({"algorithm": "fedasync", "schedule": {"trigger_seconds": 1e-9}},
         r"schedule\.trigger_seconds must be at least 0\.001; got 1e-09"),
    ],
)  # fmt: skip
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(**settings)
    Experiment(**{name: value for name, value in settings.items() if name != "schedule"})


class Sharing(ClientRule):
    """SGD that takes in so much of a fresh model after its first epoch, and says nothing about it."""

    def asks_after(self, kept: Message, received: Message, epochs: int, draws: tuple[float, float]) -> int:
        return min(1, epochs - 1)

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        return Merge(torch.full_like(w[:, :1], SHARE))


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    registry.enrol(method("sharing", client=Sharing, server=registry.find("fedasmu").server, about="", cite=""))
    return "sharing"


@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_a_merge_of_ones_own_with_fedasmus_server(sharing: str, executor: str) -> None:
    schedule = {"trigger_seconds": 2.0, "busy_share": 1.0}
    described = experiment({"name": sharing, "lambda_lr": 0.5}, fleet={"speed_ratio": 4}, schedule=schedule)
    ends: list[RoundEnd] = []
    asked = described.replace(executor=EXECUTORS[executor])
    result = run(asked, data=federation.data(), model=federation.net(), progress=ends.append)
    arrivals = [arrival for end in ends for arrival in end.arrivals]
    assert sum(arrival.fresh_version is not None for arrival in arrivals) > 3
    assert len({arrival.notes["lambda"] for arrival in arrivals if arrival.notes}) > 3
    np.testing.assert_allclose(federation.weights(result), followed(described, arrivals), rtol=0, atol=1e-12)


def test_composed_with_ones_own(sharing: str) -> None:
    for name in ("fedasmu", "fedssmu"):
        described = experiment({"name": name, "client": sharing}, fleet={"speed_ratio": 4})
        result, ends = trained(described)
        assert any(arrival.slot for end in ends for arrival in end.arrivals)
        arrivals = [arrival for end in ends for arrival in end.arrivals]
        np.testing.assert_allclose(federation.weights(result), followed(described, arrivals), rtol=0, atol=1e-12)
