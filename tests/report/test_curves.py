"""Learning curves: a line for each group of seeds, and marks where runs ended."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkeel.errors import InputError
from fedkeel.record.divergence import DIVERGED
from fedkeel.record.measured import known
from fedkeel.record.runs import RunRecord
from fedkeel.record.schema import SUMMARY
from fedkeel.report import curves as module
from fedkeel.report.curves import learning_curves
from tests.helpers.report_folders import record
from tests.helpers.studies import row, write_run


def judged(monkeypatch: pytest.MonkeyPatch, metric: Callable[[RunRecord], str], column: str) -> None:
    """Let runs be judged by a metric whose values are those of another column."""
    read = RunRecord.column
    monkeypatch.setattr(RunRecord, "metrics", property(lambda run: (known(metric(run)),)))
    monkeypatch.setattr(RunRecord, "column", lambda run, name: read(run, column if name == metric(run) else name))


def run(
    folder: Path, method: str, seed: int, rounds: int = 4, state: str = "finished", losses: Sequence[float] = ()
) -> RunRecord:
    """A run whose accuracy is 0.1 per round, and 0.01 more per seed."""
    history = [row(n, 0.1 * n + 0.01 * seed, loss=loss) for n, loss in enumerate(losses or [1.0] * rounds, 1)]
    described = {"algorithm": {"name": method}, "seed": seed, "rounds": 6, "local": {"lr": 0.1}}
    path = write_run(folder / f"{method}-{seed}", history, described)
    for name in (SUMMARY, DIVERGED):
        (path / name).unlink(missing_ok=True)
    if state != "unfinished":
        (path / (SUMMARY if state == "finished" else DIVERGED)).write_text('{"error": "it diverged"}')
    return RunRecord.begun(path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures, which are not written."""
    found: list[Figure] = []
    monkeypatch.setattr(module, "save", lambda figure, *_, **__: found.append(figure))
    return found


def draw(drawn: list[Figure], runs: Sequence[RunRecord], **more: Any) -> Figure:
    learning_curves(runs, [Path("a.png")], **more)
    return drawn[-1]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes: Axes, label: str = "_child") -> list[Any]:
    """Those with a label that begins like this; means have the label that Matplotlib gives to all."""
    return [each for each in axes.get_lines() if str(each.get_label()).startswith(label)]


