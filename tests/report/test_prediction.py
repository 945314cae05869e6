"""The picture of a prediction: both curves, and a point for each client."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedkeel import InputError
from fedkeel.record.measured import ACCURACY, Measured
from fedkeel.record.runs import RunRecord
from fedkeel.report import prediction as report
from fedkeel.report.prediction import prediction_figure
from fedkeel.study.prediction import JobTime, Prediction
from tests.helpers.studies import row, write_run

JOBS = (JobTime(0, 4.0, 5.0), JobTime(1, 9.0, 8.0), JobTime(5, 4.1, 5.1))
FOUND = Prediction("runs/real", ACCURACY, (), JOBS)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures instead of files."""
    figures: list[Figure] = []
    monkeypatch.setattr(report, "save", lambda figure, *_, **__: figures.append(figure))
    return figures


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunRecord, RunRecord]:
    for name, values in (("real", (0.1, 0.5)), ("simulated", (0.2, 0.6, 0.7))):
        write_run(tmp_path / name, [row(n, value) for n, value in enumerate(values, 1)])
    return RunRecord.read(tmp_path / "real"), RunRecord.read(tmp_path / "simulated")


def test_both_curves_over_time_in_percent(drawn: list[Figure], runs: tuple[RunRecord, RunRecord]) -> None:
    prediction_figure(*runs, FOUND, Path("a.png"))
    curves = drawn[0].axes[0]
    assert [line.get_ydata().tolist() for line in curves.lines] == [[10, 50], [20, 60, 70]]
    assert [line.get_xdata().tolist() for line in curves.lines] == [run.column("virtual_seconds") for run in runs]
    assert curves.get_ylabel() == "test accuracy (%)"
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["measured", "predicted"]


def test_a_point_for_each_client_beside_the_diagonal(drawn: list[Figure], runs: tuple[RunRecord, RunRecord]) -> None:
    prediction_figure(*runs, FOUND, Path("a.png"))
    jobs = drawn[0].axes[1]
    assert jobs.collections[0].get_offsets().tolist() == [[4, 5], [9, 8], [4.1, 5.1]]
    assert jobs.get_xlim() == jobs.get_ylim()
    assert [*jobs.lines[0].get_xdata()] == [*jobs.lines[0].get_ydata()]
    assert [text.get_text() for text in jobs.texts] == ["0, 5", "1"]  # those that are close have one label
    assert jobs.get_xscale() == "linear"


def test_jobs_that_differ_much_are_on_logarithmic_axes(drawn: list[Figure], runs: tuple[RunRecord, RunRecord]) -> None:
    many = tuple(JobTime(n, 1.5**n, 1.4**n) for n in range(30))
    prediction_figure(*runs, replace(FOUND, clients=many), Path("a.png"))
    jobs = drawn[0].axes[1]
    assert (jobs.get_xscale(), jobs.get_yscale()) == ("log", "log")
    assert len(jobs.texts) == 0


def test_nothing_in_common_is_no_mistake(runs: tuple[RunRecord, RunRecord], tmp_path: Path) -> None:
    prediction_figure(
        *runs, replace(FOUND, clients=(), metric=Measured("loss", "lower", share=False)), tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(InputError, match="out must be a file name that ends in"):
        prediction_figure(*runs, FOUND, tmp_path / "a.txt")
