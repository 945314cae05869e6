"""What a person sees of the devices of a run, and of a run beside its simulation."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.cli.display import tell
from fedkeel.errors import counted
from fedkeel.record.measured import brief
from fedkeel.study.prediction import Prediction, Quantity
from fedkeel.world.fleet.measured import Trace

NAMES = {
    "seconds_per_sample": ("milliseconds per sample", 1e3),
    "uplink_mbps": ("uplink, Mbit/s", 1.0),
    "downlink_mbps": ("downlink, Mbit/s", 1.0),
    "latency_seconds": ("latency, s", 1.0),
    "dropout": ("probability of losing a job", 1.0),
}
"""What columns are called, and by what their numbers are multiplied."""


def devices(found: Trace, path: Path) -> None:
    """What was estimated, from how many jobs, and where it is."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "min", "median", "mean", "max"):
        table.add_column(column, justify="right" if column else "left")
    rows = [
        (name, factor * found.columns[column]) for column, (name, factor) in NAMES.items() if column in found.columns
    ]
    for name, values in [*rows, ("jobs that arrived", found.jobs)]:
        table.add_row(name, *(f"{f(values):.4g}" for f in (np.min, np.median, np.mean, np.max)))
    console.print(
        f"{counted(len(found.jobs), 'device')}, from {counted(int(found.jobs.sum()), 'job')} that arrived and "
        f"{found.lost.sum():,} that were lost"
    )
    console.print(table)
    for note in found.notes:
        tell(note)
    console.print(f"trace  {path}", soft_wrap=True, markup=False)


def comparison(found: Prediction, folder: Path, figure: Path) -> None:
    """Measured beside predicted, and what to do next."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "measured", "predicted", "difference"):
        table.add_column(column, justify="right" if column else "left")
    for each in found.quantities:
        table.add_row(
            each.words, _told(each, each.measured, found), _told(each, each.predicted, found), _apart(each, found)
        )
    console.print(table)
    errors = [abs(each.predicted / each.measured - 1) for each in found.clients if each.measured > 0]
    if errors:
        console.print(
            f"the jobs of {counted(len(errors), 'client')} are predicted with an error of {np.median(errors):.1%} "
            f"(median) and {max(errors):.1%} (worst)",
            soft_wrap=True,
        )
    for note in found.notes:
        tell(note)
    both = f"{shlex.quote(found.measured)} {shlex.quote(str(folder))}"
    console.print(f"run folder  {folder}\nfigure      {figure}", soft_wrap=True, markup=False)
    console.print(f"next        fedkeel report {both} --open    # both on one page", soft_wrap=True, markup=False)


def _told(quantity: Quantity, value: float | None, found: Prediction) -> str:
    if value is None:
        return "-"
    if quantity.unit == "metric":
        return found.metric.told(value)
    return f"{brief(value)} s" if quantity.unit == "s" else brief(value)


def _apart(quantity: Quantity, found: Prediction) -> str:
    """By how much the prediction is off: times relatively, others in their own unit."""
    if quantity.measured is None or quantity.predicted is None:
        return "-"
    off = quantity.predicted - quantity.measured
    if quantity.unit == "s":
        return f"{100 * off / quantity.measured:+z.1f}%" if quantity.measured else "-"
    points = quantity.unit == "metric" and found.metric.share
    return f"{100 * off:+z.2f} points" if points else f"{off:+z.4g}"
