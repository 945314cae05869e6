"""The picture of a prediction: the metric over time, and how long the jobs of each client took."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from fedkeel.record.runs import RunRecord
from fedkeel.report.curves import FORMATS, POINTS
from fedkeel.report.grid import GREY, INK, STEPS, dress, handle, legend, line_style, measured
from fedkeel.report.palette import style
from fedkeel.report.save import check_suffix, save
from fedkeel.report.scales import axis
from fedkeel.study.curves import averaged, line
from fedkeel.study.prediction import JobTime, Prediction

SPREAD = 10
"""Jobs that differ by more than this factor are drawn on logarithmic axes."""
FEW = 12
"""Up to so many clients have their numbers beside their points."""
NEAR = 0.04
"""Points that are closer than this share of the axis have one label."""


def prediction_figure(real: RunRecord, simulated: RunRecord, found: Prediction, path: Path) -> None:
    """Both runs over time; and the seconds of each client's jobs, predicted against measured."""
    check_suffix(path, FORMATS)
    spacing = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.05)
    figure = Figure(figsize=(9.6, 4.3), layout=spacing)
    curves, jobs = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _curves(curves, [real, simulated], found)
    _jobs(jobs, found.clients)
    names = [("measured", handle(style(0))), ("predicted", handle(style(1)))]
    legend(figure, names, "")
    save(figure, path, dpi=150)


def _curves(panel: Any, runs: Sequence[RunRecord], found: Prediction) -> None:
    dress(panel)
    metric = found.metric
    longest = max(run.column("virtual_seconds")[-1] for run in runs)
    scale = axis("time", longest)
    for place, run in enumerate(runs):
        own = line(np.array(run.column("virtual_seconds")) / scale.unit, np.array(run.column(metric.name)))
        if own is not None:
            curve = averaged([own], POINTS)
            panel.plot(curve.x, metric.scale * curve.mean, **line_style(style(place)), zorder=3 + place)
    panel.set_title(f"test {metric.words}", fontsize=10, color=INK, parse_math=False)
    panel.set_ylabel(f"test {metric.words}{' (%)' if metric.share else ''}", fontsize=9, parse_math=False)
    panel.set_xlabel(scale.label.replace("virtual time", "time"), fontsize=9)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    panel.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))


def _jobs(panel: Any, clients: Sequence[JobTime]) -> None:
    """A point for each client; on the diagonal, the prediction is right."""
    dress(panel)
    panel.set_title("median job of each client", fontsize=10, color=INK)
    panel.set(box_aspect=1)
    panel.set_xlabel("measured (s)", fontsize=9)
    panel.set_ylabel("predicted (s)", fontsize=9)
    times = np.array([(each.measured, each.predicted) for each in clients]).reshape(-1, 2)
    ends = _range(panel, times)
    panel.plot(ends, ends, color=GREY, linewidth=1, linestyle="--", zorder=2)
    panel.scatter(*times.T, s=30, color=style(2).light, edgecolor="white", linewidth=0.6, zorder=3)
    for names, place in _named(panel, clients) if len(clients) <= FEW else ():
        panel.annotate(names, place, (6, -8), textcoords="offset points", fontsize=7.5, color=GREY)


def _named(panel: Any, clients: Sequence[JobTime]) -> list[tuple[str, tuple[float, float]]]:
    """(Numbers of clients, the place of the last of them): those whose points are close have one label."""
    low, high = measured(panel, "x", panel.get_xlim())
    order = sorted(clients, key=lambda each: each.measured + each.predicted)
    places = np.array([measured(panel, "x", (each.measured, each.predicted)) for each in order])
    groups = [[each] for each in order[:1]]
    for each, step in zip(order[1:], np.abs(np.diff(places, axis=0)), strict=True):
        if step.max() <= NEAR * (high - low):
            groups[-1].append(each)
        else:
            groups.append([each])
    return [
        (", ".join(str(each.client) for each in group), (group[-1].measured, group[-1].predicted)) for group in groups
    ]


def _range(panel: Any, times: Any) -> tuple[float, float]:
    """The same on both axes, which becomes logarithmic where jobs differ much."""
    if not times.size or not times.max() > 0:
        panel.set(xlim=(0, 1), ylim=(0, 1))
        return 0.0, 1.0
    low, high = float(times.min()), float(times.max())
    if low > 0 and high > SPREAD * low:
        ends = low / 1.4, high * 1.4
        panel.set(xscale="log", yscale="log")
        wide = log10(high / low) < 2
        for each in (panel.xaxis, panel.yaxis):
            each.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else (1,)))
            each.set_major_formatter(StrMethodFormatter("{x:g}"))
            each.set_minor_locator(NullLocator())
    else:
        ends = 0.0, 1.1 * high
        for each in (panel.xaxis, panel.yaxis):
            each.set_major_locator(MaxNLocator(6, steps=STEPS))
    panel.set(xlim=ends, ylim=ends)
    return ends
