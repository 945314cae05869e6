"""What a person sees while a run goes on: a spinner while it prepares, then a bar; a few lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from fedkeel.cli.console import animated, console, waiting
from fedkeel.config.experiment import Experiment
from fedkeel.errors import counted
from fedkeel.record.measured import LONG, LOSS, known
from fedkeel.record.rows import Evaluation, RoundEnd
from fedkeel.runner.sinks import Sink, Start
from fedkeel.runner.steps import listening

HZ = 2
"""How often the bar is drawn in a second: seldom, so that the training keeps the processor."""
LINES = 10
"""About so many lines are written to a log."""
EARLY = 2.0
"""For so many seconds, nothing can be said of the time that remains."""


@contextmanager
def progress(experiment: Experiment) -> Iterator[Sink]:
    """A spinner and a bar on a terminal, about ten lines elsewhere, nothing with `--quiet`."""
    if console.quiet:
        yield Silent()
        return
    about = f"{experiment.algorithm.label} on {experiment.dataset.name} with {experiment.model.name}"
    console.print(f"{about}, {counted(experiment.rounds, 'round')}", markup=False, soft_wrap=True)
    pace = Pace(experiment)
    if not animated():
        yield Lines(pace)
        return
    with Screen(pace) as screen, listening(screen.step):
        yield screen


class Silent(Sink):
    """Says nothing."""


class Pace:
    """How far a run is, and how long the rest will take."""

    def __init__(self, experiment: Experiment) -> None:
        self.rounds, self._limit = experiment.rounds, experiment.limit_seconds
        self.round = 0
        self.virtual = 0.0
        self._first = 0.0
        """The share that was done before: more than nothing if the run is resumed."""
        self._started = monotonic()

    def begin(self, start: Start) -> None:
        """The training begins, where a resumed run goes on."""
        self.round = start.round
        self.virtual = start.history[-1].virtual_seconds if start.history else 0.0
        self._first = self.share
        self._started = monotonic()

    def take(self, end: RoundEnd) -> None:
        """Another round is over."""
        self.round, self.virtual = end.round, end.virtual_seconds

    @property
    def share(self) -> float:
        """How much is done, by rounds or by the virtual clock, whichever ends the run first."""
        clock = 0.0 if self._limit is None else self.virtual / self._limit
        return min(1.0, max(self.round / self.rounds, clock))

    @property
    def times(self) -> list[str]:
        """The real time, what remains of it, and the virtual clock, each with its label."""
        elapsed = monotonic() - self._started
        done = self.share - self._first
        words = [f"elapsed {spell(round(elapsed, 1))}"]
        if elapsed >= EARLY and done > 0 and self.share < 1:
            words.append(f"remaining about {spell(max(1.0, elapsed * (1 - self.share) / done))}")
        return [*words, f"virtual {spell(self.virtual)}"] if self.virtual else words


class Screen(Sink):
    """A spinner with the name of the step; from the first round on a bar, times and the last evaluation."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._score: list[str] = []
        self._now = ""
        self._status: Status | None = None
        self._open = ExitStack()

    def __enter__(self) -> Screen:
        self._status = self._open.enter_context(waiting("preparing"))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def step(self, what: str) -> None:
        """Another step begins, before the first round or after the last one."""
        self._now = what
        if self._status is not None:
            self._status.update(what)

    def begin(self, start: Start) -> None:
        """The training begins: a bar takes the place of the spinner."""
        self._now = ""
        self._pace.begin(start)
        self._score = score(start.history[-1]) if start.history else []
        self._open.close()
        self._status = None
        stderr = sys.stderr.isatty()  # a log of warnings stays one
        self._open.enter_context(Live(self, console=console, refresh_per_second=HZ, redirect_stderr=stderr))

    def round(self, end: RoundEnd) -> None:
        """Only take the numbers: they are drawn twice a second."""
        self._pace.take(end)
        if end.evaluation is not None:
            self._score = score(end.evaluation)

    def finish(self, _: Mapping[str, Any]) -> None:
        """The last step is over."""
        self._now = ""

    def __rich__(self) -> Group:
        """The bar, and below it as many lines as the numbers need at this width."""
        pace = self._pace
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(f"round {pace.round}/{pace.rounds}", ProgressBar(1.0, pace.share), f"{pace.share:.0%}")
        now = [f"now {self._now}"] if self._now else []
        return Group(bar, *map(Text, packed([*self._score, *pace.times, *now], console.width)))


class Lines(Sink):
    """Prints about ten lines in the whole run."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._stride = pace, max(1, pace.rounds // LINES)

    def begin(self, start: Start) -> None:
        """The training begins."""
        self._pace.begin(start)

    def round(self, end: RoundEnd) -> None:
        """Print a line, if it is time for one."""
        self._pace.take(end)
        if end.evaluation is None or (end.round % self._stride and end.round != self._pace.rounds):
            return
        words = [f"round {end.round}/{self._pace.rounds}", *score(end.evaluation)]
        if end.train_loss is not None:
            words.append(f"train loss {_loss(end.train_loss)}")
        try:
            console.print("  ".join([*words, *self._pace.times]), soft_wrap=True, markup=False)
        except OSError:  # the log cannot be written: the training goes on
            console.quiet = True


def score(evaluation: Evaluation) -> list[str]:
    """The first metric and the loss, each with its label."""
    metric = known(next(iter(evaluation.metrics)))
    return [f"{metric.words} {metric.told(evaluation.first)}", f"loss {_loss(evaluation.loss)}"]


def _loss(value: float) -> str:
    """With three decimals, so that lines are equally long, unless it is very small or large."""
    return f"{value:.3f}" if 1e-3 <= value < LONG or not value else LOSS.told(value)


def packed(words: Sequence[str], width: int) -> list[str]:
    """Words in as few lines as fit; a label and its number stay together."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


UNITS = ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "min"), (60, 1, "min", "s"))
"""(Seconds of the larger unit, seconds of the smaller one, their names)."""


def spell(seconds: float) -> str:
    """`12 s`, `3 min 20 s`, `1 h 12 min`, `2 d 3 h`."""
    for large, small, name, part in UNITS:
        count, rest = divmod(round(seconds / small) * small, large)
        if count:
            return f"{count:.0f} {name}" + (f" {rest / small:.0f} {part}" if rest else "")
    return f"{seconds:.0f} s" if seconds >= 1 or not seconds else f"{seconds:.2g} s"
