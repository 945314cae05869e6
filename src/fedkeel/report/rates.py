"""The learning rates that clients really used, epoch by epoch, or step by step where steps are counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedkeel.errors import InputError, label
from fedkeel.record.runs import RunRecord
from fedkeel.report.curves import FORMATS
from fedkeel.report.groups import titles
from fedkeel.report.save import check_suffix, save

SHOWN = 10
"""Epochs that get a line of their own, from the first to the last."""


def learning_rates(runs: Sequence[RunRecord], paths: Sequence[Path]) -> None:
    """Over rounds, a line for each local epoch: the mean of that round's clients, and a band from least to most."""
    for path in paths:
        check_suffix(path, FORMATS)
    columns = min(len(runs), 3)
    lines = -(-len(runs) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.4 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, run, title in zip(panels, runs, titles(runs), strict=False):
        rounds, used = by_epoch(run)
        word = "epoch" if (run.experiment.get("local") or {}).get("steps") is None else "step"
        shown = np.unique(np.linspace(0, used.shape[1] - 1, min(SHOWN, used.shape[1])).round().astype(int))
        for number, epoch in enumerate(shown):
            colour = colormaps["viridis"](0.85 * number / max(1, len(shown) - 1))
            least, mean, most = used[:, epoch].T
            axes.plot(rounds, mean, color=colour, linewidth=1.6, label=f"{word} {epoch + 1}")
            axes.fill_between(rounds, least, most, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="round", ylabel="learning rate", ylim=(0, None))
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    for path in paths:
        save(figure, path, dpi=150)


def by_epoch(run: RunRecord) -> tuple[list[int], NDArray[np.float64]]:
    """(Rounds, rates [rounds, epochs, 3]): the least, the mean and the most; NaN where nobody did an epoch."""
    told: dict[int, list[list[float]]] = {}
    with run.told_if_damaged("clients.jsonl"):
        for row in run.arrivals():
            told.setdefault(row["round"], []).append([float(rate) for rate in row["learning_rates"]])
        if not told:
            raise InputError(f"run folder {label(str(run.path))}: no update has arrived yet; wait for the first one")
        epochs = max(len(rates) for rows in told.values() for rates in rows)
        used = np.full((len(told), epochs, 3), np.nan)
        for place, rows in enumerate(told.values()):
            for epoch in range(max(map(len, rows))):
                rates = [each[epoch] for each in rows if len(each) > epoch]
                used[place, epoch] = min(rates), np.mean(rates), max(rates)
    return list(told), used
