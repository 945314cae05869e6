"""The figures of staleness and weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedkeel import InputError
from fedkeel.report import staleness
from fedkeel.report.staleness import _whole, arrived, staleness_histograms, weight_histograms
from tests.helpers.commands import fedkeel
from tests.helpers.report_folders import record

ROWS: list[dict[str, Any]] = [
    {"staleness": 0, "weight": 0.5},
    {"staleness": 2, "weight": None},
    {"staleness": 2, "weight": 0.25, "accepted": True},
    {"staleness": 9, "weight": 0.0, "accepted": False},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr(staleness, "save", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_updates_are_read_in_their_order(tmp_path: Path) -> None:
    told = arrived(record(tmp_path, ROWS))
    assert told.staleness.tolist() == [0, 2, 2, 9]
    assert told.weight[[0, 2, 3]].tolist() == [0.5, 0.25, 0.0]
    assert np.isnan(told.weight[1])
    assert told.accepted.tolist() == [True, True, True, False]


def test_a_bar_for_every_staleness_and_refused_updates_on_top(tmp_path: Path, drawn: list[Figure]) -> None:
    run, synchronous = record(tmp_path / "a", ROWS), record(tmp_path / "b", [{"staleness": 0, "weight": 1.0}])
    staleness_histograms([run, synchronous], [tmp_path / "a.png"])
    one, two = drawn[0].axes
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height()) for bar in one.patches]
    assert [bar for bar in bars if bar[2]] == [(0, 0, 1), (2, 0, 2), (9, 0, 1)]
    assert [text.get_text() for text in one.get_legend().get_texts()] == ["accepted", "refused"]
    assert one.get_title() == "a\nmean 3.2, highest 9"
    assert [bar.get_height() for bar in two.patches] == [1] + [0] * 9
    assert two.get_legend() is None


def test_edges_lie_between_whole_numbers() -> None:
    assert _whole(0) == [-0.5, 0.5]
    assert _whole(2) == [-0.5, 0.5, 1.5, 2.5]
    edges = _whole(1000)
    assert set(np.diff(edges)) == {9.0}
    assert (edges[0], edges[-2] < 1000 < edges[-1]) == (-0.5, True)


def test_weights_and_weights_over_staleness(tmp_path: Path, drawn: list[Figure]) -> None:
    weight_histograms([record(tmp_path, ROWS)], [tmp_path / "a.png"])
    above, below = drawn[0].axes
    assert sum(bar.get_height() for bar in above.patches) == 2
    assert below.collections[0].get_offsets().tolist() == [[0.0, 0.5], [2.0, 0.25]]
    assert (above.get_xscale(), below.get_yscale()) == ("linear", "linear")
    assert above.get_title().endswith("2 of 4 without a weight")


def test_weights_of_very_different_sizes_have_a_logarithmic_scale(tmp_path: Path, drawn: list[Figure]) -> None:
    rows = [{"staleness": n, "weight": 10.0**-n} for n in range(5)]
    weight_histograms([record(tmp_path, rows)], [tmp_path / "a.png"])
    above, below = drawn[0].axes
    assert (above.get_xscale(), below.get_yscale()) == ("log", "log")
    assert sum(bar.get_height() for bar in above.patches) == 5
    assert above.get_title() == "fedasmu, iid, seed 0"


@pytest.mark.parametrize("runs", [1, 2, 4])
def test_runs_stand_beside_and_below_each_other(tmp_path: Path, drawn: list[Figure], runs: int) -> None:
    records = [record(tmp_path / str(n), [{"staleness": n, "weight": 0.125}]) for n in range(runs)]
    staleness_histograms(records, [tmp_path / "a.png"])
    weight_histograms(records, [tmp_path / "a.png"])
    assert [sum(axes.get_visible() for axes in figure.axes) for figure in drawn] == [runs, 2 * runs]
    shown = [axes for axes in drawn[1].axes if axes.get_visible() and axes.collections]
    assert sorted(axes.collections[0].get_offsets().tolist()[0] for axes in shown) == [[n, 0.125] for n in range(runs)]


def test_damaged_and_empty_records_are_told(tmp_path: Path) -> None:
    for number, (rows, told) in enumerate(
        (([], "no update has arrived"), ([{"weight": 1.0}], "damaged"), ([{"staleness": None}], "damaged"))
    ):
        with pytest.raises(InputError, match=told):
            arrived(record(tmp_path / str(number), rows))
    with pytest.raises(InputError, match="no update was given a weight"):
        weight_histograms([record(tmp_path, [{"staleness": 0, "weight": None}])], [tmp_path / "a.png"])
    for draw in (staleness_histograms, weight_histograms):
        with pytest.raises(InputError, match="ends in"):
            draw([record(tmp_path, ROWS)], [tmp_path / "a.txt"])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["staleness", "weights"])
def test_the_command(tmp_path: Path, what: str) -> None:
    record(tmp_path / "run", ROWS)
    done = fedkeel("plot", "run", "run", "--what", what, cwd=tmp_path)
    assert done.stdout.split() == [f"{what}.png"], done.stderr
    assert (tmp_path / f"{what}.png").read_bytes().startswith(b"\x89PNG")
