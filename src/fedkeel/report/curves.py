"""Learning curves of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from matplotlib.figure import Figure

from fedkeel.record.runs import RunRecord, labels
from fedkeel.report.save import check_suffix, save

AXES = {
    "round": "round",
    "virtual_seconds": "virtual time (s)",
    "updates": "uploads aggregated",
    "bytes_up": "bytes uploaded",
}
FORMATS = (".png", ".svg", ".pdf")


def learning_curves(runs: Sequence[RunRecord], paths: Sequence[Path], x: str = "round") -> None:
    """Test accuracy, and test and training loss, over `x`; one file for each path, by its suffix."""
    for path in paths:
        check_suffix(path, FORMATS)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    marker = "o" if max(len(run.history) for run in runs) <= 30 else None
    apart = len({run.column(x)[-1] for run in runs}) > 1
    for number, run in enumerate(runs):
        style = {"color": f"C{number}", "linewidth": 1.8, "marker": marker, "markersize": 3}
        accuracy.plot(run.column(x), [100 * a for a in run.column("accuracy")], **style)
        loss.plot(run.column(x), run.column("loss"), **style)
        loss.plot(run.column(x), run.column("train_loss"), **{**style, "marker": None, "linestyle": ":"})
        if apart:  # a line that is shorter than others ends where the run does
            end = {**style, "marker": "o", "markersize": 6, "markeredgecolor": "white", "label": "_end"}
            accuracy.plot(run.column(x)[-1:], [100 * run.column("accuracy")[-1]], **end)
            loss.plot(run.column(x)[-1:], run.column("loss")[-1:], **end)
    accuracy.set(xlabel=AXES[x], ylabel="test accuracy (%)")
    loss.set(xlabel=AXES[x], ylabel="loss", title="test (solid), training (dotted)")
    accuracy.set_title("test accuracy")
    lines = [line for line in accuracy.get_lines() if line.get_label() != "_end"]
    legend = accuracy.legend(lines, [shorten(each, 60) for each in labels(runs)], frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may hold a dollar sign
    for axes in (accuracy, loss):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
        axes.xaxis.get_major_locator().set_params(integer=x in ("round", "updates"))
    for path in paths:
        save(figure, path, dpi=150)
