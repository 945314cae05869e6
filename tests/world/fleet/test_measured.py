"""Devices from the rows of a run: runs on a known fleet give back its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedkeel import Experiment, InputError, RoundEnd
from fedkeel.local.settings import LocalSettings
from fedkeel.record.rows import Arrival, Unfinished
from fedkeel.world.fleet.measured import Trace, download, trace
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings
from tests.helpers import federation
from tests.helpers.federation import BATCH, EPOCHS, N

SPEED = [0.1, 0.25, 0.05, 0.3, 2.0, 0.15]
UP = [0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.0004]
DOWN = [0.0009, 0.0008, 0.0007, 0.0006, 0.0005, 0.0004]
LATENCY = [0, 0.5, 0, 1, 0.25, 2]
LOCAL = LocalSettings(epochs=EPOCHS, batch_size=BATCH)
EXACT = 1e-9
"""Up to rounding: times are differences of seconds since the start of the run."""


def written(folder: Path, **columns: Sequence[float]) -> dict[str, str]:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "known.csv").write_text("\n".join(lines))
    return {"profile": str(folder / "known.csv")}


def rows(ends: Sequence[RoundEnd]) -> tuple[list[Arrival], list[Unfinished]]:
    return [row for end in ends for row in end.arrivals], [row for end in ends for row in end.unfinished]


def measured(method: Any, fleet: dict[str, Any], local: LocalSettings = LOCAL, **settings: Any) -> Trace:
    asked = settings.pop("asked", None)
    changed = local.model_dump(exclude_unset=True)
    result, ends = federation.train(method, fleet=fleet, local=changed, **{"rounds": 12, **settings})
    return trace(*rows(ends), N, local, asked, result.experiment.algorithm.rules()[0].survey)


def job(client: int = 0, begin: float = 0.0, **other: Any) -> Arrival:
    """Dispatched at `begin`: 1 s down, 4 s of training, 2 s up."""
    plain = {
        "client": client, "round": 1, "start_version": 0, "staleness": 0, "epochs": 2, "steps": 4, "samples": 20,
        "learning_rates": [0.1], "weight": None, "train_loss": 1.0, "bytes_up": 1_000_000, "bytes_down": 500_000,
        "dispatched": begin, "began": begin + 1, "finished": begin + 5, "arrived": begin + 7,
    }  # fmt: skip
    return Arrival(**{**plain, **other})


def lost(client: int, why: str) -> Unfinished:
    return Unfinished(client, 1, 0, 0.0, 1.0, 2.0, why, 0, 0)


@pytest.mark.parametrize("method", ["fedavg", "fedasmu", "fedbuff"])
def test_speeds_and_links_are_found_exactly_where_downlinks_are_not_slower(method: str, tmp_path: Path) -> None:
    fleet = written(tmp_path, seconds_per_sample=SPEED, uplink_mbps=UP, downlink_mbps=DOWN)
    schedule = {"trigger_seconds": 2.0} if method == "fedasmu" else {}
    found = measured(method, fleet, schedule=schedule)
    assert found.jobs.min() > 0
    assert found.columns["seconds_per_sample"] == pytest.approx(SPEED, rel=EXACT)
    assert found.columns["uplink_mbps"] == pytest.approx(UP, rel=EXACT)
    assert found.columns["downlink_mbps"] == pytest.approx(DOWN, rel=EXACT)
    assert found.columns.get("latency_seconds", np.zeros(N)) == pytest.approx([0] * N, abs=EXACT)
    assert "dropout" not in found.columns


@pytest.mark.parametrize("method", ["fedavg", "fedasmu", "fedbuff"])
def test_the_time_of_a_download_is_exact_even_if_its_parts_cannot_be_told_apart(method: str, tmp_path: Path) -> None:
    told = {"seconds_per_sample": SPEED, "uplink_mbps": UP, "downlink_mbps": DOWN, "latency_seconds": LATENCY}
    found = measured(
        method, written(tmp_path, **told), schedule={"trigger_seconds": 2.0} if method == "fedasmu" else {}
    )
    megabits = 8e-6 * 8 * federation.FEATURES * federation.CLASSES
    known = np.array(LATENCY) + megabits / np.array(DOWN)
    again = found.columns["latency_seconds"] + megabits / found.columns["downlink_mbps"]
    assert again == pytest.approx(known, rel=EXACT)
    assert (found.columns["downlink_mbps"] >= found.columns["uplink_mbps"] * (1 - EXACT)).all()
    assert any("cannot be told apart" in note for note in found.notes)


def test_what_takes_no_time_has_no_column(tmp_path: Path) -> None:
    found = measured("fedavg", written(tmp_path, seconds_per_sample=SPEED))
    assert [*found.columns] == ["seconds_per_sample"]
    assert found.notes == ()


def test_downloads_of_different_sizes_tell_latency_and_bandwidth_apart(tmp_path: Path) -> None:
    told = {"uplink_mbps": [3.0, 5.0], "downlink_mbps": [2.0, 40.0], "latency_seconds": [0.75, 0.02]}
    fleet = Fleet.of(FleetSettings(**written(tmp_path, **told)), np.array([20, 20]), 2, 0)
    for client in (0, 1):
        sizes = np.array([100_000, 400_000, 150_000, 900_000, 100_000])
        seconds = fleet.download_seconds(np.full(5, client), sizes)
        own = [
            job(client, bytes_down=size, began=time, finished=time + 4, arrived=time + 5)
            for size, time in zip(sizes.tolist(), seconds.tolist(), strict=True)
        ]
        odd = replace(own[1], began=60.0, finished=64.0, arrived=65.0)
        for jobs in (own, [*own, odd]):
            link = download(jobs, 1.0, {})
            assert link.told
            assert link.latency == pytest.approx(told["latency_seconds"][client], rel=1e-6)
            assert 8e-6 / link.per_byte == pytest.approx(told["downlink_mbps"][client], rel=1e-6)


def test_sizes_that_hardly_differ_are_not_trusted() -> None:
    jobs = [job(bytes_down=500_000), job(bytes_down=500_100, began=3.0, finished=7.0, arrived=9.0)]
    assert not download(jobs, 1e-6, {}).told


def test_longer_downloads_that_are_faster_are_latency_alone() -> None:
    jobs = [job(bytes_down=100_000, began=3.0), job(bytes_down=900_000)]
    assert (download(jobs, 1e-6, {}).latency, download(jobs, 1e-6, {}).per_byte) == (2.0, 0.0)


def test_a_fresh_model_is_a_second_download_and_no_training() -> None:
    fresh = job(bytes_down=1_000_000, finished=6.0, arrived=8.0, asked=3.0, merged=4.0)
    found = trace([fresh], [], 1, LOCAL)
    assert found.columns["seconds_per_sample"].tolist() == [4 / 40]
    assert found.columns["downlink_mbps"].tolist() == [pytest.approx(4)]  # as fast as the uplink: 4 Mbit each in 1 s
    assert "latency_seconds" not in found.columns


def test_medians_forget_odd_jobs_and_clocks_that_run_backwards() -> None:
    slow = job(begin=10, began=30.0, finished=90.0, arrived=200.0)
    backwards = job(begin=300, began=299.0, finished=298.0, arrived=297.0)
    found = trace([job(), job(begin=7), slow, job(begin=210), backwards], [], 1, LOCAL)
    assert found.columns["seconds_per_sample"].tolist() == [0.1]
    assert found.columns["uplink_mbps"].tolist() == [pytest.approx(4)]


def test_noisy_times_give_close_estimates() -> None:
    """As on real machines: times that vary by a fifth, and one job in ten that takes four times as long."""
    rng = np.random.default_rng(0)
    jobs = []
    for number in range(40):
        down, training, up = [1.0, 4.0, 2.0] * rng.lognormal(0, 0.2, 3) * (4 if number % 10 == 9 else 1)
        at = [30.0 * number, *(30.0 * number + np.cumsum([down, training, up]))]
        jobs.append(job(begin=at[0], began=at[1], finished=at[2], arrived=at[3]))
    found = trace(jobs, [], 1, LOCAL).columns
    assert found["seconds_per_sample"][0] == pytest.approx(0.1, rel=0.1)
    assert found["uplink_mbps"][0] == pytest.approx(4, rel=0.1)
    download = found.get("latency_seconds", np.zeros(1))[0] + 4 / found["downlink_mbps"][0]
    assert download == pytest.approx(1, rel=0.1)


def test_work_is_counted_as_the_experiment_counts_it(tmp_path: Path) -> None:
    fleet = written(tmp_path, seconds_per_sample=SPEED)
    for local in (LocalSettings(steps=5, batch_size=BATCH), LocalSettings(epochs=3, batch_size=BATCH, drop_last=True)):
        assert measured("fedavg", fleet, local).columns["seconds_per_sample"] == pytest.approx(SPEED, rel=EXACT)


def test_devices_that_complete_a_part_take_the_time_of_all_epochs(tmp_path: Path) -> None:
    fleet = {**written(tmp_path, seconds_per_sample=SPEED), "rho": 0.7}
    found = measured("fedavg", fleet, asked=EPOCHS)
    assert found.columns["seconds_per_sample"] == pytest.approx(SPEED, rel=EXACT)
    assert measured("fedavg", fleet).columns["seconds_per_sample"].max() > 1.5 * max(SPEED)


def test_surveys_are_not_taken_for_downloads(tmp_path: Path) -> None:
    told = {"seconds_per_sample": SPEED, "downlink_mbps": DOWN}
    found = measured("fedent", written(tmp_path, **told))
    assert [*found.columns] == [*told]
    assert found.columns["seconds_per_sample"] == pytest.approx(SPEED, rel=EXACT)
    assert found.columns["downlink_mbps"] == pytest.approx(DOWN, rel=EXACT)
    assert any("asks its clients" in note for note in found.notes)


def test_jobs_are_lost_as_often_as_the_known_fleet_loses_them(tmp_path: Path) -> None:
    chances = [0.0, 0.1, 0.3, 0.5, 0.7, 0.05]
    fleet = written(tmp_path, seconds_per_sample=SPEED, dropout=chances)
    found = measured("fedavg", fleet, rounds=60, per_round=N)
    assert (found.jobs + found.lost).tolist() == [60] * N
    assert found.columns["dropout"] == pytest.approx(found.lost / 60)
    assert found.columns["dropout"][0] == 0
    for count, chance in zip(found.lost[1:], chances[1:], strict=True):
        assert stats.binomtest(int(count), 60, chance).pvalue > 1e-3
    assert found.columns["seconds_per_sample"] == pytest.approx(SPEED, rel=EXACT)


def test_only_what_a_device_loses_counts() -> None:
    why = ["dropped out", "not needed", "in flight", "upload lost", "too late", "went offline", "left for good"]
    why += ["server restarted"]
    found = trace([job(0), job(0), job(1)], [lost(0, each) for each in why] + [lost(1, "not needed")], 2, LOCAL)
    assert found.lost.tolist() == [5, 0]
    assert found.columns["dropout"].tolist() == [5 / 7, 0]
    assert any(note.startswith("1 job ended because a device was switched off") for note in found.notes)


def test_a_client_without_a_result_gets_the_medians_and_is_named() -> None:
    jobs = [job(0), job(1, finished=9.0, arrived=11.0), job(3, finished=3.0, arrived=5.0)]
    found = trace(jobs, [lost(2, "dropped out")] * 3, 4, LOCAL)
    assert found.columns["seconds_per_sample"].tolist() == [0.1, 0.2, 0.1, 0.05]
    assert found.columns["dropout"].tolist() == [0, 0, 0.75, 0]
    assert found.notes[0] == "1 client finished no job and has the medians of the others: 2"
    many = trace(jobs, [], 20, LOCAL).notes[0]
    assert many.startswith("17 clients finished no job and have the medians of the others: 2, 4, 5, ")
    assert many.endswith(" and 7 more")


def test_the_file_is_a_trace_that_a_fleet_reads(tmp_path: Path) -> None:
    jobs = [job(0), job(1, finished=9.0, arrived=9.0), job(2, began=0.0, finished=4.0, arrived=4.0 + 1 / 3)]
    found = trace(jobs, [lost(1, "dropped out")], 3, LOCAL)
    (tmp_path / "devices.csv").write_text(found.text)
    fleet = Fleet.of(FleetSettings(profile=str(tmp_path / "devices.csv")), np.array([20, 20, 20]), 2, 0)
    assert (fleet.seconds / fleet.unit).tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert fleet.upload_seconds(np.arange(3), 1_000_000).tolist() == pytest.approx([2, 0, 1 / 3], abs=1e-9)
    assert fleet.download_seconds(np.arange(3), 500_000).tolist() == pytest.approx([1, 1, 0], abs=1e-9)
    assert fleet.dropout.tolist() == [0, 0.5, 0]
    assert found.text.splitlines()[1].startswith("0.1,4,4,")  # short where the number is


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InputError, match="no job has arrived"):
        trace([], [lost(0, "dropped out")], 2, LOCAL)
    with pytest.raises(InputError, match="client 5 has arrived, but the experiment has 2 clients"):
        trace([job(5)], [], 2, LOCAL)


WAIT, PER_BYTE = 0.75, 2e-6


def exchanged(up: int, down: int, begin: float = 0.0, times: int = 1, **other: Any) -> Arrival:
    """By a real machine whose messages wait for WAIT seconds on both ways together: each way is half of the time."""
    way = (times * WAIT + PER_BYTE * (up + down)) / 2
    told = {"dispatched": begin, "began": begin + way, "finished": begin + way + 4, "arrived": begin + 2 * way + 4}
    return job(bytes_up=up, bytes_down=down, **told, **other)


def test_long_messages_of_real_machines_tell_bandwidth_and_waiting_apart() -> None:
    found = trace([exchanged(2_000_000, 1_000_000, at) for at in (0.0, 50.0, 90.0)], [], 1, LOCAL, waits={0: WAIT})
    assert found.columns["uplink_mbps"] == pytest.approx([8e-6 / PER_BYTE])
    assert found.columns["downlink_mbps"] == pytest.approx([8e-6 / PER_BYTE])
    assert found.columns["latency_seconds"] == pytest.approx([WAIT])
    assert found.notes == ()


def test_short_messages_of_real_machines_are_latency_alone() -> None:
    own = [exchanged(15_000, 15_000, at) for at in (0.0, 50.0)]
    found = trace(own, [], 1, LOCAL, waits={0: WAIT})
    assert [*found.columns] == ["seconds_per_sample", "latency_seconds"]
    assert found.columns["latency_seconds"] == pytest.approx([WAIT + PER_BYTE * 30_000])
    (note,) = found.notes
    assert "the messages of 1 client took not much longer than empty ones" in note
    without = trace(own, [], 1, LOCAL)  # as of a run that did not measure the waiting
    assert without.columns["uplink_mbps"][0] < 0.4


def test_the_jobs_of_real_machines_take_as_long_as_they_did() -> None:
    for up, down in ((15_000, 15_000), (2_000_000, 1_000_000), (300_000, 0)):
        own = exchanged(up, down)
        found = trace([own], [], 1, LOCAL, waits={0: WAIT}).columns
        links = {name: found.get(f"{name}link_mbps", np.array([np.inf]))[0] for name in ("up", "down")}
        ways = found["latency_seconds"][0] + 8e-6 * (up / links["up"] + down / links["down"])
        assert ways + 4 == pytest.approx(own.arrived - own.dispatched)


@pytest.mark.parametrize("size", [15_000, 2_000_000])
def test_real_machines_that_ask_for_a_fresh_model_exchange_two_messages(size: int) -> None:
    """Whether they get one or not."""
    merged = exchanged(size, 2 * size, 0.0, times=2, asked=3.0, merged=3.0, slot=1)
    without = [exchanged(size, size, at, times=2, asked=at + 3, resumed=at + 3) for at in (50.0, 90.0)]
    found = trace([merged, *without], [], 1, LOCAL, waits={0: WAIT}).columns
    assert found["seconds_per_sample"] == pytest.approx([0.1])
    if size > 1_000_000:
        assert found["latency_seconds"] == pytest.approx([WAIT])
        assert found["uplink_mbps"] == pytest.approx([8e-6 / PER_BYTE])
    else:
        assert found["latency_seconds"] == pytest.approx([WAIT], rel=0.1)


def test_the_time_of_an_answer_without_a_model_is_neither_training_nor_download() -> None:
    asked = job(finished=8.0, arrived=10.0, asked=3.0, resumed=6.0)
    assert trace([asked], [], 1, LOCAL).columns == trace([job()], [], 1, LOCAL).columns


def test_surveys_of_real_machines_are_over_when_jobs_are_sent() -> None:
    """So they are no part of the time between dispatch and training."""
    survey = Experiment(algorithm="fedent").algorithm.rules()[0].survey
    assert survey is not None
    own = [exchanged(15_000, 15_000, at) for at in (0.0, 50.0)]
    found = trace(own, [], 1, LOCAL, survey=survey, waits={0: WAIT})
    assert found.columns["latency_seconds"] == pytest.approx([WAIT + PER_BYTE * 30_000])
    assert any("a round is predicted to be shorter than it is" in note for note in found.notes)


ABSENCES = {
    0: [],
    1: [(0.0, 30.0)],
    2: [(20.0, 25.0), (40.0, 55.0)],
    3: [(60.0, inf)],
    4: [(0.0, inf)],
    5: [(10.0, 10.5)],
}


def test_devices_are_on_when_the_machines_were_there(tmp_path: Path) -> None:
    jobs = [job(client, begin=93.0 if client == 5 else 0.0) for client in ABSENCES]
    found = trace(jobs, [], len(ABSENCES), LOCAL, waits={}, absences=ABSENCES)
    (tmp_path / "devices.csv").write_text(found.text)
    fleet = Fleet.of(FleetSettings(profile=str(tmp_path / "devices.csv")), np.full(len(ABSENCES), 20), 2, 0)
    for client, absences in ABSENCES.items():
        for time in (0.5, 19.0, 22.0, 29.0, 31.0, 39.0, 41.0, 54.0, 56.0, 59.0, 61.0, 99.0, 300.0):
            away = [time for left, came in absences[-1:] if left <= time < came and came - left > 1]
            there = fleet.available(time)
            assert there is not None
            assert there[client] == (not away), (client, time)
    assert found.notes[-2:] == (
        "clients were away, and what they lost by that is no dropout: 1 (from 0 s to 30 s), 2 (from 40 s to 55 s), "
        "3 (from 60 s on), 4 (from 0 s on)",
        "of several absences of a client, the trace has the longest",
    )


def test_jobs_that_were_lost_by_an_absence_are_no_dropout() -> None:
    rows = [lost(0, "failed: its node has left"), lost(1, "no answer")]  # from 0 to 2 s
    found = trace([job(0), job(1)], rows, 2, LOCAL, waits={}, absences={0: [(1.0, 3.0)], 1: [(3.0, 5.0)]})
    assert found.columns["dropout"].tolist() == [0, 0.5]
    assert found.lost.tolist() == [0, 1]


@pytest.mark.parametrize("absences", [None, {}, {0: []}, {0: [(1.0, 1.01)]}])
def test_without_absences_there_are_no_columns(absences: dict[int, list[tuple[float, float]]] | None) -> None:
    assert "availability" not in trace([job()], [], 1, LOCAL, waits={}, absences=absences).columns
