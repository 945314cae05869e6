"""What a person sees at the end of a run, and of data and devices before one."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.cli.progress import progress as progress
from fedkeel.cli.progress import spell
from fedkeel.data.statistics import mean_wasserstein
from fedkeel.errors import counted, label
from fedkeel.local.settings import ExecutorSettings
from fedkeel.record.measured import METRICS, known, read
from fedkeel.record.schema import SUMMARY
from fedkeel.world.fleet.profile import Fleet

if TYPE_CHECKING:
    from fedkeel.report.fleet import JobCosts

SHOWN = 20  # clients listed one by one


def tell(sentence: str) -> None:
    """Something that a person should know, beside the output."""
    with suppress(OSError, ValueError):  # nobody listens any more
        print(f"fedkeel: {sentence}", file=sys.stderr, flush=True)


def summary(folder: Path, figure: Path) -> None:
    """The result of a finished run in a few lines, where everything is, and what to do next."""
    s = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, words in _results(s) + _costs(s):
        table.add_row(name, words)
    console.print(table)
    why = [s[name] for name in ("why_not_native", "why_not_stacked") if s.get(name)]
    for sentence in why:
        console.print(sentence, soft_wrap=True, markup=False)
    for path, reason in s["probe"]["refused"].items():
        if not any(reason in sentence for sentence in why):
            console.print(f"not used: {path}: {reason}", soft_wrap=True, markup=False)
    console.print(f"run folder  {folder}\nfigure      {figure}", soft_wrap=True, markup=False)
    console.print(_next(folder), soft_wrap=True, markup=False)


def _results(s: dict[str, Any]) -> list[tuple[str, str]]:
    """How well the model does."""
    metric = read(s[METRICS])[0]
    name, told = metric.name, metric.told
    final, best = (nan if (value := s[f"{which}_{name}"]) is None else value for which in ("final", "best"))
    whose = "" if s["tested"] == "global model" else f", {s['tested']}"
    rows = [
        ("clients", f"{s['clients']}, {s['per_round']} per round"),
        (f"final {metric.words}", f"[bold]{told(final)}[/]{whose}"),
        (f"best {metric.words}", told(best)),
    ]
    if not s["updates"]:
        rows.append(("warning", "[bold]no upload was used, so this is the model before training[/]"))
    if s.get("target") is not None:
        reached = f"reached in round {s['rounds_to_target']}" if s["rounds_to_target"] else "not reached"
        rows.append((f"target {known(s['target_metric']).told(s['target'])}", reached))
    for key, what in (
        (f"client_{name}", f"{metric.words} per client"),
        (f"client_{name}_finetuned", "fine-tuned"),
        (f"client_{name}_estimated", "estimated per client"),
        (f"client_{name}_finetuned_estimated", "fine-tuned, estimated"),
    ):
        if spread := s.get(key):
            mean, deviation, worst = (told(spread[part]) for part in ("mean", "std", "worst_decile"))
            lacking = (s.get("clients_without") or {}).get(name, 0)
            over = f" over {s['clients'] - lacking} of {s['clients']}" if lacking and "finetuned" not in key else ""
            rows.append((what, f"mean{over} {mean}, standard deviation {deviation}, worst tenth {worst}"))
    if lost := s.get("finetuning_diverged"):
        rows.append(
            ("fine-tuned", f"diverged on {len(lost)} of {counted(s['clients'], 'client')}; try a smaller local.lr")
        )
    return rows


def _costs(s: dict[str, Any]) -> list[tuple[str, str]]:
    """What it took."""
    rows = [("time", f"elapsed {spell(s['wall_seconds'])}, virtual {spell(s['virtual_seconds'])}")]
    turned_away = sum(s["uploads_turned_away"].values())
    if s["jobs_lost"] or s["updates_refused"] or turned_away:
        refused = f"{counted(turned_away, 'upload')} refused by the gate, {s['updates_refused']} by the method"
        rows.append(("not used", f"{counted(s['jobs_lost'], 'job')} lost or not needed, {refused}"))
    kernels = f" ({s['instruction_set']})" if s.get("instruction_set") else ", PyTorch"
    label = f"{ExecutorSettings(**s['executor']).label}{kernels}"
    rows.append(("speed", f"{s['samples_per_second']:,.0f} samples/s, {label}"))
    if ray := s.get("ray"):
        lost = f"; {counted(ray['workers_lost'], 'worker')} lost" if ray["workers_lost"] else ""
        again = f", {counted(ray['stacks_repeated'], 'stack')} trained again" if lost else ""
        rows.append(("cluster", f"{ray['found']}{lost}{again}"))
    rows.append(("traffic", f"{s['bytes_up'] / 1e6:,.1f} MB up, {s['bytes_down'] / 1e6:,.1f} MB down"))
    return rows


def _next(folder: Path) -> str:
    """Commands to copy."""
    place = shlex.quote(str(folder))
    return (
        f"next        fedkeel report {place} --open    # all results on one page\n"
        f"            fedkeel plot {place} OTHER       # compare it with another run"
    )


def partition(counts: NDArray[np.int64], figure: Path, names: Sequence[str] | None = None) -> None:
    """Sizes of clients, and how far their labels are from the whole."""
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    table = Table(box=None, pad_edge=False)
    for column in ("", "min", "median", "mean", "max"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("samples per client", sizes), ("classes per client", held)):
        table.add_row(name, *(f"{f(values):g}" for f in (np.min, np.median, np.mean, np.max)))
    console.print(
        ", ".join(map(counted, (len(sizes), int(sizes.sum()), counts.shape[1]), ("client", "sample", "class")))
    )
    console.print(table)
    for client in range(min(len(sizes), SHOWN)):
        called = f"client {client}" if names is None else label(names[client])
        console.print(
            f"{called}: {counted(int(sizes[client]), 'sample')}, {counted(int(held[client]), 'class')}", markup=False
        )
    if len(sizes) > SHOWN:
        console.print(f"... and {len(sizes) - SHOWN} more")
    console.print(
        f"mean Wasserstein distance between the labels of a client and those of all clients "
        f"(ground metric 0 or 1 between labels): {mean_wasserstein(counts):.4f}",
        soft_wrap=True,
    )
    console.print(f"heat map  {figure}", soft_wrap=True, markup=False)


def fleet(devices: Fleet, costs: JobCosts, nbytes: int, figure: Path) -> None:
    """How long jobs take, and what else the devices differ in."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "min", "median", "mean", "max"):
        table.add_column(column, justify="right" if column else "left")
    for name, values, matters in (
        ("milliseconds per sample", 1e3 * devices.seconds / devices.unit, not devices.fixed),
        ("seconds of training per job", costs.training, True),
        (f"seconds to exchange {nbytes / 1e6:.3g} MB", costs.exchange, costs.exchange.any()),
        ("seconds per job", costs.job, costs.exchange.any()),
        ("uplink, Mbit/s", devices.uplink / 1e6, np.isfinite(devices.uplink).all()),
        ("downlink, Mbit/s", devices.downlink / 1e6, np.isfinite(devices.downlink).all()),
        ("latency, s", devices.latency, devices.latency.any()),
        ("probability of losing a job", devices.dropout, devices.dropout.any()),
        ("share of time available", devices.availability, not devices.always_on),
        ("period of availability, s", devices.period, not devices.always_on),
    ):
        if matters:
            table.add_row(name, *(f"{f(values):.4g}" for f in (np.min, np.median, np.mean, np.max)))
    without = len(devices) - len(costs.job)
    console.print(f"{counted(len(devices), 'device')}{f', {without} of them without data' if without else ''}")
    console.print(table)
    console.print(
        f"the slowest device takes {devices.seconds.max() / devices.seconds.min():.4g} times as long as the fastest "
        f"for equal {'shares of a job' if devices.fixed else 'work'}, and "
        f"{costs.job.max() / costs.job.min():.4g} times as long for its own job",
        soft_wrap=True,
    )
    free = [
        name for name, speed in (("uploads", devices.uplink), ("downloads", devices.downlink)) if np.isinf(speed).all()
    ]
    if free:
        console.print(f"{' and '.join(free)} take no time{' apart from latency' if devices.latency.any() else ''}")
    console.print(f"figure  {figure}", soft_wrap=True, markup=False)
