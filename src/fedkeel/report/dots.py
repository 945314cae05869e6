"""One number per run, drawn as dots: the mean with its interval, and every seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedkeel.report.grid import GREY, INK, STEPS, grid, legend, name, same_limits
from fedkeel.report.palette import style
from fedkeel.report.scales import axis
from fedkeel.study.curves import SCALES
from fedkeel.study.export import amount
from fedkeel.study.plan import At
from fedkeel.study.results import Outcome, Results
from fedkeel.study.statistics import Interval
from fedkeel.study.table import Line, lines

MEANING = (
    "Small dots are single seeds. Large ones are their means, with the 95\N{NO-BREAK SPACE}% interval (Student's t) "
    "where there is more than one seed."
)


_TO_TARGET = {at: f"{'seconds' if at == 'time' else at}_to_target" for at in SCALES}
"""The field of a run and of a line that has it."""


@dataclass(frozen=True)
class Dots:
    """A row of a panel."""

    line: Line
    values: list[float]
    """One for each finished run that has one."""
    mean: Interval | None
    words: str
    """Stands at the end of the row."""
    bold: bool = False


def final_values(results: Results, scenes: Sequence[str]) -> Figure | None:
    """The metric of every variant where runs are compared; None while no run is finished."""
    metric = results.metric

    def row(line: Line, runs: Sequence[Outcome]) -> Dots:
        values = [metric.scale * run.value for run in runs if run.value is not None]
        mean = _times(line.value, metric.scale)
        words = _joined(_told(mean) if metric.share else amount(line.value, metric), _open(line))
        return Dots(line, values, mean, words, bold=line.standing == "best")

    unit, which = " (%)" if metric.share else "", ", lower is better" if metric.better == "lower" else ""
    label = f"final test {metric.words}{unit}{which}"
    bold = "Bold: clearly better than all others in paired tests."
    return _figure(results, scenes, row, label, MEANING, bold)


def to_target(results: Results, scenes: Sequence[str], at: At) -> Figure | None:
    """What it took to reach the target; None where there is no target, or no run reached it."""
    target = results.measure.target
    reached = [value for run in _finished(results.outcomes) if (value := _used(run, at)) is not None]
    if target is None or not reached:
        return None
    scale = axis(at, max(reached))

    def row(line: Line, runs: Sequence[Outcome]) -> Dots:
        values = [value / scale.unit for run in runs if (value := _used(run, at)) is not None]
        mean = _times(getattr(line, _TO_TARGET[at]), 1 / scale.unit)
        return Dots(line, values, mean, _joined(_told(mean), _reached(len(values), len(runs)), _open(line)))

    metric = results.metric
    label = f"{scale.label} to {metric.scale * target:g}{' %' if metric.share else ''} {metric.words}"
    caption = (
        f"{MEANING} Seeds that did not reach the target do not count for the mean; the text says how many there are."
    )
    return _figure(results, scenes, row, label, caption, whole=scale.whole, from_zero=True)


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def _reached(count: int, runs: int) -> str:
    if count == runs:
        return ""
    return f"{count} of {runs} reached it" if count else "not reached"


def _open(line: Line) -> str:
    """Runs that came to nothing, or not yet."""
    counts = {"failed": line.failed, "stopped early": line.pruned, "not finished": line.pending}
    return _joined(*(f"{count} {what}" for what, count in counts.items() if count))


def _figure(
    results: Results,
    scenes: Sequence[str],
    row: Callable[[Line, Sequence[Outcome]], Dots],
    label: str,
    caption: str,
    bold: str = "",
    whole: bool = False,
    from_zero: bool = False,
) -> Figure | None:
    found: dict[str, list[Dots]] = {scene: [] for scene in scenes}
    for line in lines(results):
        if line.scene in found:
            found[line.scene].append(row(line, _finished(results.of(line.scene, line.variant))))
    if not any(each.values for rows in found.values() for each in rows):
        return None
    most = max(map(len, found.values()))
    figure, panels = grid(scenes, *(6.4 if len(scenes) == 1 else 4.4, 0.75 + 0.27 * most))
    alike = len({tuple(each.line.variant for each in rows) for rows in found.values()}) == 1
    for panel, rows in zip(panels, found.values(), strict=True):
        _panel(panel, rows, results.variants)
        panel.set_xlabel(label, fontsize=9)
        panel.xaxis.set_major_locator(MaxNLocator(5, steps=STEPS, integer=whole))
        if whole:
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        if alike and not panel.get_subplotspec().is_first_col():
            panel.tick_params(labelleft=False)
    _limits(panels, [any(each.values for each in rows) for rows in found.values()], from_zero)
    marked = any(each.bold for rows in found.values() for each in rows)
    legend(figure, [], f"{caption} {bold}" if marked else caption)
    return figure


def _limits(panels: Sequence[Any], filled: Sequence[bool], from_zero: bool) -> None:
    """Panels without a dot get the range of the others."""
    drawn = [panel for panel, has_dots in zip(panels, filled, strict=True) if has_dots]
    if from_zero:
        for panel in drawn:
            panel.set_xlim(left=0)
    same_limits(drawn, "x")
    for panel in set(panels) - set(drawn):
        panel.set_xlim(drawn[0].get_xlim())


def _panel(panel: Any, rows: Sequence[Dots], variants: Sequence[str]) -> None:
    panel.grid(visible=False, axis="y")
    for height, row in enumerate(rows):
        look = style(variants.index(row.line.variant))
        panel.plot(row.values, [height + 0.24] * len(row.values), "o", color=look.light, alpha=0.5, ms=3, mew=0)
        if row.mean is not None:
            error = None if row.mean.half is None else [row.mean.half]
            panel.errorbar(
                [row.mean.mean], [height], xerr=error, fmt=look.marker, color=look.light, markersize=5.5,
                capsize=2.5, capthick=1.2, elinewidth=1.4, markeredgecolor="white", markeredgewidth=0.6,
            )  # fmt: skip
        panel.annotate(
            row.words, (1.02, height), xycoords=("axes fraction", "data"), va="center", fontsize=8,
            color=INK if row.values else GREY, weight="bold" if row.bold else "normal", annotation_clip=False,
        )  # fmt: skip
    panel.set_yticks(range(len(rows)), [name(row.line.variant) for row in rows], parse_math=False)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)


def _finished(runs: Sequence[Outcome]) -> list[Outcome]:
    return [run for run in runs if run.state == "finished"]


def _used(run: Outcome, at: At) -> float | None:
    found: float | None = getattr(run, _TO_TARGET[at])
    return found


def _times(found: Interval | None, factor: float) -> Interval | None:
    if found is None or found.low is None or found.high is None:
        return found and Interval(found.mean * factor, None, None, found.count)
    return Interval(found.mean * factor, found.low * factor, found.high * factor, found.count)


def _told(found: Interval | None) -> str:
    if found is None:
        return ""
    digits = 0 if found.mean >= 1000 else 1
    half = "" if found.half is None else f" ± {found.half:,.{digits}f}"
    return f"{found.mean:,.{digits}f}{half}"