def test_seeds_are_one_line_and_a_band(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = [run(tmp_path, method, seed) for method in ("fedavg", "fedprox") for seed in (0, 1, 5)]
    figure = draw(drawn, runs)
    accuracy, test, training = figure.axes
    assert (accuracy.get_ylabel(), test.get_title(), training.get_title()) == (
        "test accuracy (%)", "test loss", "training loss",
    )  # fmt: skip
    for line, band in zip(lines(accuracy), accuracy.collections, strict=True):
        assert line.get_ydata() == pytest.approx([12, 22, 32, 42])  # the mean seed is 2
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((10, 45))
    assert legend(figure) == ["fedavg", "fedprox", "line: mean; band: lowest to highest of 3 seeds"]
    figure = draw(drawn, runs[:-1])
    assert legend(figure)[-1] == "line: mean; band: lowest to highest of the seeds"  # 3 and 2


def test_seeds_can_be_drawn_one_by_one(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = [run(tmp_path, method, seed) for method in ("fedavg", "fedprox") for seed in (0, 1)]
    figure = draw(drawn, runs, separate=True)
    assert len(lines(figure.axes[0])) == 4
    assert not figure.axes[0].collections
    assert legend(figure) == ["fedavg, seed 0", "fedavg, seed 1", "fedprox, seed 0", "fedprox, seed 1"]


def test_runs_that_diverged_or_are_not_finished_are_marked_where_they_end(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = [
        run(tmp_path, "fedavg", 0),
        run(tmp_path, "fedavg", 1, 2, "unfinished"),
        run(tmp_path, "fedprox", 0, 3, "diverged"),
    ]
    figure = draw(drawn, runs)
    assert legend(figure) == ["fedavg (1 of 2 seeds unfinished, round 2 of 6)", "fedprox (diverged in round 4)"]
    for panel in figure.axes:
        (open_,), (cross,) = lines(panel, "_unfinished"), lines(panel, "_diverged")
        assert (open_.get_marker(), open_.get_xdata().tolist()) == ("o", [2])
        assert (cross.get_marker(), cross.get_xdata().tolist()) == ("x", [3])
        (thin,) = lines(panel, "_thin")
        assert thin.get_xdata().tolist() == [1, 2]
    mean = lines(figure.axes[0])[0]
    assert mean.get_ydata() == pytest.approx([10, 20, 30, 40])  # of the finished seed alone
    assert "A cross marks where training diverged." in figure.get_supxlabel()


def test_a_loss_that_exploded_does_not_flatten_the_others(tmp_path: Path, drawn: list[Figure]) -> None:
    calm = run(tmp_path, "fedavg", 0, losses=[3.0, 1.0])
    figure = draw(drawn, [calm, run(tmp_path, "fedprox", 0, state="diverged", losses=[3.0, 1e6])])
    low, high = figure.axes[1].get_ylim()
    assert low < 1 < 3 < high < 5
    (cross,) = lines(figure.axes[1], "_diverged")
    assert (cross.get_xdata().tolist(), cross.get_ydata().tolist()) == ([2], [high])


def test_losses_that_differ_a_hundredfold_have_a_logarithmic_axis(tmp_path: Path, drawn: list[Figure]) -> None:
    figure = draw(drawn, [run(tmp_path, name, 0, losses=[3e9, 5.0, 2.0]) for name in ("fedavg", "fedprox")])
    accuracy, *losses = figure.axes
    assert (accuracy.get_yscale(), accuracy.get_ylabel()) == ("linear", "test accuracy (%)")
    for panel in losses:  # both or none, although the training loss is always 1
        assert (panel.get_yscale(), panel.get_ylabel()) == ("log", "loss, log scale")
    assert losses[0].get_ylim()[0] < 2 < 3e9 < losses[0].get_ylim()[1]
    for name, some in (("little", [100.0, 1.0]), ("zero", [1000.0, 0.0])):
        figure = draw(drawn, [run(tmp_path / name, "fedavg", 0, losses=some)])
        assert (figure.axes[1].get_yscale(), figure.axes[1].get_ylabel()) == ("linear", "loss"), name


def test_on_a_logarithmic_axis_a_loss_that_exploded_is_at_the_edge(tmp_path: Path, drawn: list[Figure]) -> None:
    calm = run(tmp_path, "fedavg", 0, losses=[300.0, 1.0])
    figure = draw(drawn, [calm, run(tmp_path, "fedprox", 0, state="diverged", losses=[300.0, 1e30])])
    assert figure.axes[1].get_yscale() == "log"
    low, high = figure.axes[1].get_ylim()
    assert 0.5 < low < 1 < 300 < high < 600
    (cross,) = lines(figure.axes[1], "_diverged")
    assert cross.get_ydata().tolist() == [high]


@pytest.mark.parametrize(("metric", "scale"), [("rmse", "log"), ("r2", "linear"), ("accuracy", "linear")])
def test_only_errors_have_a_logarithmic_axis(
    tmp_path: Path, drawn: list[Figure], monkeypatch: pytest.MonkeyPatch, metric: str, scale: str
) -> None:
    judged(monkeypatch, lambda _: metric, "loss")
    figure = draw(drawn, [run(tmp_path, "fedavg", 0, losses=[0.9, 0.001])])
    assert figure.axes[0].get_yscale() == scale
    assert figure.axes[0].get_ylabel().endswith(", log scale") == (scale == "log")


def test_a_run_that_diverged_before_its_first_test_is_named(tmp_path: Path, drawn: list[Figure]) -> None:
    early = run(tmp_path, "fedprox", 0, 0, "diverged")
    figure = draw(drawn, [run(tmp_path, "fedavg", 0), early])
    assert legend(figure) == ["fedavg", "fedprox (diverged in round 1)"]
    with pytest.raises(InputError, match="has no evaluation yet; wait for the first one"):
        learning_curves([early], [Path("a.png")])


@pytest.mark.parametrize(("second", "ends"), [(4, []), (2, [2, 4])])
def test_ends_are_marked_where_they_differ(tmp_path: Path, drawn: list[Figure], second: int, ends: list[float]) -> None:
    figure = draw(drawn, [run(tmp_path, "fedavg", 0), run(tmp_path, "fedprox", 0, second)])
    for panel in figure.axes:
        assert sorted(line.get_xdata()[0] for line in lines(panel, "_end")) == ends


def test_one_run_has_both_losses_in_one_panel_and_the_name_of_its_folder(tmp_path: Path, drawn: list[Figure]) -> None:
    figure = draw(drawn, [run(tmp_path, "fedavg", 0)], x="virtual_seconds")
    _, losses = figure.axes
    assert losses.get_title() == "test loss (line), training loss (dotted)"
    assert [line.get_linestyle() for line in losses.get_lines()] == ["-", ":"]
    assert losses.get_xlabel() == "virtual time (s)"
    assert losses.get_lines()[0].get_xdata().tolist() == [10, 20, 30, 40]
    assert legend(figure) == ["fedavg-0"]


def test_28_methods_have_28_colours_and_all_are_in_the_legend(tmp_path: Path, drawn: list[Figure]) -> None:
    figure = draw(drawn, [run(tmp_path, f"method{n}", 0, 2) for n in range(28)])
    assert len({to_hex(line.get_color()) for line in lines(figure.axes[0])}) == 28
    assert legend(figure) == [f"method{n}" for n in range(28)]
    figure.draw_without_rendering()
    inside = figure.legends[0].get_window_extent()
    assert inside.x0 >= 0
    assert inside.x1 <= figure.bbox.x1
    assert all(not panel.get_window_extent().overlaps(inside) for panel in figure.axes)


def test_runs_with_different_main_metrics_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run(tmp_path, "fedavg", 0), run(tmp_path, "fedprox", 0)]
    names = {runs[0].path: "accuracy", runs[1].path: "loss"}
    judged(monkeypatch, lambda run: names[run.path], "accuracy")
    with pytest.raises(InputError, match=r"is tested by accuracy, and .* by loss; plot runs with the same"):
        learning_curves(runs, [Path("a.png")])


def test_metrics_that_are_no_shares_have_no_percent(
    tmp_path: Path, drawn: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, lambda _: "rmse", "accuracy")
    figure = draw(drawn, [run(tmp_path, "fedavg", 0)])
    assert figure.axes[0].get_ylabel() == "test rmse"
    assert lines(figure.axes[0])[0].get_ydata() == pytest.approx(np.array([0.1, 0.2, 0.3, 0.4]))


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
