"""The figure of what devices did when."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from fedkeel import Experiment, InputError, run
from fedkeel.record.runs import RunRecord
from fedkeel.report.timeline import LANES, STYLES, _chosen, _draw, _window, _working, spans, timeline
from tests.helpers.commands import fedkeel
from tests.helpers.report_folders import record


def job(client: int, dispatched: float, arrived: float, **more: Any) -> dict[str, Any]:
    return {
        "client": client,
        "dispatched": dispatched,
        "began": dispatched,
        "finished": arrived,
        "arrived": arrived,
    } | more


def lost(client: int, dispatched: float, began: float, ended: float, why: str) -> dict[str, Any]:
    return {"client": client, "dispatched": dispatched, "began": began, "ended": ended, "why": why}


ARRIVALS = [
    job(7, 0.0, 10.0, began=1.0, asked=4.0, merged=5.0, finished=8.0),
    job(3, 0.0, 5.0, asked=None, merged=None),
    job(3, 6.0, 12.0, finished=11.5, accepted=False),
    job(5, 2.0, 22.0, accepted=True),
]
UNFINISHED = [
    lost(3, 12.0, 13.0, 15.5, "dropped out"),
    lost(9, 12.0, 16.0, 14.0, "went offline"),
    lost(7, 20.0, 20.0, 22.0, "in flight"),
]


def test_every_part_of_every_job_has_its_place(tmp_path: Path) -> None:
    told = spans(record(tmp_path, ARRIVALS, UNFINISHED))
    assert told.clients == [9, 3, 7, 5]  # mean seconds 2 (of a lost job), 5.5, 10, 20
    assert told.spans == [
        (7, "download", 0.0, 1.0),
        (7, "training", 1.0, 4.0),
        (7, "waiting for a fresh model", 4.0, 5.0),
        (7, "training after the merge", 5.0, 8.0),
        (7, "upload", 8.0, 10.0),
        (3, "training", 0.0, 5.0),
        (3, "training", 6.0, 11.5),
        (3, "upload", 11.5, 12.0),
        (5, "training", 2.0, 22.0),
        (3, "download", 12.0, 13.0),
        (3, "lost or not needed", 13.0, 15.5),
        (9, "download", 12.0, 14.0),
        (7, "in flight at the end", 20.0, 22.0),
    ]
    assert told.lost == [(3, 15.5), (9, 14.0)]
    assert told.refused == [(3, 12.0)]
    assert (told.mean_seconds, told.end) == (pytest.approx((10 + 5 + 6 + 20 + 3.5 + 2 + 2) / 7), 22.0)


def test_a_run_of_before_there_were_links_and_losses_is_drawn_too(tmp_path: Path) -> None:
    told = spans(record(tmp_path, [{"client": 0, "dispatched": 1.0, "arrived": 3.0}]))
    assert told.spans == [(0, "training", 1.0, 3.0)]
    assert told.lost == told.refused == []


def test_boxes_lie_in_the_lanes_of_their_devices(tmp_path: Path) -> None:
    told = spans(record(tmp_path, ARRIVALS, UNFINISHED))
    axes = Figure().subplots()
    handles = _draw(axes, told, [3, 5], (4.5, 11.0))
    boxes = [path.get_extents() for each in axes.collections for path in each.get_paths()]
    assert all(isinstance(each, PolyCollection) for each in axes.collections)
    assert sorted((box.x0, box.x1, round((box.y0 + box.y1) / 2)) for box in boxes) == [
        *((0.0, 5.0, 0), (2.0, 22.0, 1), (6.0, 11.5, 0)),
    ]
    assert [handle.get_label() for handle in handles] == ["training"]
    assert axes.get_xlim() == (4.5, 11.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["3", "5"]
    assert axes.get_ylim() == (1.5, -0.5)  # the fast are above


def test_lost_and_refused_jobs_are_marked(tmp_path: Path) -> None:
    told = spans(record(tmp_path, ARRIVALS, UNFINISHED))
    axes = Figure().subplots()
    _draw(axes, told, told.clients, (0.0, 22.0))
    marks = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert marks == {"end of a lost job": [[15.5, 1.0], [14.0, 0.0]], "upload refused": [[12.0, 1.0]]}


@pytest.mark.slow
def test_many_devices_are_thinned_out_evenly_and_the_title_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = _chosen(list(range(1000, 1250)))
    assert len(chosen) == len(set(chosen)) == LANES
    assert (chosen[0], chosen[-1]) == (1000, 1249)
    assert set(np.diff(chosen)) <= {4, 5}
    assert _chosen([4, 2]) == [4, 2]
    drawn: list[Figure] = []
    monkeypatch.setattr("fedkeel.report.timeline.save", lambda figure, *_, **__: drawn.append(figure))
    for clients in (LANES, LANES + 5):
        run = record(tmp_path / str(clients), [job(client, 0.0, 1.0 + client) for client in range(clients)])
        timeline(run, [tmp_path / "a.png"])
    titles = [figure.axes[0].get_title() for figure in drawn]
    assert titles == ["fedasmu, iid, seed 0", "fedasmu, iid, seed 0; 60 of 65 devices at work"]


def test_the_window_shows_some_jobs_of_a_device_unless_it_is_given(tmp_path: Path) -> None:
    told = spans(record(tmp_path, [job(c, 2.0 * n, 2.0 * n + 2) for n in range(48) for c in (0, 1)]))
    assert _window(told, None, None) == (0.0, 50.0)
    assert _window(told, 80.0, None) == (80.0, 96.0)
    assert _window(told, 5.0, 6.0) == (5.0, 6.0)
    few = spans(record(tmp_path, ARRIVALS))
    assert _window(few, None, None) == (0.0, 22.0)
    for first, last in ((6.0, 5.0), (-1.0, None), (96.0, 99.0), (0.0, float("inf")), (float("nan"), None)):
        with pytest.raises(
            InputError, match=r"--first must be before --last, and from 0 to 96 s, when the run ends; got "
        ):
            _window(told, first, last)


def test_devices_that_are_idle_all_the_time_have_no_lane(tmp_path: Path) -> None:
    told = spans(record(tmp_path, ARRIVALS, UNFINISHED))
    assert _working(told, (0.0, 22.0)) == told.clients
    assert _working(told, (12.0, 16.0)) == [9, 3, 5]
    assert _working(told, (0.0, 2.0)) == [3, 7]
    gap = spans(record(tmp_path, [job(0, 0.0, 1.0), job(0, 3.0, 4.0)]))
    with pytest.raises(InputError, match="all devices are idle from 1 to 3 s; choose"):
        _working(gap, (1.0, 3.0))


@pytest.mark.parametrize(
    ("arrivals", "unfinished", "told"),
    [
        ([], None, "no job has taken any time"),
        ([{"client": 1}], None, "clients.jsonl is damaged"),
        ([5], None, "clients.jsonl is damaged"),
        ([job(1, 0.0, 1.0, finished="x")], None, "clients.jsonl is damaged"),
        (ARRIVALS, [{"client": 1, "dispatched": 0.0}], "unfinished.jsonl is damaged"),
    ],
)
def test_damaged_and_empty_records_are_told(tmp_path: Path, arrivals: Any, unfinished: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        spans(record(tmp_path, arrivals, unfinished))


def test_a_last_line_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    run = record(tmp_path, ARRIVALS)
    without = spans(run)
    (tmp_path / "unfinished.jsonl").write_text('{"client": ')
    assert spans(run) == without
    (tmp_path / "unfinished.jsonl").write_text('{"client": \n')
    with pytest.raises(InputError, match=r"unfinished.jsonl is damaged \(line 1: it is no row\)"):
        spans(run)


def test_a_run_is_drawn_as_it_was(tmp_path: Path) -> None:
    """Each device does one thing at a time, and everything it did is in its lane."""
    fleet = {"speed_ratio": 4, "uplink_mbps": 0.1, "downlink_mbps": 0.2, "dropout": 0.2}
    out = tmp_path / "run"
    data = {"train_limit": 120, "test_limit": 50}
    experiment = Experiment(
        dataset=data,
        model="linear",
        clients=6,
        rounds=8,
        per_round=2,
        algorithm="fedasmu",
        local={"epochs": 3},
        fleet=fleet,
        faults={"corrupt": 0.2, "twice": 0.2},
        executor="serial",
        evaluate_every=8,
    )
    run(experiment, out=out)
    record = RunRecord.read(out)
    told = spans(record)
    assert {what for _, what, _, _ in told.spans} == set(STYLES)
    for client in told.clients:
        lane = sorted((begin, end) for who, _, begin, end in told.spans if who == client)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(lane))
    worked = sum(end - begin for _, _, begin, end in told.spans)
    rows = [row["arrived"] - row["dispatched"] for row in record.arrivals()]
    rows += [row["ended"] - row["dispatched"] for row in record.unfinished()]
    refused = [*record.refused()]
    rows += [row["arrived"] - row["dispatched"] for row in refused if row["dispatched"] is not None]
    assert told.refused == [(row["client"], row["arrived"]) for row in refused]
    assert worked == pytest.approx(sum(rows))


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    record(tmp_path / "run", ARRIVALS, UNFINISHED)
    done = fedkeel("plot", "run", "--what", "timeline", "--first", "1", "--last", "20", cwd=tmp_path)
    assert done.stdout.split() == ["timeline.png"], done.stderr
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    two = fedkeel("plot", "run", "run", "--what", "timeline", cwd=tmp_path)
    assert (two.returncode, two.stderr) == (
        2,
        "fedkeel: runs: a timeline shows one run, and 2 are given; choose one of them\n",
    )
    other = fedkeel("plot", "run", "--last", "3", cwd=tmp_path).stderr
    assert other == "fedkeel: --last needs --what timeline, and this is --what curves; remove it\n"
