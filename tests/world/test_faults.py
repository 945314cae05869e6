"""Faults of the fleet: every job has one fate, bytes add up, and the run goes on with whoever came."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel import Experiment, RoundEnd, run
from fedkeel.errors import FedkeelError
from fedkeel.params import FlatModel
from fedkeel.record.codec import decode, encode
from fedkeel.runner.simulation import Simulation
from fedkeel.server import core
from fedkeel.server import events as ev
from fedkeel.world.faults import FAULTS, FaultSettings
from tests.helpers import federation
from tests.helpers.clock import ASYNCHRONOUS, METHODS, NOTES, Instant, experiment, experiments
from tests.helpers.federation import EPOCHS, LR, SIZES, N
from tests.helpers.folders import SETTLED, rows

PACES: dict[str, dict[str, Any]] = {
    "barrier": {"algorithm": "scaffold", "schedule": {"deadline_seconds": 15, "over_select": 0.5}},
    "stream": {"algorithm": "fedssmu", "schedule": {"deadline_seconds": 15, "over_select": 0.5}},
    "periodic": {"algorithm": "fedasmu", "schedule": {"trigger_seconds": 3, "busy_share": 0.7}},
    "concurrency": {"algorithm": {"name": "fedbuff", "buffer_size": 2}, "schedule": {"concurrency": 4}},
}
CORRUPTIONS = {
    "nan": "not finite",
    "infinite": "not finite",
    "shape": "wrong shape",
    "dtype": "wrong dtype",
    "future": "from the future",
    "huge": "norm",
}
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "dropout": {"fleet": {"dropout": 0.4}},
    "hang": {"faults": {"hang": 0.4, "hang_seconds": 20}},
    "leave": {"faults": {"leave": 0.05}},
    "lost_upload": {"faults": {"lost_upload": 0.4}},
    "twice": {"faults": {"twice": 0.5, "again_seconds": 2}},
    "old_job": {"faults": {"old_job": 0.4}},
    **{how: {"faults": {"corrupt": 0.4, "corruptions": [how]}, "gate": {"max_norm": 10}} for how in CORRUPTIONS},
}
Row = dict[str, Any]


@dataclass
class Books:
    """What was written down of a run, job by job."""

    arrived: list[Row]
    unfinished: list[Row]
    refused: list[Row]
    jobs: dict[tuple[int, float], tuple[str, Row]] = field(default_factory=dict)
    """By (client, when it was dispatched): what became of it."""

    def __post_init__(self) -> None:
        ends = [("arrived", row) for row in self.arrived] + [(row["why"], row) for row in self.unfinished]
        ends += [(row["reason"], row) for row in self.refused if row["dispatched"] is not None]
        self.jobs = {(row["client"], row["dispatched"]): (fate, row) for fate, row in ends}
        assert len(self.jobs) == len(ends), "a job has two fates"

    @property
    def strays(self) -> list[Row]:
        """Refused, though no job came to an end with it: once more, or late."""
        return [row for row in self.refused if row["dispatched"] is None]

    def bytes(self, which: str) -> int:
        return sum(int(row[which]) for row in (*self.arrived, *self.unfinished, *self.refused))

    def spans(self) -> dict[int, list[tuple[float, float, str]]]:
        """Of each client: when its jobs began and ended, and how."""
        found = defaultdict(list)
        for (client, dispatched), (fate, row) in self.jobs.items():
            found[client].append((dispatched, row.get("ended", row.get("arrived")), fate))
        return {client: sorted(spans) for client, spans in found.items()}

    def check(self) -> None:
        """Devices do one job at a time, and none when they have left."""
        for spans in self.spans().values():
            assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(spans))
            assert "left for good" not in [fate for _, _, fate in spans[:-1]]


def books(folder: Path) -> Books:
    return Books(rows(folder, "clients"), rows(folder, "unfinished"), rows(folder, "refused"))


def go(folder: Path, pace: str, **settings: Any) -> Books:
    """Run it, and read what it left."""
    settings = {**PACES[pace], **settings}
    fleet = {"speed_ratio": 3, "uplink_mbps": 1e-2, **settings.pop("fleet", {})}
    common = {"rounds": 6, "executor": SETTLED["serial"], "fleet": fleet}
    described = experiment(settings.pop("algorithm"), **{**common, **settings})
    assert described.pace == pace
    run(described, folder, data=federation.data(), model=federation.net())
    return books(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pace", PACES)
def test_every_job_has_one_fate_and_bytes_add_up(pace: str, kind: str, tmp_path: Path) -> None:
    """From the files alone: a job that were not in them would be missing among the bytes that went down."""
    told = go(tmp_path / "a", pace, **KINDS[kind])
    told.check()
    history, summary = rows(tmp_path / "a", "history"), json.loads((tmp_path / "a" / "summary.json").read_text())
    assert history[-1]["bytes_up"] == summary["bytes_up"] == told.bytes("bytes_up")
    assert history[-1]["bytes_down"] == summary["bytes_down"] == told.bytes("bytes_down")
    assert history[-1]["updates"] == len(told.arrived)
    fates = Counter(fate for fate, _ in told.jobs.values())
    assert summary["jobs_in_flight"] == fates["in flight"]
    assert summary["jobs_lost"] == len(told.unfinished) - fates["in flight"]
    assert summary["uploads_turned_away"] == Counter(row["reason"] for row in told.refused)
    per_round = rows(tmp_path / "a", "rounds")
    assert [row["round"] for row in per_round] == [*range(1, len(history) + 1)]
    assert sum(row["arrived"] for row in per_round) == len(told.arrived)
    assert sum(row["refused"] for row in per_round) == len(told.refused)
    assert sum(row["lost"] for row in per_round) == len(told.unfinished) - fates["in flight"]
    _shows(kind, told, fates)


def _shows(kind: str, told: Books, fates: Counter[str]) -> None:
    """The fault was there, and only that."""
    late = {"too late", "not needed"}  # of rounds with a deadline
    usual = {"arrived", "in flight"} | late
    strays = Counter(row["reason"] for row in told.strays)
    match kind:
        case "none":
            assert set(fates) <= usual
        case "dropout":
            assert fates["dropped out"]
            assert set(fates) <= usual | {"dropped out"}
        case "hang":
            slow = [row for row in told.arrived if row["finished"] - row["began"] > 20]
            assert slow or strays["old job"]
            assert set(fates) <= usual
        case "leave":
            assert fates["left for good"]
            assert set(fates) <= usual | {"left for good"}
        case "lost_upload":
            assert fates["upload lost"]
            assert set(fates) <= usual | {"upload lost"}
            lost = [row for row in told.unfinished if row["why"] == "upload lost"]
            assert {row["bytes_up"] for row in lost} == {row["bytes_up"] for row in told.arrived}
        case "twice":
            assert 0 < strays["duplicate"] <= fates["arrived"]
            assert set(fates) <= usual
        case "old_job":
            assert fates["duplicate"] + fates["old job"] > 0
            assert set(fates) <= usual | {"duplicate", "old job"}
        case _:
            assert fates[CORRUPTIONS[kind]]
            assert set(fates) <= usual | {CORRUPTIONS[kind]}
    assert set(strays) <= {"hang": {"old job"}, "twice": {"duplicate"}}.get(kind, set())


@pytest.mark.slow
def test_faults_that_never_happen_change_nothing(tmp_path: Path) -> None:
    for pace in ("barrier", "concurrency"):
        plain, other = (go(tmp_path / f"{pace}{n}", pace, faults=f) for n, f in enumerate([{}, {"hang": 1e-12}]))
        assert plain.arrived == other.arrived
        assert plain.unfinished == other.unfinished


# Hanging devices.


@pytest.mark.parametrize("pace", ["barrier", "stream"])
def test_a_device_that_hangs_past_the_deadline_is_left_alone_until_it_is_back(pace: str, tmp_path: Path) -> None:
    told = go(tmp_path / "a", pace, faults={"hang": 0.6, "hang_seconds": 31}, rounds=12)
    late = [row for row in told.strays if row["reason"] == "old job"]
    assert len(late) > 3
    for row in late:
        spans = told.spans()[row["client"]]
        (given_up,) = [
            (begin, end)
            for begin, end, fate in spans
            if fate in ("too late", "not needed") and begin + 31 < row["arrived"] and end < row["arrived"] <= end + 31
        ][-1:]
        assert not [begin for begin, _, _ in spans if given_up[0] < begin < row["arrived"]]


@pytest.mark.parametrize("pace", ["barrier", "stream"])
def test_everybody_hangs_and_the_run_goes_on_when_they_are_back(pace: str, tmp_path: Path) -> None:
    schedule = {"deadline_seconds": 5}
    fleet = {"seconds_per_sample": 0.1, "speed_ratio": 1}
    told = go(tmp_path / "a", pace, faults={"hang": 1.0, "hang_seconds": 50}, schedule=schedule, fleet=fleet, rounds=6)
    ends = [row["virtual_seconds"] for row in rows(tmp_path / "a", "history")]
    assert ends[:2] == [5, 10]
    assert ends[2] > 50
    assert not told.arrived
    assert {row["version"] for row in rows(tmp_path / "a", "history")} == {0}
    assert {fate for fate, _ in told.jobs.values()} == {"too late"}
    assert len(told.strays) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["periodic", "concurrency"])
def test_without_a_deadline_a_hanging_device_is_only_late(pace: str, tmp_path: Path) -> None:
    told = go(tmp_path / "a", pace, faults={"hang": 1.0, "hang_seconds": 50})
    assert not told.refused
    assert len(told.arrived) == 18
    for row in told.arrived:
        assert row["finished"] - row["began"] > 50


# Devices that leave, links that lose.


@pytest.mark.parametrize("pace", PACES)
def test_when_all_have_left_the_server_starves(pace: str, tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match=r"starves: all devices that have data had left for good by .*; .*s\.leave"):
        go(tmp_path / "a", pace, faults={"leave": 1.0}, schedule={}, fleet={"uplink_mbps": None})
    told = books(tmp_path / "a")
    told.check()
    assert not told.arrived
    assert sorted(row["client"] for row in told.unfinished) == [*range(N)]
    assert {row["why"] for row in told.unfinished} == {"left for good"}


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES)
def test_links_that_lose_everything_starve_the_server(
    pace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "STARVED", 20)
    with pytest.raises(FedkeelError, match=r"starves: \d+ (rounds|jobs) in a row brought no update"):
        go(tmp_path / "a", pace, faults={"lost_upload": 1.0}, schedule={}, rounds=100, evaluate_every=1000)


def test_a_lost_upload_changes_the_client_and_nobody_else() -> None:
    """SCAFFOLD: c_i is that of the job that did arrive, (x - y) / (K lr); the server's x and c are as they were."""
    lost, _ = federation.train("scaffold", rounds=1, per_round=N, faults={"lost_upload": 1.0})
    came, _ = federation.train("scaffold", rounds=1, per_round=N)
    kept, known = lost.simulation.world.desk.kept, came.simulation.world.desk.kept
    assert kept.keys() == known.keys() == set(range(N))
    for client in range(N):
        w, steps = federation.start(), 0
        for batch in federation.batches(1, client):
            w, steps = w - LR * federation.gradient(w, *batch), steps + 1
        assert steps == EPOCHS * -(-SIZES[client] // federation.BATCH)
        by_hand = (federation.start() - w) / (steps * LR)
        np.testing.assert_allclose(kept[client]["c"].numpy(), by_hand, rtol=0, atol=1e-13)
        assert torch.equal(kept[client]["c"], known[client]["c"])
    assert np.array_equal(federation.weights(lost), federation.start())
    state = lost.simulation.core.model.state
    assert not state.memory["c"].any()
    assert lost.simulation.core.model.version == 0
    assert lost.summary["bytes_up"] == came.summary["bytes_up"]
    assert lost.summary["jobs_lost"] == N


@pytest.mark.parametrize("fault", ["old_job", "corrupt"])
def test_a_refused_upload_changes_the_client_too(fault: str) -> None:
    result, ends = federation.train("scaffold", rounds=2, per_round=N, faults={fault: 1.0})
    assert len(ends[1].refused) == N
    assert set(result.simulation.world.desk.kept) == set(range(N))
    assert result.simulation.core.model.version == (1 if fault == "old_job" else 0)  # at first there is no job before


def test_a_device_that_fails_in_mid_job_has_what_it_had() -> None:
    for fault in ({"fleet": {"dropout": 0.999999}}, {"faults": {"leave": 1.0}}):
        result, _ = federation.train("scaffold", rounds=1, per_round=N, **fault)
        assert not result.simulation.world.desk.kept
        assert result.summary["bytes_up"] == 0


@pytest.mark.slow
def test_the_second_upload_is_refused_whenever_it_comes() -> None:
    """At once, when the device has another job, or after that, too."""
    plain, _ = federation.train("fedbuff", rounds=8)
    for again in (1e-6, 5.0, 15.0):
        result, ends = federation.train("fedbuff", rounds=8, faults={"twice": 1.0, "again_seconds": again})
        strays = [row for end in ends for row in end.refused]
        assert np.array_equal(federation.weights(result), federation.weights(plain))
        assert strays
        assert max(Counter(row.job for row in strays).values()) == 1
        assert {row.reason for row in strays} <= {"duplicate", "old job"}


# What is drawn.


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(0, 2**32), st.integers(1, 100))
def test_at_most_one_fault_a_job_and_always_the_same(chances: list[float], seed: int, wave: int) -> None:
    total = sum(chances)
    chances = [chance / total for chance in chances] if total > 1 else chances
    names = [*FAULTS, "corrupt"]
    drawn = FaultSettings(**dict(zip(names, chances, strict=True)))
    clients = np.arange(50)
    what, shares = drawn.draw(clients, seed, wave)
    assert what == drawn.draw(clients, seed, wave)[0]
    assert drawn.draw(clients[7:9], seed, wave)[0] == what[7:9]
    assert ((shares >= 0) & (shares < 1)).all()
    possible = {name for name, chance in zip(names, chances, strict=True) if chance}
    possible |= set(drawn.corruptions) if chances[-1] else set()
    assert set(what) <= possible | {""}


