"""Figures of a comparison: one panel per scene, with one legend and one caption for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, log10
from textwrap import fill, shorten
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from fedkeel.errors import label
from fedkeel.report.palette import Style

MOST_PANELS = 24
"""In one figure; more scenes get another one."""
SQUEEZE = 2.5
"""By how much the range of a panel may grow so that all have the same."""
STEPS = (1, 2, 2.5, 5, 10)
"""Between two marks of an axis, times a power of ten."""
GREY, INK = "#6b6b6b", "#222222"
LONGEST = 48
"""Letters of a name."""


def pages(scenes: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many scenes as fit into a figure."""
    for first in range(0, len(scenes), MOST_PANELS):
        yield scenes[first : first + MOST_PANELS]


def columns(panels: int) -> int:
    """Of a grid: up to three, and two where that leaves no gap."""
    return 2 if panels in (2, 4) else min(3, panels)


def grid(scenes: Sequence[str], width: float, height: float) -> tuple[Figure, list[Any]]:
    """A figure with a panel per scene, each of this size in inches, titled by the scene where there are several."""
    across = columns(len(scenes))
    down = ceil(len(scenes) / across)
    spacing = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(across * width, down * height + 0.7), layout=spacing)
    panels = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for panel in panels[len(scenes) :]:
        panel.remove()
    for panel, scene in zip(panels, scenes, strict=False):
        dress(panel)
        panel.set_title(name(scene), fontsize=9, color=INK, loc="left", parse_math=False)
    return figure, panels[: len(scenes)]


def dress(panel: Any) -> None:
    """The look of all panels."""
    panel.grid(color="#d9d9d9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(GREY)
    panel.tick_params(labelsize=8, color=GREY, labelcolor=INK)


def name(words: str) -> str:
    """Of a variant or a scene, not too long."""
    return shorten(label(words), LONGEST, placeholder=" …") if words else ""


def line_style(style: Style, width: float = 1.6) -> dict[str, Any]:
    """As Matplotlib wants it."""
    dashes = (0, style.dash) if style.dash else "-"
    return {"color": style.light, "linestyle": dashes, "linewidth": width, "solid_capstyle": "round"}


def handle(style: Style, marker: str = "", face: str | None = None) -> Line2D:
    """What stands for a method in the legend: its line, with a marker where one is given."""
    marked: dict[str, Any] = {
        "marker": marker,
        "markersize": 6,
        "markerfacecolor": face or style.light,
        "markeredgewidth": 1.6,
    }
    return Line2D([], [], **line_style(style, 1.8), **(marked if marker else {}))


def legend(figure: Figure, entries: Sequence[tuple[str, Artist]], caption: str, least: int = 2) -> None:
    """Above all panels, what stands for which method; below them, what the marks mean. The figure grows with both.

    Fewer entries than `least` need no legend.
    """
    lines = fill(caption, int(figure.get_figwidth() * 18))
    figure.supxlabel(lines, fontsize=7.5, color=GREY)
    higher = 0.13 * lines.count("\n")
    if len(entries) >= least:
        down = _rows([len(words) for words, _ in entries], figure.get_figwidth())
        found = figure.legend(
            [artist for _, artist in entries],
            [words for words, _ in entries],
            loc="outside upper center",
            ncols=ceil(len(entries) / down),
            frameon=False,
            fontsize=8.5,
            handlelength=2.8,
            columnspacing=1.6,
            borderpad=0.1,
        )
        for text in found.get_texts():
            text.set_parse_math(False)  # a name may hold a dollar sign
        higher += 0.19 * (down - 1)
    figure.set_figheight(figure.get_figheight() + higher)


def _rows(letters: Sequence[int], inches: float) -> int:
    """Rows of a legend whose columns, each as wide as its longest entry, fit into so many inches."""
    for rows in range(1, len(letters)):
        columns = [letters[first : first + rows] for first in range(0, len(letters), rows)]
        if sum(0.75 + 0.075 * max(each) for each in columns) <= inches:
            return rows
    return len(letters)


def same_limits(panels: Sequence[Any], which: str) -> None:
    """The same range on the `x` or the `y` axis of all panels, unless that would squeeze some."""
    limits = [getattr(panel, f"get_{which}lim")() for panel in panels]
    ranges = [measured(panel, which, each) for panel, each in zip(panels, limits, strict=True)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if high - low <= SQUEEZE * min(high - low for low, high in ranges):
        ends = min(low for low, _ in limits), max(high for _, high in limits)
        for panel in panels:
            panel.set(**{f"{which}lim": ends})


def set_log(panel: Any) -> None:
    """Makes the y axis logarithmic, and its title says so."""
    panel.set_yscale("log")
    panel.set_ylabel(f"{panel.get_ylabel()}, log scale" if panel.get_ylabel() else "", fontsize=9)


def is_log(panel: Any, which: str) -> bool:
    """Whether an axis is logarithmic."""
    return bool(getattr(panel, f"get_{which}scale")() == "log")


def measured(panel: Any, which: str, values: Sequence[float]) -> list[float]:
    """Values by how far apart they are on an axis."""
    return [log10(each) for each in values] if is_log(panel, which) else list(values)
