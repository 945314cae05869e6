"""How old updates were when they arrived, and what weight they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedkeel.errors import InputError, label
from fedkeel.record.runs import RunRecord
from fedkeel.report.curves import FORMATS
from fedkeel.report.groups import titles
from fedkeel.report.save import check_suffix, save

COLUMNS = 3
"""Runs beside each other."""
BARS = 40
"""In a histogram of weights at most."""
WHOLE = 120
"""In one of staleness."""
TAKEN, REFUSED = "#3d79b3", "#cb181d"


@dataclass(frozen=True)
class Arrived:
    """All updates of a run."""

    staleness: NDArray[np.int64]
    """[updates]"""
    weight: NDArray[np.float64]
    """[updates], NaN where it has none."""
    accepted: NDArray[np.bool_]
    """[updates]"""


def staleness_histograms(runs: Sequence[RunRecord], paths: Sequence[Path]) -> None:
    """A panel for each run: how many updates had which staleness; one file for each path, by its suffix."""
    for path in paths:
        check_suffix(path, FORMATS)
    told = [arrived(run) for run in runs]
    figure, panels = _panels(len(runs), 1)
    bins = _whole(max(int(each.staleness.max()) for each in told))
    for (axes,), title, each in zip(panels, titles(runs), told, strict=True):
        stacked = [each.staleness[each.accepted], each.staleness[~each.accepted]]
        some = 2 if len(stacked[1]) else 1
        axes.hist(
            stacked[:some], bins, stacked=True, color=[TAKEN, REFUSED][:some], label=["accepted", "refused"][:some]
        )
        mean, most = each.staleness.mean(), each.staleness.max()
        axes.set_title(f"{title}\nmean {mean:.1f}, highest {most}", fontsize=10, parse_math=False)
        axes.set(xlabel="staleness (versions)", ylabel="updates")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if some == 2:
            axes.legend(frameon=False, fontsize=8)
    for path in paths:
        save(figure, path, dpi=150)


def weight_histograms(runs: Sequence[RunRecord], paths: Sequence[Path]) -> None:
    """For each run the weights that accepted updates were given, and below that these over staleness."""
    for path in paths:
        check_suffix(path, FORMATS)
    figure, panels = _panels(len(runs), 2)
    for (above, below), run, title in zip(panels, runs, titles(runs), strict=True):
        each = arrived(run)
        known = each.accepted & ~np.isnan(each.weight)
        if not known.any():
            raise InputError(
                f"run folder {label(str(run.path))}: no update was given a weight; plot --what staleness instead"
            )
        weights = each.weight[known]
        logarithmic = weights.min() > 0 and weights.max() > 100 * weights.min()
        scale = "log" if logarithmic else "linear"
        above.hist(weights, _bins(weights, logarithmic), color=TAKEN)
        above.set(xlabel="weight", ylabel="updates", xscale=scale)
        above.yaxis.set_major_locator(MaxNLocator(integer=True))
        left_out = "" if known.all() else f"\n{len(known) - len(weights):,} of {len(known):,} without a weight"
        above.set_title(title + left_out, fontsize=10, parse_math=False)
        opacity = float(np.clip(200 / len(weights), 0.08, 0.6))
        below.scatter(each.staleness[known], weights, s=12, color=TAKEN, alpha=opacity, linewidth=0)
        below.set(xlabel="staleness (versions)", ylabel="weight", yscale=scale)
        below.set_xlim(-0.5, max(1, int(each.staleness[known].max())) + 0.5)
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for path in paths:
        save(figure, path, dpi=150)


def arrived(run: RunRecord) -> Arrived:
    """Staleness and weights, in the order of arrival."""
    with run.told_if_damaged("clients.jsonl"):
        rows = [(row["staleness"], row.get("weight"), row.get("accepted", True)) for row in run.arrivals()]
        if not rows:
            raise InputError(f"run folder {label(str(run.path))}: no update has arrived yet; wait for the first one")
        staleness, weight, accepted = zip(*rows, strict=True)
        return Arrived(
            np.array(staleness, dtype=np.int64), np.array(weight, dtype=np.float64), np.array(accepted, dtype=np.bool_)
        )


def _whole(most: int) -> list[float]:
    """Edges around the whole numbers from 0 to `most`, or around groups of them, if there are many."""
    width = -(-(most + 1) // WHOLE)
    return [edge - 0.5 for edge in range(0, most + width + 1, width)]


def _bins(values: NDArray[np.float64], logarithmic: bool) -> list[float]:
    count = min(BARS, max(10, len(values) // 10))
    edges = np.geomspace(values.min(), values.max(), count + 1) if logarithmic else None
    return [float(edge) for edge in (np.histogram_bin_edges(values, count) if edges is None else edges)]


def _panels(runs: int, rows: int) -> tuple[Figure, list[tuple[Axes, ...]]]:
    """`rows` panels below each other for every run, in columns; those of no run are hidden."""
    columns = min(runs, COLUMNS)
    blocks = -(-runs // columns)
    figure = Figure(figsize=(max(4.5 * columns, 6), 3.2 * rows * blocks), layout="constrained")
    grid = figure.subplots(rows * blocks, columns, squeeze=False)
    places = [
        tuple(grid[rows * block + row, column] for row in range(rows))
        for block in range(blocks)
        for column in range(columns)
    ]
    for axes in grid.flat:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for unused in places[runs:]:
        for axes in unused:
            axes.set_visible(False)
    return figure, places[:runs]