def test_faults_happen_as_often_as_they_should() -> None:
    drawn = FaultSettings(hang=0.1, leave=0.2, lost_upload=0.05, twice=0.15, old_job=0.1, corrupt=0.25)
    what, shares = drawn.draw(np.arange(20_000), 3, 1)
    counts = Counter("corrupt" if name in drawn.corruptions else name for name in what)
    for name, chance in zip([*FAULTS, "corrupt"], drawn.chances, strict=True):
        assert abs(counts[name] / 20_000 - chance) < 0.015
    ways = Counter(name for name in what if name in drawn.corruptions)
    assert all(abs(ways[how] / counts["corrupt"] - 0.2) < 0.03 for how in drawn.corruptions)
    assert abs(float(shares.mean()) - 0.5) < 0.01


# All together.


@st.composite
def faulty_experiments(draw: st.DrawFn) -> Experiment:
    described = draw(experiments())
    chance = st.sampled_from([0.0, 0.0, 0.1, 0.3])
    faults = {name: draw(chance) for name in ("hang", "lost_upload", "twice", "old_job")}
    faults |= {"leave": draw(st.sampled_from([0.0, 0.0, 0.02])), "corrupt": draw(st.sampled_from([0.0, 0.1]))}
    total = sum(faults.values())
    faults = {name: value / max(total, 1.0) for name, value in faults.items()}
    faults["hang_seconds"] = draw(st.sampled_from([1.0, 20.0, 150.0]))
    faults["again_seconds"] = draw(st.sampled_from([0.5, 5.0, 60.0]))
    return described.replace(faults=faults)


