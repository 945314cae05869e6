"""Timelines by hand at every pace, jobs that are told to hurry, and what the records and the settings say."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkeel import Arrival, Experiment, RoundEnd, run, streams
from fedkeel.cli import app
from fedkeel.errors import InputError
from fedkeel.record.rows import Unfinished
from tests.helpers import federation
from tests.helpers.clock import Watched, experiment, watch
from tests.helpers.federation import EXECUTORS, LR, SEED, SIZES, N

SECONDS = {"seconds_per_sample": 0.5}
"""A job of two epochs takes as many seconds as its client has samples: 3, 9, 4, 12, 1, 7."""


def drawn(wave: int, count: int, free: list[int]) -> list[int]:
    chosen = streams.generator(SEED, "sampling", wave).choice(free, min(count, len(free)), replace=False)
    return sorted(chosen.tolist())


def sent(seen: Watched) -> list[tuple[float, int, int]]:
    """(When, to whom, which version)."""
    return [(each.time, each.client, each.version) for each in seen.dispatched]


def back(seen: Watched) -> list[tuple[float, int, int, int]]:
    """(When, from whom, the version that it started from, staleness)."""
    return [(a.arrived, a.client, a.start_version, a.staleness) for a in seen.arrivals]


def by_hand(updates: int, every: float | None, wanted: int, most: int) -> tuple[list[Any], list[Any]]:
    """Every arrival is a new version. Dispatches every so many seconds; or whenever somebody is back."""
    now, wave, version = 0.0, 0, 0
    work: dict[int, tuple[float, int]] = {}
    out: list[Any] = []
    home: list[Any] = []
    while True:
        count = min(wanted, most - len(work)) if every else most - len(work)
        if count > 0:
            wave += 1
            for client in drawn(wave, count, [client for client in range(N) if client not in work]):
                out.append((now, client, version))
                work[client] = now + SIZES[client], version
        due = now + every if every else min(end for end, _ in work.values())
        while (due, N) >= (first := min((end, client) for client, (end, _) in work.items()) if work else (np.inf, 0)):
            end, client = first
            _, start = work.pop(client)
            home.append((end, client, start, version - start))
            version += 1
            if len(home) == updates:
                return out, home
        now = due


@pytest.mark.parametrize(("every", "share", "wanted"), [(2.0, 0.5, 3), (3.0, 1.0, 2), (1.0, 0.7, 1), (12.0, 1.0, 6)])
def test_every_so_many_seconds(every: float, share: float, wanted: int) -> None:
    """Jobs last whole seconds, so many arrive at the moment of a dispatch: they come first, in order of clients."""
    schedule = {"trigger_seconds": every, "busy_share": share}
    seen = watch(experiment("fedasync", rounds=5, per_round=wanted, fleet=SECONDS, schedule=schedule))
    out, home = by_hand(5 * wanted, every, wanted, int(share * N))
    assert back(seen) == home
    assert sent(seen) == out
    assert {end for end, *_ in home} & {time for time, *_ in out}


@pytest.mark.parametrize("most", [1, 2, 4, 6])
def test_always_so_many_at_work(most: int) -> None:
    schedule = {"concurrency": most, "pace": "concurrency"}
    seen = watch(experiment("fedasync", rounds=5, fleet=SECONDS, schedule=schedule))
    out, home = by_hand(15, None, 3, most)
    assert (sent(seen), back(seen)) == (out, home)
    assert [len(end.arrivals) for end in seen.ends] == [3] * 5


def test_rounds_whose_updates_are_received_at_once() -> None:
    """Who asks at the moment of an arrival gets the newer model."""
    seen = watch(experiment({"name": "fedssmu", "slot": "first"}, rounds=5, per_round=4, fleet=SECONDS))
    start, version = 0.0, 0
    for round, end in enumerate(seen.ends, 1):
        order = sorted((SIZES[client], client) for client in drawn(round, 4, list(range(N))))
        assert [(a.arrived - start, a.client) for a in end.arrivals] == pytest.approx(np.array(order))
        assert [a.staleness for a in end.arrivals] == [0, 1, 2, 3]
        for arrival in end.arrivals:
            asked = SIZES[arrival.client] / 2
            newer = sum(seconds <= asked for seconds, _ in order)
            assert arrival.start_version == version
            assert (arrival.slot, arrival.asked) == (1 if newer else None, start + asked)
            assert arrival.fresh_version == (version + newer if newer else None)
        start, version = start + order[-1][0], version + 4
        assert end.virtual_seconds == start


def equal(clients: int, seed: int) -> dict[str, list[float]]:  # noqa: ARG001
    """Devices that take four seconds for a job of four epochs, whatever its size."""
    return {"seconds_per_sample": [1 / size for size in SIZES]}


def test_what_happens_at_one_instant_is_in_order() -> None:
    """Arrivals by client, then requests, then dispatches: all from the newest model."""
    fleet, schedule = {"profile": f"{__name__}:equal"}, {"trigger_seconds": 2.0, "busy_share": 1.0}
    algorithm = {"name": "fedasmu", "slot": "middle"}
    more: dict[str, Any] = {"fleet": fleet, "schedule": schedule, "local": {"epochs": 4}}
    seen = watch(experiment(algorithm, per_round=2, rounds=4, **more))
    first = drawn(1, 2, list(range(N)))
    second = drawn(2, 2, [client for client in range(N) if client not in first])
    third = drawn(3, 2, [client for client in range(N) if client not in second])
    assert sent(seen)[:6] == [(0, c, 0) for c in first] + [(2, c, 0) for c in second] + [(4, c, 2) for c in third]
    rows = [(a.arrived, a.client, a.start_version, a.staleness, a.fresh_version) for a in seen.arrivals]
    # At 2 s nothing is newer; at 4 s two have arrived before the second pair asks; at 6 s that has before the third.
    assert rows[:2] == [(4, client, 0, number, None) for number, client in enumerate(first)]
    assert rows[2:4] == [(6, client, 0, 2 + number, 2) for number, client in enumerate(second)]
    assert rows[4:6] == [(8, client, 2, 2 + number, 4) for number, client in enumerate(third)]


# Devices that are told to send what they have.

PORT = {"name": "port", "minimum": 1, "staleness_bound": 1}


def hurried(latency: float, **settings: Any) -> Watched:
    described: dict[str, Any] = {
        "fleet": {"speed_ratio": 9, "latency_seconds": latency},
        "schedule": {"concurrency": 5},
        "local": {"epochs": 6},
        "rounds": 8,
        **settings,
    }
    return watch(experiment(PORT, **described))


@pytest.mark.parametrize("latency", [0.0, 0.7])
def test_who_is_told_does_fewer_epochs_and_arrives_earlier(latency: float) -> None:
    seen = hurried(latency)
    fleet = seen.simulation.world.flights.fleet
    published = [a.arrived for a in seen.arrivals]  # a version each
    told = [a for a in seen.arrivals if a.epochs < 6]
    assert len(told) > 3
    for arrival in seen.arrivals:
        epoch = fleet.seconds[arrival.client] * SIZES[arrival.client] / np.mean(SIZES) / 6
        place = arrival.start_version + 1  # of the arrival that leaves it two versions behind
        heard = published[place] + latency if place < len(published) else np.inf
        done = max(1, int((heard - arrival.began) / epoch + 1e-9)) if heard < np.inf else 6
        if done >= 6 or published[place] >= arrival.began + 6 * epoch:
            assert arrival.epochs == 6
            assert arrival.finished == pytest.approx(arrival.began + 6 * epoch)
        else:
            assert arrival.epochs == done
            assert arrival.finished == pytest.approx(max(heard, arrival.began + done * epoch))
            assert arrival.began + epoch - 1e-9 <= arrival.finished < arrival.began + 6 * epoch
    if latency:
        return
    asked = {order.job: order for order in seen.executor.trained}  # the last one counts
    assert sum(order.epochs < 6 for order in asked.values()) >= len(told)
    assert all(len(order.lr) == order.epochs for order in asked.values())


@pytest.mark.slow
def test_its_weights_are_those_of_a_job_of_so_many_epochs() -> None:
    """Client by client against plain SGD in numpy; the model is followed by the weights in the record."""
    ends: list[RoundEnd] = []
    local = {"epochs": 6, "batch_size": federation.BATCH, "lr": LR}
    described = experiment(
        PORT,
        rounds=6,
        fleet={"speed_ratio": 9},
        schedule={"concurrency": 5},
        local=local,
        executor=EXECUTORS["stack 3"],
    )
    result = run(described, data=federation.data(), model=federation.net(), progress=ends.append)
    arrivals = [a for end in ends for a in end.arrivals]
    assert any(a.epochs < 6 for a in arrivals)
    seen = watch(described)
    waves = {time: wave for wave, time in enumerate(dict.fromkeys(each.time for each in seen.dispatched), 1)}
    models = [federation.start()]
    for arrival in arrivals:
        w = models[arrival.start_version]
        for batch in federation.batches(waves[arrival.dispatched], arrival.client, arrival.epochs):
            w = w - LR * federation.gradient(w, *batch)
        models.append(models[-1] + w - models[arrival.start_version])  # a buffer of one
    np.testing.assert_allclose(federation.weights(result), models[-1], rtol=0, atol=1e-11)


def test_a_device_that_has_merged_and_is_told_says_what_it_did() -> None:
    algorithm = {**PORT, "client": "fedasmu", "slot": "first"}
    _, ends = federation.train(algorithm, rounds=8, local={"epochs": 6}, fleet={"speed_ratio": 9})
    arrivals = [a for end in ends for a in end.arrivals]
    assert any(a.epochs < 6 for a in arrivals)
    for arrival in arrivals:
        merged = arrival.notes is not None and arrival.notes.get("merge_weight", 0) > 0
        assert (arrival.slot is not None) == (arrival.fresh_version is not None) == merged
        assert arrival.slot is None or 1 <= arrival.slot < arrival.epochs


# Devices that fail.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedasync", "fedbuff"])
def test_so_many_jobs_are_lost(name: str) -> None:
    seen = watch(experiment(name, rounds=120, evaluate_every=1000, fleet={"dropout": 0.3}))
    lost = sum(row["why"] == "dropped out" for row in seen.unfinished)
    jobs = lost + len(seen.arrivals)
    assert jobs > 350
    assert abs(lost / jobs - 0.3) < 4 * np.sqrt(0.3 * 0.7 / jobs)


@pytest.mark.slow
def test_whoever_goes_off_loses_the_job_and_gets_the_next_one_when_it_is_back() -> None:
    fleet = {**SECONDS, "availability": 0.5, "availability_period": 16.0}
    seen = watch(experiment("fedbuff", rounds=40, evaluate_every=100, fleet=fleet))
    devices = seen.simulation.world.flights.fleet
    lost = [row for row in seen.unfinished if row["why"] == "went offline"]
    assert {row["client"] for row in lost} >= {1, 3}  # 9 and 12 s do not fit into 8
    assert not {a.client for a in seen.arrivals} & {1, 3}
    for each in seen.dispatched:
        assert (each.time - devices.phase[each.client] + 1e-9) % 16 < 8
    for row in lost:
        assert (row["ended"] - devices.phase[row["client"]]) % 16 == pytest.approx(8)
        assert row["dispatched"] + SIZES[row["client"]] > row["ended"]


# What does not depend on the executor, and what is written down.

RUNS: dict[str, dict[str, Any]] = {
    "fedasmu": {"schedule": {"trigger_seconds": 2.0, "busy_share": 1.0}},
    "fedssmu": {"schedule": {"over_select": 0.5, "deadline_seconds": 15.0}},
    "port": {"algorithm": PORT, "schedule": {"concurrency": 5}},
    "fedavg": {},
}
FLEET = {
    "speed_ratio": 4, "uplink_mbps": 1e-3, "downlink_mbps": 1e-3, "latency_seconds": 0.25, "dropout": 0.1, "rho": 0.3
}  # fmt: skip
TIMES = (
    "client", "round", "start_version", "staleness", "epochs", "steps", "dispatched", "began", "finished", "arrived",
    "slot", "fresh_version", "asked", "merged", "resumed", "accepted", "bytes_up", "bytes_down",
)  # fmt: skip


def described(name: str, executor: str) -> dict[str, Any]:
    settings = {"algorithm": name, **RUNS[name]}
    return {"local": {"epochs": 4}, "fleet": FLEET, "executor": executor, "rounds": 3, **settings}


def timeline(ends: list[RoundEnd]) -> list[Any]:
    return [
        (end.virtual_seconds, end.unfinished, [[getattr(a, name) for name in TIMES] for a in end.arrivals])
        for end in ends
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_timeline_does_not_depend_on_the_executor(name: str) -> None:
    first, ends = federation.train(**described(name, "serial"))
    for executor in EXECUTORS:
        other, more = federation.train(**described(name, executor))
        assert timeline(more) == timeline(ends)
        np.testing.assert_allclose(federation.weights(other), federation.weights(first), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_records_say_what_the_rounds_said(name: str, tmp_path: Path) -> None:
    settings = described(name, "serial")
    local = {"epochs": 4, "batch_size": 4, "lr": LR}
    ends: list[RoundEnd] = []
    settings |= {"executor": EXECUTORS["serial"], "local": local, "seed": SEED, "per_round": 3, "dtype": "float64"}
    result = run(
        Experiment(**settings), tmp_path / "run", data=federation.data(), model=federation.net(), progress=ends.append
    )

    def rows(file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "run" / file).read_text().splitlines()]

    said = [a for end in ends for a in end.arrivals]
    assert [Arrival(**row) for row in rows("clients.jsonl")] == said
    optional = {field.name for field in fields(Arrival)} - {
        "slot",
        "fresh_version",
        "asked",
        "merged",
        "resumed",
        "accepted",
        "notes",
    }
    assert all(row.keys() >= optional for row in rows("clients.jsonl"))
    unfinished, jobs = rows("unfinished.jsonl"), [row for end in ends for row in end.unfinished]
    assert [Unfinished(**row) for row in unfinished[: len(jobs)]] == jobs
    assert {row["why"] for row in unfinished[len(jobs) :]} <= {"in flight", "dropped out", "went offline"}
    counts = [
        sum(row["why"] == "in flight" for row in unfinished),
        sum(row["why"] != "in flight" for row in unfinished),
    ]
    assert counts == [result.summary["jobs_in_flight"], result.summary["jobs_lost"]]
    names = {"client", "round", "start_version", "dispatched", "began", "ended", "why", "bytes_down", "bytes_up"}
    assert all(row.keys() == names for row in unfinished)
    assert [(row["round"], row["virtual_seconds"]) for row in rows("history.jsonl")] == [
        (end.round, end.virtual_seconds) for end in ends
    ]
    assert [row["train_loss"] for row in rows("rounds.jsonl")] == [end.train_loss for end in ends]
    assert Experiment.load(tmp_path / "run" / "experiment.yaml") == result.experiment


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedavg", "schedule": {"pace": "periodic"}},
         r"schedule\.pace must be auto or barrier with fedavg; got periodic"),
        ({"algorithm": "scaffold", "schedule": {"pace": "stream"}},
         r"schedule\.pace must be auto or barrier with scaffold; got stream"),
        ({"algorithm": "fedasmu", "schedule": {"pace": "barrier"}},
         r"schedule\.pace must be auto, stream, periodic or concurrency with fedasmu; got barrier"),
        ({"algorithm": "fedavg", "schedule": {"pace": "often"}}, r"schedule\.pace must be .*concurrency'; got 'often'"),
        ({"algorithm": "fedavg", "schedule": {"concurrency": 4}}, r"schedule\.concurrency=4 .*pace barrier; remove"),
        ({"algorithm": "fedssmu", "schedule": {"concurrency": 4}}, r"schedule\.concurrency=4 .*pace stream; remove"),
        ({"algorithm": "fedasync", "schedule": {"concurrency": 4}}, r"concurrency=4 .*pace periodic; remove"),
        ({"algorithm": "fedasync", "schedule": {"deadline_seconds": 4}}, r"deadline_seconds=4 .*periodic; remove"),
        ({"algorithm": "fedbuff", "schedule": {"deadline_seconds": 4}}, r"deadline_seconds=4 .*concurrency; remove"),
        ({"algorithm": "fedbuff", "schedule": {"over_select": 0.5}}, r"over_select=0\.5 .*concurrency; remove it"),
        ({"algorithm": "fedbuff", "schedule": {"pace": "periodic", "over_select": 2}},
         r"over_select=2 .*periodic; remove it or choose another schedule\.pace"),
        ({"algorithm": "fedasync", "sampling": "scheme1"}, r"sampling must be uniform with fedasync.*; got scheme1"),
        ({"schedule": {"trigger_seconds": 0}}, r"schedule\.trigger_seconds must be at least 0\.001; got 0"),
        ({"schedule": {"busy_share": 1.5}}, r"schedule\.busy_share must be at most 1; got 1\.5"),
        ({"schedule": {"busy_share": 0}}, r"schedule\.busy_share must be greater than 0; got 0"),
        ({"schedule": {"over_select": -1}}, r"schedule\.over_select must be at least 0; got -1"),
        ({"schedule": {"deadline_seconds": -1}}, r"schedule\.deadline_seconds must be greater than 0; got -1"),
        ({"algorithm": "fedbuff", "schedule": {"concurrency": 0}},
         r"schedule\.concurrency must be greater than 0; got 0"),
        ({"schedule": {"rhythm": 1}}, r"schedule\.rhythm is not a setting; .*trigger_seconds"),
        ({"limit_seconds": 0}, r"limit_seconds must be greater than 0; got 0"),
    ],
)  # fmt: skip
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(**settings)


@pytest.mark.parametrize(
    ("algorithm", "schedule", "pace"),
    [
        ("fedavg", {}, "barrier"),
        ("fedssmu", {}, "stream"),
        ("fedasmu", {}, "periodic"),
        ("fedbuff", {}, "concurrency"),
        ("fedbuff", {"pace": "stream", "deadline_seconds": 3, "over_select": 1}, "stream"),
        ("fedasmu", {"pace": "concurrency", "concurrency": 7}, "concurrency"),
        ("fedssmu", {"pace": "periodic"}, "periodic"),
        ("fedavg", {"pace": "barrier", "deadline_seconds": 3}, "barrier"),
    ],
)
def test_paces_and_their_limits(algorithm: str, schedule: dict[str, Any], pace: str) -> None:
    described = Experiment(algorithm=algorithm, schedule=schedule, clients=21, per_round=4)
    assert described.pace == pace
    assert described.concurrency == (schedule.get("concurrency") or 12)
    assert described.busy_limit == 10
    assert described.replace(clients=5).concurrency == 5


def test_an_asynchronous_experiment_survives_yaml(tmp_path: Path) -> None:
    asked = [
        "algorithm.name=fedasmu", "algorithm.slot=learned", "schedule.trigger_seconds=2.5", "schedule.busy_share=0.25",
        "limit_seconds=750", "fleet.speed_ratio=5", "fleet.profile=tiers", "fleet.dropout=0.1",
    ]  # fmt: skip
    shown = CliRunner().invoke(app, ["show", "--set", *asked])
    assert shown.exit_code == 0
    (tmp_path / "shown.yaml").write_text(shown.output)
    loaded, meant = Experiment.load(tmp_path / "shown.yaml"), Experiment.load(None, asked)
    assert loaded.model_dump() == meant.model_dump()
    assert (loaded.schedule.trigger_seconds, loaded.limit_seconds) == (2.5, 750)
    assert (loaded.schedule.pace, loaded.pace) == ("auto", "periodic")
    assert Experiment.load(tmp_path / "shown.yaml").to_yaml() == loaded.to_yaml()
