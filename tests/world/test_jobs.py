"""What must hold on every virtual timeline, whatever the fleet, the pace and the method; and rounds on the clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from torch import Tensor

from fedkeel import Arrival, Experiment, FederatedData, RoundEnd
from fedkeel.errors import FedkeelError
from fedkeel.runner.scores import finetuned
from fedkeel.server import core
from tests.helpers import federation
from tests.helpers.clock import (
    MODEL,
    ROUNDS,
    Watched,
    experiment,
    experiments,
    watch,
)
from tests.helpers.federation import LR, SIZES, Vector


@pytest.mark.slow
@settings(max_examples=100)
@given(experiments())
def test_the_books_of_a_run(described: Experiment) -> None:
    seen = watch(described)
    _time_never_runs_backwards(seen)
    _a_device_does_one_job_at_a_time(seen)
    fates = _every_job_has_one_fate(seen)
    _bytes_add_up(seen)
    _rounds_are_as_large_as_they_should_be(seen)
    _nobody_is_given_too_much(seen)
    _nothing_is_trained_in_vain(seen, fates)
    for arrival in seen.arrivals:
        _seconds_add_up(seen, arrival)
    _models_are_not_newer_than_the_moment(seen)


def _time_never_runs_backwards(seen: Watched) -> None:
    assert seen.ends
    assert [end.round for end in seen.ends] == list(range(1, len(seen.ends) + 1))
    assert seen.ends[-1].evaluation is not None
    before = 0.0
    for end in seen.ends:
        times = [arrival.arrived for arrival in end.arrivals]
        if seen.simulation.experiment.pace != "barrier":
            assert times == sorted(times)
        assert all(before <= time <= end.virtual_seconds for time in times)
        assert before <= end.virtual_seconds
        before = end.virtual_seconds
        if end.evaluation is not None:
            assert end.evaluation.virtual_seconds == end.virtual_seconds
    limit = seen.simulation.experiment.limit_seconds
    assert limit is not None
    assert before <= limit
    assert [each.time for each in seen.dispatched] == sorted(each.time for each in seen.dispatched)
    assert [each.version for each in seen.dispatched] == sorted(each.version for each in seen.dispatched)
    for arrival in seen.arrivals:
        assert arrival.dispatched <= arrival.began <= arrival.finished <= arrival.arrived
        assert arrival.staleness >= 0
    for row in seen.unfinished:
        assert row["dispatched"] <= row["ended"]


def _a_device_does_one_job_at_a_time(seen: Watched) -> None:
    work = defaultdict(list)
    for arrival in seen.arrivals:
        work[arrival.client].append((arrival.dispatched, arrival.arrived))
    for row in seen.unfinished:
        work[row["client"]].append((row["dispatched"], row["ended"]))
    for spans in work.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans)))


def _every_job_has_one_fate(seen: Watched) -> dict[int, str]:
    """By the jobs' numbers."""
    jobs = {(each.client, each.time): each.job for each in seen.dispatched}
    assert len(jobs) == len(seen.dispatched)
    assert sorted(jobs.values()) == list(range(1, len(jobs) + 1))
    fates = [(jobs[arrival.client, arrival.dispatched], "arrived") for arrival in seen.arrivals]
    fates += [(jobs[row["client"], row["dispatched"]], row["why"]) for row in seen.unfinished]
    assert sorted(job for job, _ in fates) == sorted(jobs.values())
    fleet, schedule = seen.simulation.experiment.fleet, seen.simulation.experiment.schedule
    allowed = {"arrived", "in flight"}
    allowed |= {"dropped out"} if fleet.dropout else set()
    allowed |= {"went offline"} if fleet.availability < 1 else set()
    allowed |= {"too late"} if schedule.deadline_seconds else set()
    allowed |= {"not needed"} if schedule.over_select else set()
    assert {fate for _, fate in fates} <= allowed
    for row in seen.unfinished:
        _the_reason_is_true(seen, row)
    return dict(fates)