@dataclass
class Seen:
    simulation: Simulation
    dispatched: list[tuple[int, int, float]] = field(default_factory=list)
    """(Job, client, when)"""
    ends: list[RoundEnd] = field(default_factory=list)
    starved: str = ""

    def books(self) -> Books:
        arrived = [vars(a) for end in self.ends for a in end.arrivals]
        rest = self.simulation.rest()
        refused = [vars(row) for end in (*self.ends, rest) for row in end.refused]
        unfinished = [vars(row) for end in (*self.ends, rest) for row in end.unfinished]
        return Books(arrived, unfinished, refused)


def simulate(described: Experiment) -> Seen:
    data, model = federation.data().to(torch.float64), FlatModel(federation.net().double())
    says = NOTES if described.algorithm.name in ("fedasmu", "fedssmu") else ()
    running = Simulation(described, data, model, Instant(says))
    seen, carry_out = Seen(running), running.world.carry_out

    def watched(command: ev.Command) -> list[ev.Event]:
        if isinstance(command, ev.Send):
            seen.dispatched += [(order.job, order.client, running.world.now) for order in command.orders]
        return carry_out(command)

    running.world.carry_out = watched  # type: ignore[method-assign]
    return seen


def follow(seen: Seen, rounds: int | None = None) -> None:
    """To the end, or so far."""
    try:
        for end in seen.simulation.rounds():
            seen.ends.append(end)
            _check_idle(seen.simulation)
            if len(seen.ends) == rounds:
                return
    except FedkeelError as error:
        seen.starved = str(error)


