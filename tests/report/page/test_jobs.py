"""What uploads say together: against the figures' own reading of the same files, and against numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.errors import InputError
from fedkeel.record.lock import lock
from fedkeel.record.runs import RunRecord
from fedkeel.report import rates, staleness, timeline
from fedkeel.report.page import arrivals, jobs
from fedkeel.report.page.cells import cells
from fedkeel.study.results import Results, collect
from fedkeel.study.store import Store
from tests.helpers.report_folders import record

Make = Callable[..., Results]


def row(**told: Any) -> dict[str, Any]:
    times = {"dispatched": 0.0, "began": 1.0, "finished": 5.0, "arrived": 7.0}
    return {"client": 0, "round": 1, "staleness": 0, "weight": 0.5, "learning_rates": [0.1], **times, **told}


def run_of(found: Results, variant: str) -> RunRecord:
    run = found.of("", variant)[0].record
    assert run is not None
    return run


@pytest.mark.parametrize("variant", ["fedavg", "fedagg", "fedasmu"])
def test_learning_rates_are_those_of_the_figure(compared: Results, variant: str) -> None:
    run = run_of(compared, variant)
    drawn = arrivals.over_rounds(arrivals.arrived(run, 10_000).rates)
    rounds, used = rates.by_epoch(run)
    assert drawn is not None
    assert drawn["x"] == sorted(rounds)
    order = np.argsort(rounds)
    np.testing.assert_allclose(drawn["low"], np.nanmin(used[:, :, 0], 1)[order], rtol=1e-4)
    np.testing.assert_allclose(drawn["high"], np.nanmax(used[:, :, 2], 1)[order], rtol=1e-4)


def test_staleness_and_weights_are_those_of_the_figure(compared: Results) -> None:
    run = run_of(compared, "fedasmu")
    told = arrivals.arrived(run, 10_000)
    known = staleness.arrived(run)
    bars = arrivals.staleness(told)
    assert bars is not None
    assert bars["accepted"] == np.bincount(known.staleness[known.accepted], minlength=bars["most"] + 1).tolist()
    assert bars["mean"] == pytest.approx(known.staleness.mean(), rel=1e-4)
    at = arrivals.over_staleness(told)
    assert at is not None
    for place, mean in zip(at["x"], at["mean"], strict=True):
        assert mean == pytest.approx(np.mean(known.weight[(known.staleness == place) & known.accepted]), rel=1e-4)


def test_a_method_that_waits_for_all_has_no_staleness(compared: Results) -> None:
    told = arrivals.arrived(run_of(compared, "fedavg"), 10_000)
    assert arrivals.staleness(told) is None
    assert arrivals.over_staleness(told) is None


def test_refused_uploads_have_bars_of_their_own_and_no_weight(tmp_path: Path) -> None:
    run = record(tmp_path, [row(staleness=2), row(staleness=5, accepted=False, weight=9.0), row(staleness=2)])
    told = arrivals.arrived(run, 10)
    bars = arrivals.staleness(told)
    assert bars is not None
    assert bars["accepted"] == [0, 0, 2, 0, 0, 0]
    assert bars["refused"] == [0, 0, 0, 0, 0, 1]
    assert told.weights[1].most == 0.5


def test_bars_of_great_staleness_are_put_together(tmp_path: Path) -> None:
    told = arrivals.arrived(record(tmp_path, [row(staleness=n) for n in range(1000)]), 10_000)
    bars = arrivals.staleness(told)
    assert bars is not None
    assert (bars["width"], len(bars["accepted"]), sum(bars["accepted"])) == (25, 40, 1000)


def test_of_many_rounds_neighbours_are_put_together(tmp_path: Path) -> None:
    rows = [row(round=n, learning_rates=[float(n)]) for n in range(1, 1001)]
    drawn = arrivals.over_rounds(arrivals.arrived(record(tmp_path, rows), 10_000).rates)
    assert drawn is not None
    assert len(drawn["x"]) <= arrivals.MOST_ROUNDS
    assert (drawn["x"][-1], drawn["high"][-1], drawn["low"][0], drawn["mean"][0]) == (1000, 1000, 1, 4)


def test_reading_stops_where_it_is_told_to(tmp_path: Path) -> None:
    run = record(tmp_path, [row(client=n) for n in range(9)])
    some, all_ = arrivals.arrived(run, 4), arrivals.arrived(run, 9)
    assert (some.rows, some.cut, len(some.devices)) == (4, True, 4)
    assert (all_.rows, all_.cut) == (9, False)


def test_a_file_is_read_again_when_it_has_grown(tmp_path: Path) -> None:
    run = record(tmp_path, [row()])
    assert arrivals.arrived(run, 10).rows == 1
    assert arrivals.arrived(run, 10) is arrivals.arrived(run, 10)
    with (tmp_path / "clients.jsonl").open("a") as file:
        file.write(json.dumps(row()) + "\n")
    assert arrivals.arrived(run, 10).rows == 2


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    run = record(tmp_path, [row(), {"client": 1}])
    with pytest.raises(InputError, match=r"clients\.jsonl is damaged"):
        arrivals.arrived(run, 10)


def test_devices_are_in_order_of_their_mean_jobs(tmp_path: Path) -> None:
    rows = [row(client=7), row(client=3, arrived=6.0), row(client=3, arrived=6.5)]
    found = arrivals.devices(arrivals.arrived(record(tmp_path, rows), 10))
    assert found == {
        "clients": [3, 7],
        "jobs": [2, 1],
        "of": 2,
        "download": [1, 1],
        "training": [4, 4],
        "upload": [1.25, 2],
    }


def test_of_many_devices_some_are_drawn_from_the_fastest_to_the_slowest(tmp_path: Path) -> None:
    rows = [row(client=n, arrived=7.0 + n) for n in range(1000)]
    found = arrivals.devices(arrivals.arrived(record(tmp_path, rows), 10_000))
    assert found is not None
    assert (len(found["clients"]), found["of"], found["clients"][0], found["clients"][-1]) == (120, 1000, 0, 999)


def test_jobs_without_any_time_are_not_drawn(tmp_path: Path) -> None:
    run = record(tmp_path, [row(began=0.0, finished=0.0, arrived=0.0)])
    assert arrivals.devices(arrivals.arrived(run, 10)) is None


def test_the_timeline_has_the_spans_of_the_figure(compared: Results) -> None:
    found = jobs.timelines(cells(compared))
    (drawn,) = [each for each in found["runs"] if compared.variants[each["variant"]] == "fedasmu"]
    told = timeline.spans(run_of(compared, "fedasmu"))
    first = [span for span in told.spans if span[2] < drawn["end"] and span[0] in drawn["lanes"]]
    assert len(drawn["spans"]) == len(first) > 0
    named = {(drawn["lanes"][lane], found["kinds"][kind]) for lane, kind, _, _ in drawn["spans"]}
    assert named == {(client, what) for client, what, _, _ in first}
    assert all(begin <= end <= drawn["end"] for _, _, begin, end in drawn["spans"])


def test_a_timeline_is_bounded(written: Make) -> None:
    (drawn, *_) = jobs.timelines(cells(written(["a"], seeds=[0], rounds=2, jobs=3000)))["runs"]
    assert len(drawn["lanes"]) == 20
    assert drawn["of"] == 40
    assert len(drawn["spans"]) <= 500


def test_rows_are_bounded_for_all_runs_together(written: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ALL_ROWS", 60)
    monkeypatch.setattr(jobs, "FEWEST_ROWS", 10)
    found = jobs.jobs(cells(written(["a", "b"], seeds=[0], jobs=50)))
    assert [(each["rows"], each["cut"]) for each in found] == [(30, True), (30, True)]


def test_of_a_run_that_is_going_on_less_is_read(written: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LIVE_ROWS", 20)
    found = written(["a", "b"], seeds=[0], jobs=50)
    (found.of("", "b")[0].folder / "summary.json").unlink()
    store = Store(found.outcomes[0].folder.parents[1])
    with (found.of("", "b")[0].folder / "history.jsonl").open() as file:
        lock(file.fileno())
        told = jobs.jobs(cells(collect(store.plan(), store.path)))
    assert [(each["rows"], each["cut"]) for each in told] == [(50, False), (20, True)]


def test_a_timeline_grows_with_its_run(written: Make) -> None:
    found = written(["a"], seeds=[0], rounds=1, jobs=2)
    assert len(jobs.timelines(cells(found))["runs"][0]["lanes"]) <= 2
    with (found.outcomes[0].folder / "clients.jsonl").open("a") as file:
        file.writelines(json.dumps(row(client=n)) + "\n" for n in range(100, 105))
    assert {*range(100, 105)} <= {*jobs.timelines(cells(found))["runs"][0]["lanes"]}