def _the_reason_is_true(seen: Watched, row: dict[str, Any]) -> None:
    fleet, schedule, client = seen.simulation.world.flights.fleet, seen.simulation.experiment.schedule, row["client"]

    def hour(time: float) -> float:
        share: float = (time - fleet.phase[client]) / fleet.period[client]
        return float(share - np.floor(share + 1e-9))

    if fleet.availability[client] < 1:
        assert hour(row["dispatched"]) < fleet.availability[client] + 1e-9
    match row["why"]:
        case "went offline":
            assert hour(row["ended"]) == pytest.approx(fleet.availability[client])
        case "dropped out":
            assert row["began"] <= row["ended"]
        case "too late":
            assert row["ended"] == row["dispatched"] + schedule.deadline_seconds
        case "in flight":
            assert row["ended"] == seen.simulation.world.flights.now


def _bytes_add_up(seen: Watched) -> None:
    running, arrivals = seen.simulation, seen.arrivals
    down = sum(arrival.bytes_down for arrival in arrivals) + sum(row["bytes_down"] for row in seen.unfinished)
    assert running.core.ledger.bytes_down == down
    assert running.core.ledger.bytes_up == sum(arrival.bytes_up for arrival in arrivals) + sum(
        row["bytes_up"] for row in seen.unfinished
    )
    assert running.core.ledger.updates == len(arrivals)
    last = seen.ends[-1].evaluation
    assert last is not None
    assert (last.bytes_up, last.updates) == (running.core.ledger.bytes_up, running.core.ledger.updates)
    for arrival in arrivals:
        assert arrival.bytes_down == MODEL * (1 + (arrival.merged is not None))


def _rounds_are_as_large_as_they_should_be(seen: Watched) -> None:
    described, wanted = seen.simulation.experiment, seen.simulation.experiment.participants
    over = seen.simulation.world.flights.now == described.limit_seconds
    for end in seen.ends:
        assert len(end.arrivals) <= wanted
        if seen.simulation.experiment.pace not in ROUNDS and not (over and end is seen.ends[-1]):
            assert len(end.arrivals) == wanted
        assert (end.train_loss is None) == (len(end.arrivals) == 0)
    if not over:
        assert len(seen.ends) == described.rounds


def _nobody_is_given_too_much(seen: Watched) -> None:
    described = seen.simulation.experiment
    most = {
        "periodic": described.busy_limit,
        "concurrency": described.concurrency,
    }.get(seen.simulation.experiment.pace, int(np.ceil(described.participants * (1 + described.schedule.over_select))))
    assert all(each.busy <= most for each in seen.dispatched)
    if seen.simulation.experiment.pace == "periodic":
        waves = Counter(each.time for each in seen.dispatched)
        assert all(time % described.schedule.trigger_seconds == 0 for time in waves)
        assert all(count <= described.participants for count in waves.values())


def _nothing_is_trained_in_vain(seen: Watched, fates: dict[int, str]) -> None:
    trained = Counter(order.job for order in seen.executor.trained)
    assert all(count == 1 or seen.simulation.experiment.algorithm.name == "port" for count in trained.values())
    for job, fate in fates.items():
        assert trained[job] or fate != "arrived"
        assert not trained[job] or fate not in ("dropped out", "went offline")
        if seen.simulation.experiment.pace == "barrier":
            assert trained[job] == (fate == "arrived")


def _seconds_add_up(seen: Watched, arrival: Arrival) -> None:
    """arrived - dispatched = download + training + waiting + upload."""
    fleet, described, client = seen.simulation.world.flights.fleet, seen.simulation.experiment, arrival.client
    asked = described.local.epochs
    downlink, latency = fleet.downlink[client], fleet.latency[client]
    assert arrival.began - arrival.dispatched == pytest.approx(8 * MODEL / downlink + latency, abs=1e-9)
    job = fleet.seconds[client] * SIZES[client] / np.mean(SIZES)
    epoch = job / asked
    waited = 0.0
    if arrival.resumed is not None:  # an answer without a model
        assert arrival.asked is not None
        waited = arrival.resumed - arrival.asked
        assert waited == pytest.approx(latency, abs=1e-9)
        assert arrival.slot is arrival.merged is arrival.fresh_version is None
    elif arrival.asked is not None:
        assert arrival.merged is not None
        assert arrival.slot is not None
        assert 1 <= arrival.slot < arrival.epochs
        assert arrival.asked == pytest.approx(arrival.began + arrival.slot * epoch)
        waited = arrival.merged - arrival.asked
        assert waited == pytest.approx(8 * MODEL / downlink + latency, abs=1e-9)
    else:
        assert arrival.slot is arrival.merged is arrival.fresh_version is None
    trained = arrival.finished - arrival.began - waited
    if described.algorithm.name == "port":  # may have been told to send what it has
        assert min(arrival.epochs * epoch, job) - 1e-9 <= trained <= job + 1e-9
        assert arrival.epochs >= 1
    else:
        assert trained == pytest.approx(job)
    assert arrival.arrived - arrival.finished == pytest.approx(8 * arrival.bytes_up / fleet.uplink[client], abs=1e-9)