def _check_idle(running: Simulation) -> None:
    """Who is neither free nor at work nor adrift is gone."""
    flights = running.world.flights
    away = set(np.flatnonzero(~flights.idle).tolist()) - set(flights.by_client) - set(flights.adrift)
    assert not away or running.experiment.faults.leave
    assert not set(flights.by_client) & set(flights.adrift)
    jobs = {flight.order.job for flight in flights.by_client.values()}
    assert running.world.desk._ready.keys() <= jobs
    assert running.world.desk._results.keys() <= jobs
    at_work = running.core.at_work
    assert at_work.held == Counter(at_work.versions.values())


@pytest.mark.slow
@settings(max_examples=80)
@given(faulty_experiments())
def test_the_books_of_a_faulty_run(described: Experiment) -> None:
    seen = simulate(described)
    follow(seen)
    if seen.starved:
        assert "starves" in seen.starved
    told, ledger = seen.books(), seen.simulation.core.ledger
    told.check()
    arrived = {(row["client"], row["dispatched"]) for row in told.arrived}
    if not seen.starved:
        assert told.jobs.keys() == {(client, time) for _, client, time in seen.dispatched}
        assert ledger.bytes_up == told.bytes("bytes_up")
        assert ledger.bytes_down == told.bytes("bytes_down")
        assert ledger.updates == len(arrived)
    assert ledger.turned_away == Counter(row["reason"] for row in told.refused)
    fates = Counter(fate for fate, _ in told.jobs.values())
    assert (ledger.lost, ledger.left) == (len(told.unfinished) - fates["in flight"], fates["in flight"])
    strays = Counter(row["job"] for row in told.strays)
    assert not strays or max(strays.values()) == 1
    begun = {job: (client, time) for job, client, time in seen.dispatched}
    for row in told.strays if not seen.starved else []:
        client, time = begun[row["job"]]
        fate, _ = told.jobs[client, time]
        assert (row["reason"] == "duplicate") <= (fate in ("arrived", "in flight"))
        if fate in ("too late", "not needed"):  # it hung, and nobody gave it anything to do before it was back
            assert not [1 for _, other, when in seen.dispatched if other == client and time < when < row["arrived"]]
        else:
            assert fate in ("arrived", "in flight")  # of a round that nobody waited for any more
    versions = [end.evaluation.version for end in seen.ends if end.evaluation]
    assert versions == sorted(versions)


