"""Learning curves of runs that end at different times."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkeel.report.curves import learning_curves
from tests.helpers.report_folders import EVALUATION, record


@pytest.mark.parametrize(("second", "ends"), [(18.0, []), (40.0, [18.0, 40.0])])
def test_ends_are_marked_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: float, ends: list[float]
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("fedkeel.report.curves.save", lambda figure, *_, **__: drawn.append(figure))
    run = record(tmp_path, [])
    runs = [
        replace(run, path=tmp_path / name, history=[EVALUATION, EVALUATION | {"virtual_seconds": end}])
        for name, end in (("a", 18.0), ("b", second))
    ]
    learning_curves(runs, [tmp_path / "a.png"], "virtual_seconds")
    accuracy, loss = drawn[0].axes
    assert [line.get_xdata()[0] for line in accuracy.get_lines() if len(line.get_xdata()) == 1] == ends
    assert [line.get_xdata()[0] for line in loss.get_lines() if len(line.get_xdata()) == 1] == ends
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == [
        "fedasmu, iid, seed 0 (a)",  # they have the same words
        "fedasmu, iid, seed 0 (b)",
    ]


def test_halves_of_methods_are_named(tmp_path: Path) -> None:
    run = record(tmp_path, [])
    described = {**run.experiment, "algorithm": {"name": "fedavg", "client": "my_rules:Near", "server": None}}
    assert replace(run, experiment=described).label == "Near+fedavg, iid, seed 0"


def test_a_figure_is_laid_out_once_and_drawn_once_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out, drawn = [], []
    execute, draw = ConstrainedLayoutEngine.execute, Figure.draw
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *a: (laid_out.append(1), execute(*a)))
    monkeypatch.setattr(Figure, "draw", lambda *a: (drawn.append(1), draw(*a)))
    run = record(tmp_path / "run", [])
    learning_curves([run], [tmp_path / "a.png", tmp_path / "a.svg"])
    assert (len(laid_out), len(drawn)) == (1, 2)
