"""Learning curves of runs: a line for each group of seeds, with a band, and marks where runs ended early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedkeel.errors import InputError, label
from fedkeel.record.measured import Measured
from fedkeel.record.runs import RunRecord
from fedkeel.report.ends import MARKERS, STATES, End, end, ending
from fedkeel.report.grid import (
    GREY,
    INK,
    STEPS,
    dress,
    handle,
    is_log,
    legend,
    line_style,
    measured,
    same_limits,
    set_log,
)
from fedkeel.report.groups import Group, groups
from fedkeel.report.palette import Style, style
from fedkeel.report.save import check_suffix, save
from fedkeel.report.scales import Scale, axis, is_steep
from fedkeel.study.curves import Curve, Line, averaged, line
from fedkeel.study.plan import At

AXES: dict[str, At] = {"round": "rounds", "virtual_seconds": "time", "updates": "uploads", "bytes_up": "bytes"}
"""The scale of each column of the history that curves can be drawn over."""
FORMATS = (".png", ".svg", ".pdf")
POINTS = 2000
"""A curve has at most so many points."""
FEW = 30
"""Evaluations up to which each is marked by a dot."""
STEEP = 3
"""A diverged run may stretch the range of the losses by this factor."""


@dataclass(frozen=True)
class _Drawn:
    """A group of runs in a figure."""

    group: Group
    ends: Sequence[End]
    look: Style
    alone: bool
    """Whether there is no other group."""

    @property
    def averaged(self) -> list[RunRecord]:
        """The runs of the main line: the finished ones, or those that came closest to that."""
        for state in STATES:
            some = [each.run for each in self.ends if each.state == state and each.run.history]
            if some:
                return some
        return []

    @property
    def early(self) -> list[End]:
        """Runs that ended before time, as far as there is something to draw."""
        return [each for each in self.ends if each.state != "finished" and each.run.history]

    @property
    def entry(self) -> tuple[str, Artist]:
        """What the legend says."""
        words = ending(self.group, self.ends)
        worst = max(self.ends, key=lambda each: STATES.index(each.state)).state
        called = f"{self.group.name} ({words})" if words else self.group.name
        return called, handle(self.look, MARKERS[worst], "white")


Column = Callable[[RunRecord], list[float]]


def learning_curves(runs: Sequence[RunRecord], paths: Sequence[Path], x: str = "round", separate: bool = False) -> None:
    """Test metric, test loss and training loss over `x`; one file for each path, by its suffix.

    Runs that differ in their seed alone are drawn as their mean and a band from the lowest to the highest of them;
    with `separate`, every run is drawn for itself.
    """
    for path in paths:
        check_suffix(path, FORMATS)
    tested = [run for run in runs if run.history]
    if not tested:
        raise InputError(f"run folder {label(str(runs[0].path))} has no evaluation yet; wait for the first one")
    metric = _common_metric(tested)
    found = groups(runs, separate)
    drawn = [_Drawn(group, [*map(end, group.runs)], style(n), len(found) == 1) for n, group in enumerate(found)]
    figure = _figure(drawn, metric, _scale(tested, x), lambda run: run.column(x))
    for path in paths:
        save(figure, path, dpi=150)


def _common_metric(runs: Sequence[RunRecord]) -> Measured:
    names = {run.metrics[0].name: run for run in runs}
    if len(names) > 1:
        (one, first), (two, second) = list(names.items())[:2]
        raise InputError(
            f"runs: {label(str(first.path))} is tested by {one}, and {label(str(second.path))} by {two}; "
            "plot runs with the same main metric together"
        )
    return runs[0].metrics[0]


def _scale(runs: Sequence[RunRecord], x: str) -> Scale:
    scale = axis(AXES[x], max((place for run in runs for place in run.column(x) if place > 0), default=0.0))
    return replace(scale, label=scale.label.replace("sent up and down", "sent up"))


def _figure(drawn: Sequence[_Drawn], metric: Measured, scale: Scale, places: Column) -> Figure:
    """Two panels for one group, with both losses in the second; three for several."""
    alone = len(drawn) == 1
    count = 2 if alone else 3
    spacing = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03)
    height = min(6.0, 4.0 + 0.1 * max(0, len(drawn) - 8))
    figure = Figure(figsize=(4.5 * count, height), layout=spacing)
    panels = list(figure.subplots(1, count))
    _panel(panels[0], drawn, scale, places, lambda run: [metric.scale * value for value in run.column(metric.name)])
    _panel(panels[1], drawn, scale, places, lambda run: run.column("loss"))
    _panel(panels[-1], drawn, scale, places, lambda run: run.column("train_loss"), dotted=alone)
    titles = [f"test {metric.words}", "test loss (line), training loss (dotted)" if alone else "test loss"]
    for panel, title in zip(panels, [*titles, "training loss"], strict=False):
        panel.set_title(title, fontsize=10, color=INK)
        panel.set_ylabel("loss" if "loss" in title else f"{title} (%)" if metric.share else title, fontsize=9)
        panel.set_xlabel(scale.label, fontsize=9)
        _ticks(panel, scale)
    for some in [panels[1:], *([panels[:1]] if metric.error else [])]:
        _use_log(some)
    for panel in panels:
        _keep_readable(panel)
    same_limits(panels[1:], "y")
    for panel in panels:
        _at_the_edge(panel)
    legend(figure, [each.entry for each in drawn] + _band(drawn), _caption(drawn), least=1)
    return figure


def _panel(
    panel: Any, drawn: Sequence[_Drawn], scale: Scale, places: Column, values: Column, dotted: bool = False
) -> None:
    dress(panel)
    furthest = {places(run)[-1] for each in drawn if not each.early for run in each.averaged}
    for each in drawn:
        thin = {**line_style(each.look, 0.9), "alpha": 0.7}
        _mean(panel, each, [_line(run, places, values, scale) for run in each.averaged], dotted)
        if not dotted:
            for early in each.early:
                own = _line(early.run, places, values, scale)
                if own is not None:
                    if len(each.ends) > 1:
                        panel.plot(*own, **thin, zorder=2, label="_wild" if early.state == "diverged" else "_thin")
                    _mark(panel, own, each.look, early)
            if len(furthest) > 1 and not each.early:
                _last(panel, [_line(run, places, values, scale) for run in each.averaged], each.look)


def _line(run: RunRecord, places: Column, values: Column, scale: Scale) -> Line | None:
    return line(np.array(places(run)) / scale.unit, np.array(values(run)))


def _mean(panel: Any, each: _Drawn, lines: Sequence[Line | None], dotted: bool) -> None:
    """The mean of these lines and the band around it."""
    curve = _curve(lines)
    if not len(curve.x):
        return
    look = line_style(each.look)
    if all(early.state == "diverged" for early in each.ends):
        look |= {"label": "_wild"}
    if dotted:
        look |= {"linestyle": ":", "label": "_training"}
    elif len(curve.x) <= FEW and each.alone:
        look |= {"marker": "o", "markersize": 3}
    panel.plot(curve.x, curve.mean, **look, zorder=3)
    if curve.count > 1:
        panel.fill_between(curve.x, curve.low, curve.high, color=each.look.light, alpha=0.16, linewidth=0)


def _curve(lines: Sequence[Line | None]) -> Curve:
    return averaged([each for each in lines if each is not None], POINTS)


def _mark(panel: Any, own: Line, look: Style, early: End) -> None:
    """Where a run ended before time."""
    face = "white" if early.state != "diverged" else look.light
    panel.plot(
        own[0][-1:], own[1][-1:], MARKERS[early.state], color=look.light, markerfacecolor=face, markersize=7,
        markeredgewidth=1.8, zorder=5, label=f"_{early.state}",
    )  # fmt: skip


def _last(panel: Any, lines: Sequence[Line | None], look: Style) -> None:
    """A line that is shorter than others ends where its runs do."""
    curve = _curve(lines)
    if len(curve.x):
        panel.plot(
            curve.x[-1:], curve.mean[-1:], "o", color=look.light, markersize=5, markeredgecolor="white", zorder=4,
            label="_end",
        )  # fmt: skip


def _ticks(panel: Any, scale: Scale) -> None:
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=scale.whole))
    panel.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    if scale.whole:
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _calm(panel: Any) -> list[Any]:
    """The lines without those of diverged runs."""
    return [each for each in panel.get_lines() if each.get_label() not in ("_wild", "_diverged")]


def _use_log(panels: Sequence[Any]) -> None:
    """Where the first values are so large that a linear axis would flatten the lines of these panels."""
    if is_steep(value for panel in panels for each in _calm(panel) for value in each.get_ydata()):
        for panel in panels:
            set_log(panel)


def _keep_readable(panel: Any) -> None:
    """The last values of a diverged run may be huge: they must not flatten all other lines."""
    calm = _calm(panel)
    if not calm or len(calm) == len(panel.get_lines()):
        return
    low, high = measured(panel, "y", [pick(pick(each.get_ydata()) for each in calm) for pick in (min, max)])
    margin = 0.05 * (high - low or 1)
    bottom, top = measured(panel, "y", panel.get_ylim())
    if top > high + STEEP * (high - low) or bottom < low - STEEP * (high - low):
        ends = low - margin, high + margin
        panel.set_ylim([10**each for each in ends] if is_log(panel, "y") else ends)


def _at_the_edge(panel: Any) -> None:
    """Marks of divergence that are out of range are drawn at the edge."""
    for each in panel.get_lines():
        if each.get_label() == "_diverged":
            each.set_ydata(np.clip(each.get_ydata(), *panel.get_ylim()))
            each.set_clip_on(False)


def _band(drawn: Sequence[_Drawn]) -> list[tuple[str, Artist]]:
    """What line and band are, where some line is the mean of several runs."""
    several = {(len(each.averaged), each.group.unit) for each in drawn if len(each.averaged) > 1}
    if not several:
        return []
    whose = " ".join(map(str, *several)) if len(several) == 1 else "the seeds"
    return [(f"line: mean; band: lowest to highest of {whose}", Patch(color=GREY, alpha=0.25, linewidth=0))]


def _caption(drawn: Sequence[_Drawn]) -> str:
    """What the marks mean that there are."""
    states = {early.state for each in drawn for early in each.early}
    thin = any(len(each.ends) > 1 and each.early for each in drawn)
    said = [
        "A cross marks where training diverged." if "diverged" in states else "",
        "An open circle marks the last evaluation of a run that has not finished."
        if states & {"running", "unfinished"}
        else "",
        "Thin lines are single seeds that did not finish; means are over the others." if thin else "",
    ]
    return " ".join(filter(None, said))