def plain(end: RoundEnd) -> Any:
    told = vars(end) | {"arrivals": [*end.arrivals], "seconds": 0}
    told["evaluation"] = end.evaluation and vars(end.evaluation) | {"wall_seconds": 0}
    return told


@pytest.mark.slow
@settings(max_examples=40)
@given(faulty_experiments(), st.integers(1, 3))
def test_a_faulty_run_goes_on_from_its_state(described: Experiment, after: int) -> None:
    """Through text and tensors and back, into a simulation that knows nothing."""
    whole = simulate(described)
    follow(whole)
    first = simulate(described)
    follow(first, after)
    text, tensors = encode(first.simulation.snapshot(), Simulation.classes)
    stacked = {name: torch.stack(each) for name, each in tensors.items()}
    second = simulate(described)
    second.simulation.restore(decode(json.loads(json.dumps(text)), stacked, Simulation.classes))
    follow(second)
    assert [plain(end) for end in first.ends + second.ends] == [plain(end) for end in whole.ends]
    assert first.dispatched + second.dispatched == whole.dispatched
    assert second.starved == whole.starved
    assert second.simulation.rest() == whole.simulation.rest()
    assert torch.equal(second.simulation.core.model.state.w, whole.simulation.core.model.state.w)


def test_the_experiments_above_have_every_pace() -> None:
    assert {experiment(name).pace for name in METHODS} == {"barrier", "stream", "periodic", "concurrency"}
    assert set(ASYNCHRONOUS) < set(METHODS)
