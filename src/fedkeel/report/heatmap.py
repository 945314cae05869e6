"""Pictures of who holds which labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedkeel.report.save import check_suffix, save

MOST_CLIENTS = 1000
"""More columns than this cannot be told apart."""


def label_heatmap(
    counts: NDArray[np.int64], path: str | Path, title: str = "Samples of each label on each client"
) -> None:
    """Write a PNG of `counts` [clients, classes]: labels upwards, clients to the right, white where none.

    Of more than 1,000 clients it shows the first 1,000, and says so.
    """
    check_suffix(Path(path), [".png"])
    save(_draw(counts, title), Path(path), dpi=150)


def _draw(counts: NDArray[np.int64], title: str) -> Figure:
    clients, classes = counts.shape
    shown = counts[:MOST_CLIENTS]
    figure = Figure(figsize=_inches(len(shown), classes), dpi=150, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=_client_axis(clients), ylabel="label")
    image = axes.imshow(
        shown.T,
        cmap=colormaps["viridis_r"].with_extremes(under="white"),
        vmin=1,
        vmax=max(2, shown.max()),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    axes.xaxis.set_major_locator(_whole_numbers(20))
    axes.yaxis.set_major_locator(_whole_numbers(30))
    figure.colorbar(image, label="samples", extend="min", fraction=0.05, pad=0.02, aspect=40)
    return figure


def _inches(columns: int, rows: int) -> tuple[float, float]:
    """Room for every cell, between the width of a column of text and that of a screen."""
    return min(max(3 + 0.2 * columns, 6), 14), min(max(1.5 + 0.25 * rows, 3), 9)


def _client_axis(clients: int) -> str:
    return "client" if clients <= MOST_CLIENTS else f"client (the first {MOST_CLIENTS:,} of {clients:,})"


def _whole_numbers(most: int) -> MaxNLocator:
    return MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
