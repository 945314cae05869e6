"""What a person sees while a run goes on, and at its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.config.experiment import Experiment
from fedkeel.data.statistics import mean_wasserstein
from fedkeel.errors import label
from fedkeel.local.settings import ExecutorSettings
from fedkeel.record.rows import Evaluation, RoundEnd
from fedkeel.record.schema import SUMMARY
from fedkeel.runner.sinks import Sink, Start
from fedkeel.world.fleet.profile import Fleet

if TYPE_CHECKING:
    from fedkeel.report.fleet import JobCosts

SHOWN = 20  # clients listed one by one


@contextmanager
def progress(experiment: Experiment) -> Iterator[Sink]:
    """A live bar on a terminal, about ten lines elsewhere."""
    console.print(
        f"{experiment.algorithm.label} on {experiment.dataset.name} with {experiment.model.name}, "
        f"{experiment.rounds} rounds",
        markup=False,
    )
    if not console.is_terminal:
        yield Lines(experiment.rounds)
        return
    bar = Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[score]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        yield Bar(bar, experiment.rounds)


class Bar(Sink):
    """Moves a bar, and shows the last evaluation beside it."""

    def __init__(self, bar: Progress, rounds: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=rounds, score="")

    def begin(self, start: Start) -> None:
        """Where a resumed run goes on."""
        self._show(start.round, start.history[-1] if start.history else None)

    def round(self, end: RoundEnd) -> None:
        """Move the progress bar by one round."""
        self._show(end.round, end.evaluation)

    def _show(self, round: int, evaluation: Evaluation | None) -> None:
        self._bar.update(self._task, completed=round)
        if evaluation is not None:
            self._bar.update(self._task, score=_score(evaluation))


class Lines(Sink):
    """Prints about ten lines in the whole run."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._stride = rounds, max(1, rounds // 10)

    def round(self, end: RoundEnd) -> None:
        """Print it, if it is one of these."""
        if end.evaluation is None or (end.round % self._stride and end.round != self._rounds):
            return
        train_loss = "" if end.train_loss is None else f"  train loss {end.train_loss:.3f}"
        try:
            console.print(f"round {end.round}/{self._rounds}  {_score(end.evaluation)}{train_loss}")
        except OSError:  # the log cannot be written: the training goes on
            console.quiet = True


def _score(evaluation: Evaluation) -> str:
    return f"accuracy {evaluation.accuracy:.2%}  loss {evaluation.loss:.3f}"


def tell(sentence: str) -> None:
    """Something that a person should know, beside the output."""
    with suppress(OSError, ValueError):  # nobody listens any more
        print(f"fedkeel: {sentence}", file=sys.stderr, flush=True)


