"""A simulated run beside the run that it predicts, by hand."""

import json
import re
from math import nan
from pathlib import Path

import pytest

from fedkeel import InputError
from fedkeel.record.measured import ACCURACY, Measured
from fedkeel.study.prediction import FILE, Course, JobTime, Prediction, compare
from tests.helpers.report_folders import record

COURSE = Course(
    places=[(1, 10.0), (2, 20.0), (4, 60.0)],
    values=[0.2, 0.4, 0.8],
    job_seconds={0: 5.0, 1: 9.0, 2: 7.0},
    arrivals=12,
    staleness=1.5,
    lost=2,
    pause=0.5,
)
OTHER = Course([(1, 8.0), (2, 16.0)], [0.3, 0.5], {0: 4.0, 2: 7.0, 3: 1.0}, 8, 1.0, 0, 0.0)


def row(client: int, round_: int, dispatched: float, arrived: float, staleness: int = 0) -> dict[str, object]:
    return {
        "client": client, "round": round_, "dispatched": dispatched, "began": dispatched, "finished": arrived,
        "arrived": arrived, "staleness": staleness, "learning_rates": [0.1],
    }  # fmt: skip


def test_a_course_from_a_folder(tmp_path: Path) -> None:
    arrivals = [row(3, 1, 0.0, 4.0), row(3, 2, 6.0, 12.0, 1), row(1, 1, 0.0, 5.0, 2), row(3, 3, 13.0, 14.0, 1)]
    why = ["dropped out", "not needed", "in flight", "too late"]
    unfinished = [
        {"client": 0, "round": 2, "dispatched": 6.0, "began": 6.0, "ended": 12.5, "why": each} for each in why
    ]
    found = Course.of(record(tmp_path, arrivals, unfinished))
    assert found.places == [(1, 9.0)]
    assert found.values == [0.5]
    assert found.job_seconds == {1: 5.0, 3: 4.0}
    assert (found.arrivals, found.staleness, found.lost) == (4, 1.0, 2)
    assert found.pause == pytest.approx(0.75)


def test_rounds_that_overlap_have_no_pause(tmp_path: Path) -> None:
    assert Course.of(record(tmp_path, [row(0, 1, 0.0, 5.0), row(1, 2, 3.0, 9.0)])).pause is None


def test_rounds_between_two_evaluations_are_equally_long() -> None:
    assert COURSE.round_seconds == 15.0  # of 10, 10, 20 and 20


def test_values_between_evaluations_are_on_the_line() -> None:
    assert [COURSE.at(each) for each in (9.0, 10.0, 15.0, 50.0, 60.0)] == [None, 0.2, pytest.approx(0.3), 0.7, 0.8]
    gap = Course([(1, 1.0), (2, 2.0), (3, 3.0)], [0.1, nan, 0.3], {}, 0, 0.0, 0, None)
    assert gap.at(2.0) == pytest.approx(0.2)


def test_quantities_of_both() -> None:
    found = compare(COURSE, OTHER, ACCURACY, "runs/real", ["a note"])
    told = {each.name: (each.measured, each.predicted) for each in found.quantities}
    assert told == {
        "seconds": (60.0, 16.0),
        "common_seconds": (20.0, 16.0),
        "round_seconds": (15.0, 8.0),
        "pause": (0.5, 0.0),
        "job_seconds": (7.0, 4.0),
        "final_accuracy": (0.8, 0.5),
        "accuracy_at_75%": (pytest.approx(0.24), pytest.approx(0.4)),
        "accuracy_at_100%": (pytest.approx(0.32), 0.5),
        "rounds": (4, 2),
        "arrivals": (12, 8),
        "staleness": (1.5, 1.0),
        "lost": (2, 0),
    }
    assert [each.words for each in found.quantities][:2] == ["time to the end", "time to round 2"]
    assert found.clients == (JobTime(0, 5.0, 4.0), JobTime(2, 7.0, 7.0))
    assert "common_seconds" not in {each.name for each in compare(OTHER, OTHER, ACCURACY, "").quantities}


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    gone = Course([(1, 1.0)], [nan], {}, 0, 0.0, 0, None)
    for one in (COURSE, gone):
        found = compare(one, OTHER, Measured("rmse", "lower", share=False), "runs/real", ["a note"])
        found.save(tmp_path)
        assert Prediction.read(tmp_path / FILE) == found
    assert json.loads((tmp_path / FILE).read_text())["schema"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"measured": "a"}', '{"quantities": 3}', '"accuracy"', '"predicted": "5"', '"predicted": NaN',
        '"predicted": null', '"predicted": true',
    ],
)  # fmt: skip
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    compare(COURSE, OTHER, ACCURACY, "runs/real").save(tmp_path)
    whole = (tmp_path / FILE).read_text()
    damaged = {'"accuracy"': whole.replace(text, "3", 1)}
    if text.startswith('"predicted"'):
        damaged = {text: re.sub(r'"predicted": 4\.0\n', f"{text}\n", whole)}
        assert damaged[text] != whole
    (tmp_path / FILE).write_text(damaged.get(text, text))
    with pytest.raises(InputError, match=r"prediction\.json is damaged .*; replay the run again, or delete the file"):
        Prediction.read(tmp_path / FILE)