def _models_are_not_newer_than_the_moment(seen: Watched) -> None:
    """Whoever is dispatched or asks gets the newest model: that after all arrivals until then."""
    if seen.simulation.experiment.pace == "barrier":
        models = 0
        for end in seen.ends:
            assert all((a.start_version, a.staleness) == (models, 0) for a in end.arrivals)
            models += len(end.arrivals) > 0
        assert seen.simulation.core.model.version == models
        return
    times = np.array([arrival.arrived for arrival in seen.arrivals])
    met = [arrival.start_version + arrival.staleness for arrival in seen.arrivals]
    assert met == sorted(met)

    def newest(time: float) -> int:
        count = int((times <= time).sum())
        return met[count] if count < len(met) else -1

    for arrival in seen.arrivals:
        assert arrival.start_version == newest(arrival.dispatched)
        if arrival.resumed is not None:
            assert arrival.asked is not None
            assert newest(arrival.asked) == arrival.start_version
        elif arrival.asked is not None:
            assert arrival.fresh_version == newest(arrival.asked)
            assert arrival.fresh_version is not None
            assert arrival.fresh_version > arrival.start_version


# Rounds with a barrier.

SLOW: list[dict[str, Any]] = [
    {"speed_ratio": 5},
    {"speed_ratio": 3, "profile": "tiers", "uplink_mbps": 1e-4, "downlink_mbps": 1e-3, "latency_seconds": 2},
]
EVEN = {"seconds_per_sample": 0.5}
"""With two epochs, a job takes as many seconds as there are samples."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedagg", "fedlga", "fedent"])
def test_speeds_and_links_change_no_model(name: str) -> None:
    plain, ends = federation.train(name, rounds=2)
    for fleet, schedule in zip(SLOW, [{}, {"deadline_seconds": 1e6}], strict=True):
        other, slow = federation.train(name, rounds=2, fleet=fleet, schedule=schedule)
        assert np.array_equal(federation.weights(other), federation.weights(plain))
        assert slow[-1].virtual_seconds > ends[-1].virtual_seconds
        told = [[(a.client, a.weight, a.train_loss, a.start_version) for a in end.arrivals] for end in slow]
        assert told == [[(a.client, a.weight, a.train_loss, a.start_version) for a in end.arrivals] for end in ends]


def averaged(who: list[list[int]]) -> Vector:
    """FedAvg over these clients, round by round."""
    w = federation.start()
    for round, clients in enumerate(who, 1):
        total = np.zeros_like(w)
        for client in clients:
            own = w
            for batch in federation.batches(round, client):
                own = own - LR * federation.gradient(own, *batch)
            total += SIZES[client] * own
        w = total / sum(SIZES[client] for client in clients) if clients else w
    return w


def clients(ends: list[RoundEnd]) -> list[list[int]]:
    return [[arrival.client for arrival in end.arrivals] for end in ends]


@pytest.mark.slow
@pytest.mark.parametrize(("deadline", "last"), [(7.0, 7), (6.999, 4), (12.0, 12), (8.5, 7)])
def test_who_misses_the_deadline_is_left_out(deadline: float, last: int) -> None:
    """Who arrives at that very moment is not late."""
    result, ends = federation.train(
        "fedavg", per_round=5, rounds=3, fleet=EVEN, schedule={"deadline_seconds": deadline}
    )
    drawn = [federation.chosen(round, 5) for round in (1, 2, 3)]
    who = [[client for client in each if SIZES[client] <= last] for each in drawn]
    assert clients(ends) == who
    np.testing.assert_allclose(federation.weights(result), averaged(who), rtol=0, atol=1e-12)
    start = 0.0
    for end, each in zip(ends, drawn, strict=True):
        late = [client for client in each if SIZES[client] > last]
        assert sorted(row.client for row in end.unfinished) == late
        assert {row.why for row in end.unfinished} <= {"too late"}
        seconds = deadline if late else float(max(SIZES[client] for client in each))
        assert end.virtual_seconds == pytest.approx(start + seconds)
        start = end.virtual_seconds


@pytest.mark.parametrize("deadline", [None, 5.0])
def test_over_selection_takes_the_first(deadline: float | None) -> None:
    schedule = {"over_select": 0.7, "deadline_seconds": deadline}  # 3.4 is rounded up
    result, ends = federation.train("fedavg", per_round=2, rounds=4, fleet=EVEN, schedule=schedule)
    drawn = [federation.chosen(round, 4) for round in (1, 2, 3, 4)]
    who = [sorted(sorted(each, key=SIZES.__getitem__)[:2]) for each in drawn]
    if deadline is not None:
        who = [[client for client in each if SIZES[client] <= deadline] for each in who]
    assert clients(ends) == who
    np.testing.assert_allclose(federation.weights(result), averaged(who), rtol=0, atol=1e-12)
    for end, each, first in zip(ends, drawn, who, strict=True):
        assert sorted(row.client for row in end.unfinished) == sorted(set(each) - set(first))
        assert {row.why for row in end.unfinished} == {"not needed" if len(first) == 2 else "too late"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedssmu"])
def test_a_round_that_nobody_answers_changes_nothing_and_is_recorded(name: str) -> None:
    result, ends = federation.train(name, rounds=3, schedule={"deadline_seconds": 0.25})
    assert np.array_equal(federation.weights(result), federation.start())
    assert [end.train_loss for end in ends] == [None] * 3
    assert [end.virtual_seconds for end in ends] == [0.25, 0.5, 0.75]
    assert [(e.round, e.version, e.updates, e.bytes_up) for e in result.history] == [(r, 0, 0, 0) for r in (1, 2, 3)]
    assert [len(end.unfinished) for end in ends] == [3] * 3
    assert result.summary["jobs_lost"] == 9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {"schedule": {"deadline_seconds": 0.01}}),
        ("fedssmu", {"fleet": {"availability": 0.001, "availability_period": 10.0}}),
        ("fedasync", {"fleet": {"dropout": 0.99999}}),
        ("fedbuff", {"fleet": {"dropout": 0.99999}}),
    ],
)
def test_a_server_that_starves_says_so(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STARVED", 50)
    with pytest.raises(FedkeelError, match=r"starves.*fleet\.dropout.*schedule\.deadline_seconds"):
        watch(experiment(name, rounds=5000, evaluate_every=10_000, **settings))


# The end of a run.

PACES = {"fedavg": "barrier", "fedssmu": "stream", "fedasync": "periodic", "fedbuff": "concurrency"}


def limited(name: str, limit: float | None, **settings: Any) -> Watched:
    described = experiment(name, rounds=8, fleet={"speed_ratio": 4}, limit_seconds=limit, **settings)
    assert described.pace == PACES[name]
    return watch(described)


@pytest.mark.parametrize("name", PACES)
def test_a_run_that_ends_before_the_first_arrival_still_has_a_history(name: str) -> None:
    seen = limited(name, 0.5)
    (end,) = seen.ends
    assert end.evaluation is not None
    assert (end.round, end.virtual_seconds, end.train_loss, len(end.arrivals)) == (1, 0.5, None, 0)
    assert (end.evaluation.version, end.evaluation.updates, end.evaluation.virtual_seconds) == (0, 0, 0.5)
    assert end.evaluation.bytes_down == MODEL * len(seen.dispatched) > 0
    assert {row["why"] for row in seen.unfinished} == {"in flight"}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", PACES)
def test_a_limit_cuts_the_same_run_short(name: str, every: int) -> None:
    whole = limited(name, None)
    ends = [end.virtual_seconds for end in whole.ends]
    before = max((a.arrived for a in whole.arrivals if a.arrived < ends[4]), default=0.0)
    for limit in (ends[3], ends[3] + 1e-6, (before + ends[4]) / 2, np.nextafter(ends[4], 0)):
        cut = limited(name, float(limit), evaluate_every=every)
        done = [a for a in whole.arrivals if a.arrived <= limit]
        if name == "fedavg":
            done = [a for end in whole.ends[:4] for a in end.arrivals]
        assert cut.arrivals == done
        last = cut.ends[-1].evaluation
        assert last is not None
        assert last.updates == len(done)
        partial = len(done) > sum(len(end.arrivals) for end in whole.ends[:4])
        assert last.round == (5 if partial or every == 3 else 4)
        assert last.virtual_seconds == (limit if partial or every == 3 else ends[3])


@pytest.mark.slow
@pytest.mark.parametrize("name", PACES)
def test_a_target_and_evaluations_count_rounds_at_every_pace(name: str) -> None:
    seen = watch(experiment(name, rounds=5, evaluate_every=3))
    assert [end.round for end in seen.ends if end.evaluation] == [3, 5]
    stopped = watch(experiment(name, rounds=5, evaluate_every=2, target_accuracy=0.5, stop_at_target=True))
    assert len(stopped.ends) == 2
    missed = watch(experiment(name, rounds=5, evaluate_every=2, target_accuracy=0.6, stop_at_target=True))
    assert len(missed.ends) == 5


def hours(clients: int, seed: int) -> dict[str, list[float]]:  # noqa: ARG001
    """On for one second in the middle of every ten, all but the first, which is always on."""
    return {
        "availability": [1.0] + [0.1] * (clients - 1),
        "availability_period": [10.0] * clients,
        "availability_phase": [5.0] * clients,
    }


def middle(clients: int, seed: int) -> dict[str, list[float]]:
    """On for one second in the middle of every ten."""
    return {name: [column[-1]] * clients for name, column in hours(clients, seed).items()}


def test_devices_that_are_never_on_at_a_trigger_starve_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STARVED", 50)
    with pytest.raises(FedkeelError, match="starves"):
        watch(experiment("fedasync", fleet={"profile": f"{__name__}:middle"}, limit_seconds=3000))


@pytest.mark.parametrize("name", ["fedavg", "fedssmu", "fedbuff"])
def test_the_server_waits_for_devices_that_have_data(name: str) -> None:
    nothing = (np.zeros((0, federation.FEATURES)), np.zeros(0, dtype=np.int64))
    data = FederatedData.from_clients([nothing, *federation.clients()[1:]], test=federation.clients()[3])
    fleet = {"profile": f"{__name__}:hours", "fastest_job_seconds": 0.1}
    assert watch(experiment(name, fleet=fleet, limit_seconds=500), data).arrivals


def test_a_server_whose_first_jobs_take_long_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STARVED", 5)
    schedule = {"trigger_seconds": 0.1, "busy_share": 1.0}
    assert watch(experiment("fedasync", per_round=1, schedule=schedule)).arrivals


def test_a_limit_flushes_what_is_buffered() -> None:
    algorithm = {"name": "fedbuff", "buffer_size": 2, "rest": "flush"}
    seen = watch(experiment(algorithm, per_round=1, limit_seconds=5))
    assert int(seen.simulation.core.model.state.memory["count"]) == 0


def test_a_summary_counts_every_job() -> None:
    result, _ = federation.train("fedavg", rounds=1, limit_seconds=12, fleet={"speed_ratio": 3})
    summary = result.summary
    assert summary["updates"] + summary["jobs_lost"] + summary["jobs_in_flight"] == 3


def test_fine_tuning_goes_on_at_the_last_rounds_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def asked(models: Any, executor: Any, data: Any, round: int, lr: Tensor) -> Any:
        rates.append(float(lr[0]))
        return finetuned(models, executor, data, round, lr)

    monkeypatch.setattr("fedkeel.runner.clients.finetuned", asked)
    federation.train("fedasync", rounds=2, local={"lr_decay": 0.5}, finetune={"epochs": 1})
    assert rates == [LR / 2]