def summary(folder: Path, figure: Path) -> None:
    """The result of a finished run in a few lines, and where everything is."""
    s = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("clients", f"{s['clients']}, {s['per_round']} a round")
    whose = "" if s["tested"] == "global model" else f", {s['tested']}"
    table.add_row("final accuracy", f"[bold]{s['final_accuracy']:.2%}[/]{whose}")
    table.add_row("best accuracy", f"{s['best_accuracy']:.2%}")
    if s["target_accuracy"] is not None:
        reached = f"in round {s['rounds_to_target']}" if s["rounds_to_target"] else "not reached"
        table.add_row(f"target {s['target_accuracy']:.2%}", reached)
    for key, what in (
        ("client_accuracy", "accuracy per client"),
        ("client_accuracy_finetuned", "... fine-tuned"),
        ("client_accuracy_estimated", "estimated per client"),
        ("client_accuracy_finetuned_estimated", "... fine-tuned"),
    ):
        if spread := s.get(key):
            table.add_row(
                what, f"mean {spread['mean']:.2%}, std {spread['std']:.2%}, worst tenth {spread['worst_decile']:.2%}"
            )
    if lost := s.get("finetuning_diverged"):
        table.add_row("... fine-tuned", f"diverged on {len(lost)} of {s['clients']} clients; try a smaller local.lr")
    table.add_row("time", f"{s['wall_seconds']:.1f} s, {s['virtual_seconds']:.0f} virtual s")
    turned_away = sum(s["uploads_turned_away"].values())
    if s["jobs_lost"] or s["updates_refused"] or turned_away:
        refused = f"{turned_away} uploads refused by the gate, {s['updates_refused']} by the method"
        table.add_row("not taken in", f"{s['jobs_lost']} jobs lost or not needed, {refused}")
    kernels = f" ({s['instruction_set']})" if s.get("instruction_set") else ", PyTorch"
    label = f"{ExecutorSettings(**s['executor']).label}{kernels}"
    table.add_row("speed", f"{s['samples_per_second']:,.0f} samples/s, {label}")
    table.add_row("traffic", f"{s['bytes_up'] / 1e6:,.1f} MB up, {s['bytes_down'] / 1e6:,.1f} MB down")
    console.print(table)
    why = [s[name] for name in ("why_not_native", "why_not_stacked") if s.get(name)]
    for sentence in why:
        console.print(sentence, soft_wrap=True, markup=False)
    for path, reason in s["probe"]["refused"].items():
        if not any(reason in sentence for sentence in why):
            console.print(f"not used: {path}: {reason}", soft_wrap=True, markup=False)
    console.print(f"run folder  {folder}\nfigure      {figure}", soft_wrap=True, markup=False)


def partition(counts: NDArray[np.int64], figure: Path, names: Sequence[str] | None = None) -> None:
    """Sizes of clients, and how far their labels are from the whole."""
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    table = Table(box=None, pad_edge=False)
    for column in ("", "min", "median", "mean", "max"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("samples a client", sizes), ("classes a client", held)):
        table.add_row(name, *(f"{f(values):g}" for f in (np.min, np.median, np.mean, np.max)))
    console.print(f"{len(sizes)} clients, {int(sizes.sum())} samples, {counts.shape[1]} classes")
    console.print(table)
    for client in range(min(len(sizes), SHOWN)):
        called = f"client {client}" if names is None else label(names[client])
        console.print(f"{called}: {sizes[client]} samples, {held[client]} classes", markup=False)
    if len(sizes) > SHOWN:
        console.print(f"... and {len(sizes) - SHOWN} more")
    console.print(
        f"mean Wasserstein distance of a client's labels from the global ones "
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
        ("milliseconds a sample", 1e3 * devices.seconds / devices.unit, not devices.fixed),
        ("seconds of training", costs.training, True),
        (f"seconds to exchange {nbytes / 1e6:.3g} MB", costs.exchange, costs.exchange.any()),
        ("seconds of a job", costs.job, costs.exchange.any()),
        ("uplink, Mbit/s", devices.uplink / 1e6, np.isfinite(devices.uplink).all()),
        ("downlink, Mbit/s", devices.downlink / 1e6, np.isfinite(devices.downlink).all()),
        ("latency, s", devices.latency, devices.latency.any()),
        ("chance to lose a job", devices.dropout, devices.dropout.any()),
        ("share of time on", devices.availability, not devices.always_on),
        ("period of being on, s", devices.period, not devices.always_on),
    ):
        if matters:
            table.add_row(name, *(f"{f(values):.4g}" for f in (np.min, np.median, np.mean, np.max)))
    without = len(devices) - len(costs.job)
    console.print(f"{len(devices)} devices{f', {without} of them without data' if without else ''}")
    console.print(table)
    console.print(
        f"slowest to fastest: {devices.seconds.max() / devices.seconds.min():.4g} for equal "
        f"{'shares of a job' if devices.fixed else 'work'}, "
        f"{costs.job.max() / costs.job.min():.4g} for jobs"
    )
    free = [
        name for name, speed in (("uploads", devices.uplink), ("downloads", devices.downlink)) if np.isinf(speed).all()
    ]
    if free:
        console.print(f"{' and '.join(free)} take no time{' but latency' if devices.latency.any() else ''}")
    console.print(f"figure  {figure}", soft_wrap=True, markup=False)
