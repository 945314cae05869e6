"""`fedkeel sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.compare import At, DryRun, Jobs, Metric, Out, Ray, command, digest, interrupted, numbers, short, study
from fedkeel.cli.exits import fail
from fedkeel.cli.given import Given, Overrides, sorted_out
from fedkeel.errors import InputError, StoppedError

if TYPE_CHECKING:
    from fedkeel.study.results import Results
    from fedkeel.study.space import Search
    from fedkeel.study.table import Line

app = typer.Typer()


@app.command(
    epilog="Examples:  fedkeel sweep my.yaml --grid local.lr=0.01,0.03,0.1  |  "
    "fedkeel sweep --grid local.lr=0.01,0.1 --grid local.epochs=1,5 algorithm=fedagg  |  "
    "fedkeel sweep my.yaml --range local.lr=0.001..1 --search 30"
)
def sweep(
    given: Given = None,
    overrides: Overrides = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,...", help="The values to try. With several options, all combinations are tried."
        ),
    ] = None,
    between: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="KEY=LOW..HIGH", help="With --search: the bounds between which values are tried."
        ),
    ] = None,
    search: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Let Optuna choose this many settings, instead of trying all.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="S,S,...", help="The seeds. Do not use those on which you compare methods.")
    ] = "100,101,102",
    at: At = None,
    metric: Metric = None,
    out: Out = None,
    jobs: Jobs = None,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """Find good settings: run every setting with every seed, and rank them in a table.

    The default seeds differ from those of `compare`, so that settings are not chosen on the seeds they are compared on.
    """
    with importing():
        from fedkeel.study.files import StudyFile
        from fedkeel.study.sweep import sweep_plan, tried

    file, settings = sorted_out(given, overrides)
    told = command(
        "sweep", file, settings, grid=grid, range=between, search=search, seeds=seeds, at=at, metric=metric, out=out
    )
    drawn = numbers(seeds)
    assert drawn is not None
    if search is not None:
        from fedkeel.study.space import Search

        read = StudyFile.read(file)
        what = Search.of(read, settings, grid or [], between or [], drawn, search, at, told, metric)
        _search(what, out or Path("runs") / f"search-{short(what.told())}", jobs, ray, dry_run)
        return
    if between:
        raise InputError("--range needs --search; add --search N, or use --grid")
    plan = sweep_plan(StudyFile.read(file), settings, grid or [], drawn, at, told, metric)
    place = out or Path("runs") / f"sweep-{digest(plan)}"
    found = study(plan, place, jobs, ray, dry_run, [])
    if found is not None:
        _tell_best(found, tried(grid or []))


def _search(what: Search, place: Path, jobs: int | None, ray: str | None, dry: bool) -> None:
    """Search, tell of every trial, and end like a sweep: with a table and a report of all of them."""
    with importing():
        from fedkeel.cli import display, studying
        from fedkeel.cli.outcome import conclude
        from fedkeel.runner.stopping import Stop
        from fedkeel.study.engine import execute
        from fedkeel.study.outposts import on_ray
        from fedkeel.study.results import collect
        from fedkeel.study.search import search

    stop = Stop()
    try:
        with stop.on_signals(display.tell), on_ray(ray) as crew:
            if dry:
                begun = execute(what.cases(what.first), place, jobs=jobs, stop=stop, dry=True, ray=crew)
                studying.announce_search(begun, what)
                return
            with studying.trying(what.trials) as tell:
                trials = search(what, place, jobs=jobs, watch=studying.silent, tell=tell, stop=stop, ray=crew)
            if any(map(what.possible, trials)):
                found = collect(what.plan(trials), place)
                conclude(found, place)
    except StoppedError as error:
        fail(str(error), stop.code)
    except KeyboardInterrupt:
        interrupted(stop.code)
    if not any(each.state == "complete" for each in trials):
        fail("no trial was completed", 1)
    _tell_best(found, {trial.variant: trial.words for trial in trials})


def _tell_best(results: Results, settings: Mapping[str, Sequence[str]]) -> None:
    """The settings with the best mean, by what they were chosen, and which others may be best."""
    from fedkeel.cli.console import console
    from fedkeel.study.sweep import ranking

    for scene in results.scenes:
        found = [line for line in ranking(results) if line.scene == scene]
        if not found:
            continue
        top = found[0]
        level = [line.variant for line in found[1:] if line.standing == "level"]
        sure = f"; these may be as good: {'; '.join(level)}" if level else ""
        where = f" in {scene}" if scene else ""
        console.print(f"best mean{where}: {top.variant}, {_chosen(results, top)}{sure}", soft_wrap=True, markup=False)
        console.print(f"use it: --set {shlex.join(settings[top.variant])}", soft_wrap=True, markup=False)


def _chosen(results: Results, top: Line) -> str:
    """By what settings were chosen; where that is a validation set, with the result on the test set."""
    from fedkeel.study.export import amount

    metric, share = results.metric, "%" if results.metric.share else ""
    if not results.on_validation:
        return (
            f"chosen by {results.judged_by}, as there is no validation set "
            "(dataset.validation=0.2 would hold one out of the training data)"
        )
    chosen, tested = amount(top.validation, metric), amount(top.value, metric)
    return f"chosen by {results.judged_by} {chosen}{share}; test {metric.words} {tested}{share}"
