"""What a person sees of a run on real machines: a line for each evaluation, and the result site by site."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.cli.display import SHOWN
from fedkeel.cli.progress import score, spell
from fedkeel.errors import counted, label
from fedkeel.record.measured import Measured
from fedkeel.record.rows import Evaluation
from fedkeel.record.runs import RunRecord
from fedkeel.record.schema import CLIENT_METRICS
from fedkeel.record.sites import Site, missing, rounds, sites


def line(row: Evaluation, rounds: int, count: int, trained: int, seconds: float) -> str:
    """An evaluation, and how many of the sites had a part in it."""
    tested = "" if row.tested_by is None else f", {len(row.tested_by)} tested"
    words = [f"round {row.round}/{rounds}", *score(row), f"{trained} of {counted(count, 'site')} trained{tested}"]
    return "  ".join([*words, f"elapsed {spell(round(seconds, 1))}"])


def result(out: Path, figure: Path, seconds: float | None) -> None:
    """How good the model is, on the whole and site by site; who was missing; where everything is.

    `seconds` are those of this command; None if nothing was left to do.
    """
    record = RunRecord.read(out)
    found, last = sites(record), record.history[-1]
    table = Table(box=None, show_header=False, pad_edge=False)
    by = last.get("tested_by")
    for metric in record.metrics:
        of = f", tested by {len(by)} of {counted(len(found), 'site')}" if by is not None else ""
        table.add_row(f"final {metric.words}", f"[bold]{_told(metric, last.get(metric.name))}[/]{of}")
    for sentence in missing(found, rounds(record)):
        table.add_row("warning", f"[bold]{escape(sentence)}[/]")
    if seconds is not None:
        table.add_row("time", spell(round(seconds, 1)))
    console.print(table)
    console.print(_table(found, record.metrics, _measured(out)))
    if len(found) > SHOWN:
        console.print(f"... and {len(found) - SHOWN} more")
    console.print(f"run folder  {out}\nfigure      {figure}", soft_wrap=True, markup=False)
    console.print(f"next        fedkeel report {shlex.quote(str(out))} --open", soft_wrap=True, markup=False)


def _table(found: list[Site], metrics: tuple[Measured, ...], measured: list[dict[str, Any]]) -> Table:
    """A row for each site; metrics are those of its own test rows."""
    tests, metrics = any(site.tests is not None for site in found), metrics if measured else ()
    table = Table(box=None, pad_edge=False)
    heads = ["site", "samples", "updates", "lost", *(["tests"] if tests else []), *(each.words for each in metrics)]
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for site, own in zip(found[:SHOWN], measured or [{}] * len(found), strict=False):
        counts = [site.samples, site.updates, site.lost, *([site.tests] if tests else [])]
        numbers = ["-" if count is None else str(count) for count in counts]
        values = [_told(each, own.get(each.name), "-") for each in metrics]
        table.add_row(escape(label(site.name)), *numbers, *values)
    return table


def _measured(out: Path) -> list[dict[str, Any]]:
    """What each site measured on its own test rows at the end, if sites did."""
    path = out / CLIENT_METRICS
    if not path.exists():
        return []
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]


def _told(metric: Measured, value: float | None, otherwise: str = "not known") -> str:
    return otherwise if value is None else metric.told(value)
