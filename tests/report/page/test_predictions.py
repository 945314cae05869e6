"""The section about predictions: what the page is told, and that it is told only where there is one."""

from pathlib import Path

import pytest

from fedkeel import InputError
from fedkeel.record.measured import ACCURACY
from fedkeel.report.page.digest import digest
from fedkeel.report.page.html import page
from fedkeel.study.adhoc import gather
from fedkeel.study.prediction import FILE, JobTime, Prediction, Quantity
from tests.helpers.studies import row, write_run

QUANTITIES = (
    Quantity("seconds", "time to the end", "s", 100.123456789, 99.0),
    Quantity("final_accuracy", "accuracy at the end", "metric", 0.75, None),
)
FOUND = Prediction("runs/real", ACCURACY, QUANTITIES, (JobTime(0, 4.0, 5.0), JobTime(3, 9.123456, 8.0)), ("a note",))


def test_the_page_is_told_of_predictions(tmp_path: Path) -> None:
    for name in ("real", "simulated"):
        write_run(tmp_path / name, [row(1, 0.5)])
    FOUND.save(tmp_path / "simulated")
    (told,) = digest(gather([tmp_path / "real", tmp_path / "simulated"]))["predictions"]
    assert (told["scene"], told["variant"], told["measured"]) == (0, 1, "runs/real")
    assert told["quantities"] == [
        ["time to the end", "s", 100.1234568, 99],
        ["accuracy at the end", "metric", 0.75, None],
    ]
    assert told["jobs"] == [["0", 4, 5], ["3", 9.1235, 8]]
    assert (told["of"], told["notes"]) == (2, ["a note"])
    assert "predictionSection" in page(gather([tmp_path / "simulated"]))
    assert digest(gather([tmp_path / "real"]))["predictions"] == []


def test_of_many_clients_some_are_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "simulated", [row(1, 0.5)])
    Prediction("runs/real", ACCURACY, (), tuple(JobTime(n, 1.0, 1.0) for n in range(2000))).save(tmp_path / "simulated")
    (told,) = digest(gather([tmp_path / "simulated"]))["predictions"]
    assert (len(told["jobs"]), told["of"], told["jobs"][-1][0]) == (500, 2000, "1999")


def test_a_damaged_prediction_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "simulated", [row(1, 0.5)])
    (tmp_path / "simulated" / FILE).write_text("{")
    with pytest.raises(InputError, match=r"prediction\.json is damaged"):
        digest(gather([tmp_path / "simulated"]))
