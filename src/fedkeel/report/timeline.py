"""What devices did when, on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fedkeel.errors import InputError, label
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import real
from fedkeel.report.curves import FORMATS
from fedkeel.report.save import check_suffix, save

LANES = 60
"""Devices that are drawn at most."""
LENGTHS = 25
"""Of a mean job, that are drawn unless a window is given: a device idle half of the time does some twelve jobs."""
STYLES: dict[str, dict[str, Any]] = {
    "download": {"facecolor": "#9ecae1"},
    "training": {"facecolor": "#3d79b3"},
    "waiting for a fresh model": {"facecolor": "#fdd0a2"},
    "training after the merge": {"facecolor": "#31a354"},
    "upload": {"facecolor": "#756bb1"},
    "lost or not needed": {"facecolor": "#fcbba1", "edgecolor": "#cb181d", "hatch": "/////"},
    "refused by the gate": {"facecolor": "#d9d9d9", "edgecolor": "#525252", "hatch": "\\\\\\\\\\"},
    "in flight at the end": {"facecolor": "#eeeeee", "edgecolor": "#999999", "hatch": "....."},
}
"""What a device does, in the order in which it does it."""
MARK: dict[str, Any] = {"linestyle": "", "markersize": 5}
LOST = {**MARK, "marker": "x", "color": "#cb181d", "label": "end of a lost job"}
REFUSED = {**MARK, "marker": "|", "color": "black", "label": "upload refused"}

Span = tuple[int, str, float, float]
"""(Client, what it does, from when, until when)."""


@dataclass(frozen=True)
class Timeline:
    """All jobs of a run."""

    clients: list[int]
    """Those that took part, from the shortest mean job to the longest."""
    spans: list[Span]
    lost: list[tuple[int, float]]
    """(Client, time) of jobs that came to nothing."""
    refused: list[tuple[int, float]]
    """Likewise of arrivals that the gate or the server rule did not want."""
    mean_seconds: float
    """Mean length of a job."""
    end: float


def timeline(run: RunRecord, paths: list[Path], first: float | None = None, last: float | None = None) -> None:
    """A lane for each device at work from virtual second `first` to `last`; one file for each path, by its suffix."""
    for path in paths:
        check_suffix(path, FORMATS)
    told = spans(run)
    window = _window(told, first, last)
    working = _working(told, window)
    chosen = _chosen(working)
    figure = Figure(figsize=(13, 1.5 + 0.15 * max(8, len(chosen))), layout="constrained")
    axes = figure.subplots()
    handles = _draw(axes, told, chosen, window)
    time, who = ("time", "site") if real(run) else ("virtual time", "device")
    axes.set(xlabel=f"{time} (s)", ylabel=f"{who}, fast to slow")
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    some = "" if len(chosen) == len(working) else f"; {len(chosen)} of {len(working)} devices at work"
    axes.set_title(shorten(run.label, 80) + some, fontsize=10, parse_math=False)
    for path in paths:
        save(figure, path, dpi=150)


def spans(run: RunRecord) -> Timeline:
    """Who did what when; parts that took no time are left out."""
    found: list[Span] = []
    lost, refused = [], []
    seconds: dict[int, list[float]] = {}
    partly: dict[int, list[float]] = {}
    with run.told_if_damaged("clients.jsonl"):
        for row in run.arrivals():
            found += _arrival(row)
            seconds.setdefault(row["client"], []).append(row["arrived"] - row["dispatched"])
            if not row.get("accepted", True):
                refused.append((row["client"], row["arrived"]))
    with run.told_if_damaged("unfinished.jsonl"):
        for row in run.unfinished():
            found += _unfinished(row)
            partly.setdefault(row["client"], []).append(row["ended"] - row["dispatched"])
            if row["why"] != "in flight":
                lost.append((row["client"], row["ended"]))
    with run.told_if_damaged("refused.jsonl"):
        for row in run.refused():
            refused.append((row["client"], row["arrived"]))
            if row["dispatched"] is not None:  # else it is a duplicate, or late: its job was over before
                found += _span(row, "refused by the gate", row["dispatched"], row["arrived"])
                partly.setdefault(row["client"], []).append(row["arrived"] - row["dispatched"])
    mean = {client: float(np.mean(times)) for client, times in (partly | seconds).items()}
    if not found:
        raise InputError(f"run folder {label(str(run.path))}: no job has taken any time yet; wait for the first one")
    durations = np.concatenate([*seconds.values(), *partly.values()])
    clients = sorted(mean, key=lambda client: (mean[client], client))
    return Timeline(clients, found, lost, refused, float(durations.mean()), max(span[3] for span in found))


def _arrival(row: dict[str, Any]) -> Iterator[Span]:
    began, finished = row.get("began", row["dispatched"]), row.get("finished", row["arrived"])
    asked, merged, resumed = (row.get(name) for name in ("asked", "merged", "resumed"))
    went_on = resumed if merged is None else merged
    yield from _span(row, "download", row["dispatched"], began)
    if asked is None or went_on is None:
        yield from _span(row, "training", began, finished)
    else:
        yield from _span(row, "training", began, asked)
        yield from _span(row, "waiting for a fresh model", asked, went_on)
        yield from _span(row, "training" if merged is None else "training after the merge", went_on, finished)
    yield from _span(row, "upload", finished, row["arrived"])


def _unfinished(row: dict[str, Any]) -> Iterator[Span]:
    began = min(row.get("began", row["dispatched"]), row["ended"])
    yield from _span(row, "download", row["dispatched"], began)
    what = "in flight at the end" if row["why"] == "in flight" else "lost or not needed"
    yield from _span(row, what, began, row["ended"])


def _span(row: dict[str, Any], what: str, begin: float, end: float) -> Iterator[Span]:
    if end > begin:
        yield row["client"], what, begin, end


def _window(told: Timeline, first: float | None, last: float | None) -> tuple[float, float]:
    """From the beginning, long enough for so many jobs, unless something else is asked for."""
    begin = first if first is not None else 0.0
    end = last if last is not None else min(told.end, begin + LENGTHS * told.mean_seconds)
    if not 0 <= begin < end < float("inf") or begin >= told.end:
        raise InputError(
            f"--first must be before --last, and from 0 to {told.end:g} s, when the run ends; "
            f"got {begin:g} to {end:g} s"
        )
    return begin, end


def _working(told: Timeline, window: tuple[float, float]) -> list[int]:
    """Clients that are not idle all the time."""
    at_work = {client for client, _, begin, end in told.spans if begin < window[1] and end > window[0]}
    if not at_work:
        raise InputError(
            f"--first and --last: all devices are idle from {window[0]:g} to {window[1]:g} s; choose a longer time"
        )
    return [client for client in told.clients if client in at_work]


def _chosen(clients: list[int]) -> list[int]:
    """All of them, or `LANES` from the first to the last."""
    return [clients[i] for i in np.linspace(0, len(clients) - 1, min(LANES, len(clients))).round().astype(int)]


def _draw(axes: Axes, told: Timeline, chosen: list[int], window: tuple[float, float]) -> list[Any]:
    """Draws what lies in the window and returns what the legend is to explain."""
    lane = {client: number for number, client in enumerate(chosen)}
    boxes: dict[str, list[NDArray[np.float64]]] = {what: [] for what in STYLES}
    for client, what, begin, end in told.spans:
        if client in lane and begin < window[1] and end > window[0]:
            top, bottom = lane[client] - 0.36, lane[client] + 0.36
            boxes[what].append(np.array([[begin, top], [end, top], [end, bottom], [begin, bottom]]))
    handles: list[Any] = []
    for what, each in boxes.items():
        if each:
            axes.add_collection(PolyCollection(each, linewidth=0.0, **STYLES[what]))
            handles.append(Patch(label=what, linewidth=0.0, **STYLES[what]))
    for places, style in ((told.lost, LOST), (told.refused, REFUSED)):
        shown = [(time, lane[client]) for client, time in places if client in lane and window[0] <= time <= window[1]]
        if shown:
            handles += axes.plot(*zip(*shown, strict=True), **style)
    axes.set(xlim=window, ylim=(len(chosen) - 0.5, -0.5))
    axes.set_yticks(range(len(chosen)), [str(client) for client in chosen], fontsize=6)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return handles
