"""Figures of a comparison, for papers and slides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedkeel.errors import unknown
from fedkeel.record.measured import Measured
from fedkeel.report.dots import final_values, to_target
from fedkeel.report.grid import GREY, STEPS, grid, handle, legend, line_style, name, pages, same_limits, set_log
from fedkeel.report.palette import style
from fedkeel.report.save import save
from fedkeel.report.scales import Scale, axis, is_steep
from fedkeel.study.curves import SCALES, Curve, mean_curve
from fedkeel.study.plan import At
from fedkeel.study.results import Results

FORMATS = ("png", "svg", "pdf")
DPI = 200
DOTTED: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
Curves = dict[tuple[str, str], Curve]
"""By scene and variant."""


def figures(results: Results, folder: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw all figures that the runs allow, and write each in each format; the files, in order.

    They are: the metric over rounds, virtual time, uploads and bytes; the final values; and what it took to
    reach the target, if there is one, in virtual time and on the scale of the measure. Runs that are not
    finished take part in the curves only. Where no run has been tested, there are none.
    """
    for each in formats:
        if each not in FORMATS:
            raise unknown("formats", each, FORMATS)
    if not any(run.history for run in results.outcomes):
        return []
    written = []
    for name_of_file, figure in _drawn(results):
        for each in formats:
            path = folder / f"{name_of_file}.{each}"
            save(figure, path, dpi=DPI)
            written.append(path)
    return written


def _drawn(results: Results) -> Iterator[tuple[str, Figure]]:
    """All figures one by one, each with the name of its file."""
    for at in SCALES:
        curves = _curves(results, at)
        if any(len(curve.x) and curve.x[-1] > 0 for curve in curves.values()):
            for number, scenes in enumerate(pages(results.scenes), 1):
                yield _numbered(f"{stem(results.metric)}-over-{at}", number), _learning(results, scenes, at, curves)
    scales: list[At] = list(dict.fromkeys([results.measure.at, "time"]))
    for number, scenes in enumerate(pages(results.scenes), 1):
        dots = {f"final-{stem(results.metric)}": final_values(results, scenes)}
        dots |= {f"{at}-to-target": to_target(results, scenes, at) for at in scales}
        for name_of_file, figure in dots.items():
            if figure is not None:
                yield _numbered(name_of_file, number), figure


def _numbered(words: str, number: int) -> str:
    return words if number == 1 else f"{words}-{number}"


def stem(metric: Measured) -> str:
    """A metric's name in that of a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", metric.name).strip("-").lower() or "metric"


def _curves(results: Results, at: At) -> Curves:
    cells = [(scene, variant) for scene in results.scenes for variant in results.variants]
    found = {cell: mean_curve(results.of(*cell), at, results.metric.name) for cell in cells}
    return {cell: curve for cell, curve in found.items() if len(curve.x)}


def _learning(results: Results, scenes: Sequence[str], at: At, curves: Curves) -> Figure:
    """The metric over a scale."""
    alone = len(scenes) == 1
    figure, panels = grid(scenes, *((5.6, 3.3) if alone else (3.1, 2.4)))
    scale = axis(at, max(curve.x[-1] for curve in curves.values()))
    for panel, scene in zip(panels, scenes, strict=True):
        shown = {variant: curves[scene, variant] for variant in results.variants if (scene, variant) in curves}
        ends = {curve.x[-1] for curve in shown.values()}
        for variant, curve in shown.items():
            _draw(panel, curve, results.variants.index(variant), scale, results.metric.scale, marked=len(ends) > 1)
        if results.measure.target is not None:
            panel.axhline(results.metric.scale * results.measure.target, **DOTTED)
        if (limit := _limit(results, scene, at, max(ends, default=0))) is not None:
            panel.axvline(limit / scale.unit, **DOTTED)
        _scale(panel, scale)
    _name_axes(panels, scale.label, f"test {results.metric.words}{' (%)' if results.metric.share else ''}")
    if results.metric.error and is_steep(value for curve in curves.values() for value in curve.mean):
        for panel in panels:
            set_log(panel)
    same_limits(panels, "y")
    cut = any(_limit(results, cell[0], at, curve.x[-1]) is not None for cell, curve in curves.items())
    entries = [(name(each), handle(style(place))) for place, each in enumerate(results.variants)]
    legend(figure, entries, _caption(results, curves, cut) + _incomplete(results, scenes))
    return figure


def _draw(panel: Any, curve: Curve, place: int, scale: Scale, factor: float, marked: bool) -> None:
    look = style(place)
    x = curve.x / scale.unit
    if curve.count > 1:
        panel.fill_between(x, factor * curve.low, factor * curve.high, color=look.light, alpha=0.16, linewidth=0)
    panel.plot(x, factor * curve.mean, **line_style(look), zorder=3)
    if marked or len(x) == 1:  # a line that is shorter than others ends where its runs do
        panel.plot(
            x[-1:], factor * curve.mean[-1:], "o", color=look.light, markersize=4.5, markeredgecolor="w", zorder=4
        )


def _scale(panel: Any, scale: Scale) -> None:
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=scale.whole))
    panel.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    if scale.whole:
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _name_axes(panels: Sequence[Any], x: str, y: str) -> None:
    for panel in panels:
        place = panel.get_subplotspec()
        panel.set_xlabel(x, fontsize=9)
        if place.is_first_col():
            panel.set_ylabel(y, fontsize=9)


def _limit(results: Results, scene: str, at: At, end: float) -> float | None:
    """Where on this scale the runs of a scene are compared, if that is before the end of a curve."""
    limit = results.limits.get(scene)
    return limit if at == results.measure.at and limit is not None and limit < end else None


def _incomplete(results: Results, scenes: Sequence[str]) -> str:
    """Which variants have runs that failed or have not finished: their curves are those of the other runs."""
    told = []
    for variant in results.variants:
        states = [run.state for run in results.outcomes if run.variant == variant and run.scene in scenes]
        failed = sum(state in ("failed", "pruned") for state in states)
        counts = {"failed": failed, "not finished": len(states) - failed - states.count("finished")}
        words = [f"{count} {what}" for what, count in counts.items() if count]
        if words:
            told.append(f"{name(variant)} {' and '.join(words)}")
    return f" Of the runs: {'; '.join(told)}." if told else ""


def _caption(results: Results, curves: Curves, cut: bool) -> str:
    target, metric = results.measure.target, results.metric
    counts = sorted({curve.count for curve in curves.values()})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    band = f"Each line is the mean of {seeds} seeds; the band goes from the lowest to the highest of them."
    share = "\N{NO-BREAK SPACE}%" if metric.share else ""
    lines = "" if target is None else f" Dotted: the target, {metric.scale * target:g}{share}."
    if cut:
        lines = f"{lines.removesuffix('.') or ' Dotted'}{', and ' if lines else ': '}where runs are compared."
    which = " Lower is better." if metric.better == "lower" else ""
    return f"{'One seed.' if counts == [1] else band}{which}{lines}"
