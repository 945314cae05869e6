"""What a person sees while the runs of a study go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedkeel.cli.console import console
from fedkeel.cli.display import tell
from fedkeel.cli.progress import spell
from fedkeel.errors import counted
from fedkeel.study.engine import Begun, Watcher
from fedkeel.study.space import Search, Trial
from fedkeel.study.tasks import Ended, Lost, Moved


@contextmanager
def studying() -> Iterator[Watcher]:
    """Bars on a terminal, a line per finished run elsewhere."""
    if not console.is_terminal:
        yield _Lines().take
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars).take


@contextmanager
def trying(trials: int) -> Iterator[Callable[[Trial], None]]:
    """Tells of the trials of a search; on a terminal, with a bar."""
    columns = (TextColumn("trials"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=trials)

        def tell(trial: Trial) -> None:
            told = f"trial {trial.number + 1}/{trials}  {trial.variant}  {_outcome(trial)}"
            bar.console.print(told, soft_wrap=True, markup=False)
            bar.update(task, completed=trial.number + 1)

        yield tell


def _outcome(trial: Trial) -> str:
    notes = ["stopped early"] * (trial.state == "pruned") + ["tried before"] * (trial.repeats is not None)
    how = f" ({', '.join(notes)})" if notes else ""
    if trial.state == "failed" or trial.value is None:
        return f"failed{how}: {trial.why}"
    return f"{'validation ' * trial.validated}{trial.metric.words} {trial.metric.told(trial.value)}{how}"


def announce_search(begun: Begun, what: Search) -> None:
    """What a search would take at most, by its first trial."""
    seconds = "" if begun.seconds is None else f", about {spell(what.trials * begun.seconds)} at most"
    early = "; trials that fall behind are stopped early" if what.prunes else ""
    console.print(
        f"{counted(what.trials, 'trial')} of {counted(begun.total, 'run')}{f' {begun.where}' if begun.where else ''}, "
        f"{begun.jobs} at a time{seconds}{early}",
        soft_wrap=True,
    )


def silent(_: Begun | Moved | Lost | Ended) -> None:
    """For those who tell of it in another way."""


class Pace:
    """How much of a study is done, and how long the rest will take."""

    def __init__(self, begun: Begun) -> None:
        known = {name: each.seconds for name, each in begun.estimates.items()}
        usual = sum(known.values()) / len(known) if known else 1.0
        self._weights = {case.name: known.get(case.name, usual) for case in begun.cases}
        self._shares = dict.fromkeys(self._weights, 0.0)
        self._first: dict[str, float] = {}
        """Where a run began: further on, where it is resumed."""
        self._total, self._jobs = begun.total, begun.jobs
        self._expected = begun.seconds
        self._started = monotonic()
        self.ended = begun.total - len(begun.cases)

    def take(self, event: Moved | Ended) -> None:
        """Count it."""
        if isinstance(event, Moved):
            self._first.setdefault(event.name, event.share)
            self._shares[event.name] = event.share
        else:
            self._shares[event.name] = 1.0
            self.ended += event.state != "stopped"

    @property
    def share(self) -> float:
        """Of the work that was left at the beginning."""
        whole = sum(self._weights.values())
        return sum(self._weights[name] * share for name, share in self._shares.items()) / whole if whole else 1.0

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes: as fast as it went so far, or at first as estimated."""
        done = sum(self._weights[n] * (share - self._first.get(n, 0.0)) for n, share in self._shares.items())
        rest = sum(self._weights[name] * (1 - share) for name, share in self._shares.items())
        passed = monotonic() - self._started
        if passed < 2 or not done:
            return self._expected
        return passed * rest / done

    def __str__(self) -> str:
        return f"{self.ended} of {counted(self._total, 'run')}{_left(self.left)}"


class _Lines:
    """A line for each run that ends."""

    def __init__(self) -> None:
        self._pace: Pace | None = None

    def take(self, event: Begun | Moved | Lost | Ended) -> None:
        if isinstance(event, Begun):
            self._pace = Pace(event)
            announce(event)
            return
        if isinstance(event, Lost):
            console.print(_loss(event), markup=False, soft_wrap=True)
            return
        assert self._pace is not None
        self._pace.take(event)
        if isinstance(event, Ended):
            console.print(f"{event.name}: {_result(event)}  ({self._pace})", markup=False, soft_wrap=True)


class _Bars:
    """A bar for all runs, and one for each that is going on."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._pace: Pace | None = None
        self._whole = bars.add_task("all runs", total=1.0, told="preparing")

    def take(self, event: Begun | Moved | Lost | Ended) -> None:
        if isinstance(event, Begun):
            self._pace = Pace(event)
            announce(event)
        elif isinstance(event, Lost):
            self._bars.console.print(_loss(event), markup=False, soft_wrap=True)
            return
        else:
            assert self._pace is not None
            self._pace.take(event)
            self._show(event)
        assert self._pace is not None
        self._bars.update(self._whole, completed=self._pace.share, told=str(self._pace))

    def _show(self, event: Moved | Ended) -> None:
        if isinstance(event, Moved):
            if event.name not in self._tasks:
                self._tasks[event.name] = self._bars.add_task(event.name, total=1.0, told="")
            score = "" if event.score is None else str(event.score)
            self._bars.update(self._tasks[event.name], completed=event.share, told=f"round {event.round}  {score}")
            return
        if task := self._tasks.pop(event.name, None):
            self._bars.remove_task(task)
        if event.state == "failed":
            self._bars.console.print(f"{event.name}: {_result(event)}", markup=False, soft_wrap=True)


def announce(begun: Begun) -> None:
    """What is going to be done, and what that takes."""
    left, done = len(begun.cases), begun.total - len(begun.cases)
    if not left:
        console.print("the only run is already done" if done == 1 else f"all {done} runs are already done")
        return
    already = f", {done} more {'are' if done > 1 else 'is'} already done" if done else ""
    console.print(f"{counted(left, 'run')} to do{already}; {_costs(begun)}")
    for note in begun.notes:
        tell(note)


def _costs(begun: Begun) -> str:
    where = f"{begun.where}, " if begun.where else ""
    time = "the time is not known yet" if begun.seconds is None else f"about {spell(begun.seconds)}"
    memory = "" if begun.bytes is None else f", {begun.bytes / 1e9:.1f} GB of memory"
    return f"{where}{min(begun.jobs, len(begun.cases))} at a time, {time}{memory}"


def rehearsed(begun: Begun) -> None:
    """The runs of a plan one by one, with what each would take."""
    table = Table(box=None, pad_edge=False)
    for column in ("run", "seconds, about", "executor"):
        table.add_column(column, justify="right" if column.startswith("seconds") else "left", no_wrap=column == "run")
    for case in begun.cases:
        each = begun.estimates.get(case.name)
        seconds = f"{each.seconds:.3g}" if each else "?"
        table.add_row(case.name, seconds, (each.executor if each else case.experiment.executor).label)
    console.print(table)
    announce(begun)


def _loss(event: Lost) -> str:
    return (
        f"{event.name}: its worker was lost ({event.why}); the run goes on with another one, from its last checkpoint"
    )


def _left(seconds: float | None) -> str:
    return "" if seconds is None or seconds < 1 else f", {spell(seconds)} left"


def _result(event: Ended) -> str:
    if event.state == "failed":
        return f"failed: {event.error}"
    if event.state == "stopped":
        return "stopped"
    return "done" if event.score is None else str(event.score)
