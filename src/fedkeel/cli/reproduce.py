"""`fedkeel reproduce`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedkeel.cli.collector import importing
from fedkeel.cli.compare import DryRun, Jobs, Ray, Seeds, interrupted, numbers, words
from fedkeel.cli.console import console
from fedkeel.cli.exits import fail
from fedkeel.errors import InputError, StoppedError, counted

if TYPE_CHECKING:
    from fedkeel.study.papers.catalogue import Item
    from fedkeel.study.papers.plan import ItemPlan
    from fedkeel.study.reproduce import Reproduced

app = typer.Typer()
TINY_SECONDS = 1.2
"""Of a run at the scale `tiny`: the mean over all of them, on one core."""


@app.command(
    epilog="Examples:  fedkeel reproduce --list  |  fedkeel reproduce fedagg-journal/table5 --rows mnist,linear  |  "
    "fedkeel reproduce fedlga --scale tiny  |  fedkeel reproduce all --scale tiny --dry-run"
)
def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER/ITEM | PAPER | all]...", help="What to reproduce, by the names that --list shows."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List every table and figure of the papers.")] = False,
    scale: Annotated[
        Literal["tiny", "small", "full"],
        typer.Option(
            help="tiny: only tests that every row works. small: a real experiment, which takes an hour or two per item "
            "on two cores. full: the paper's setting."
        ),
    ] = "small",
    rows: Annotated[
        str | None, typer.Option(metavar="WORD,...", help="Run only the rows that contain all these words.")
    ] = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the results. The default is runs/reproduce/SCALE.")
    ] = None,
    jobs: Jobs = None,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """Reproduce the tables and figures of five papers, and print the paper's numbers beside ours.

    Runs that several items share are run once. After an interruption, the same command continues.
    """
    from fedkeel.study.papers import catalogue

    if list_ or not what:
        _list()
        return
    items = catalogue.find(what)
    _tell_of_others(items)
    if not any(item.cells for item in items):
        return
    with importing():
        from fedkeel.study.papers.plan import plan
        from fedkeel.study.store import Store

    plans = plan(items, scale, words(rows, "rows"), numbers(seeds))
    place = out or Path("runs") / "reproduce" / scale
    if dry_run:
        _rehearse(plans, jobs, ray)
        return
    Store(place).check_writable()
    options = {"--scale": scale, "--rows": rows, "--seeds": seeds, "--out": None if out is None else str(out)}
    told = [word for name, value in options.items() if value for word in (name, value)]
    done = _run(plans, place, jobs, ray, told)
    for each in done:
        _show(each)
        _draw(each, place)
    _conclude(done, place)


def _list() -> None:
    """Every table and figure."""
    from fedkeel.study.papers import catalogue

    for paper in catalogue.papers():
        table = Table(box=None, pad_edge=False, title=escape(str(paper.cite)), title_justify="left", show_header=False)
        for item in paper.items:
            table.add_row(f"[bold]{item.path}[/]", escape(item.entry.caption), f"[dim]{escape(_kind(item))}[/]")
        console.print(table, "")
    items = [item for paper in catalogue.papers() for item in paper.items]
    counts = {kind: sum(item.name.startswith(kind) for item in items) for kind in ("table", "figure")}
    some = sum(bool(item.cells) for item in items)
    console.print(
        f"{counts['table']} tables and {counts['figure']} figures; {some} of these items are results that can be run",
        soft_wrap=True,
    )


def _kind(item: Item) -> str:
    if item.cells:
        count = len([cell for cell in item.cells if cell.exists])
        return (
            f"result: {len(item.rows)} row{'s' if len(item.rows) > 1 else ''}, {count} cell{'s' if count > 1 else ''}"
        )
    return f"not a result: {item.entry.why}"


def _tell_of_others(items: Sequence[Item]) -> None:
    """What was asked for and is not run, in a sentence each."""
    for item in items:
        if not item.cells:
            console.print(f"{item.path}: {item.entry.caption}; {_kind(item)}", soft_wrap=True, markup=False)


def _rehearse(plans: Sequence[ItemPlan], jobs: int | None, ray: str | None) -> None:
    """What would be run, and how long that takes."""
    from fedkeel.cli.progress import spell
    from fedkeel.study.outposts import on_ray
    from fedkeel.study.papers.plan import CORES, cases

    table = Table(box=None, pad_edge=False)
    for column in ("item", "rows", "left out", "runs", "on two cores, about"):
        table.add_column(column, justify="left" if column == "item" else "right")
    for made in plans:
        left_out = {cell.cell.row for cell in made.cells if cell.left_out and cell.cell.exists}
        left = {cell.cell.row for cell in made.cells} - left_out
        seconds = TINY_SECONDS * len(cases([made])) if made.scale == "tiny" else made.seconds
        time = "" if made.of_data else "?" if seconds is None else spell(seconds / CORES)
        table.add_row(made.item.path, f"{len(left)}", f"{len(left_out)}", f"{len(cases([made]))}", time)
    console.print(table)
    if len(plans) == 1:
        why = {cell.cell.row: cell.left_out for cell in plans[0].cells if cell.cell.exists}
        rows = (f"{row} ({reason})" if reason else row for row, reason in why.items())
        console.print(f"rows: {'; '.join(rows)}", soft_wrap=True, markup=False)
    console.print(f"{counted(len(cases(plans)), 'run')} in total; runs that several items share are run once")
    with on_ray(ray) as crew:
        if crew is not None:
            room = crew.join(jobs)
            console.print(f"{crew.words}, {jobs or room} at a time", soft_wrap=True, markup=False)


def _run(
    plans: Sequence[ItemPlan], place: Path, jobs: int | None, ray: str | None, options: Sequence[str]
) -> list[Reproduced]:
    with importing():
        from fedkeel.cli import display, studying
        from fedkeel.runner.stopping import Stop
        from fedkeel.study.outposts import on_ray
        from fedkeel.study.reproduce import reproduce as run

    def command(made: ItemPlan) -> str:
        return shlex.join(["fedkeel", "reproduce", made.item.path, *options])

    stop = Stop()
    try:
        with stop.on_signals(display.tell), on_ray(ray) as crew, studying.studying() as watch:
            return run(plans, place, jobs=jobs, watch=watch, stop=stop, ray=crew, command=command)
    except StoppedError as error:
        fail(str(error), stop.code if stop.asked else error.exit_code)
    except KeyboardInterrupt:
        interrupted(stop.code)


def _show(done: Reproduced) -> None:
    """The paper's figures beside ours, and what its marks mean."""
    from fedkeel.study.papers import tables

    item = done.plan.item
    letters = tables.notes(done.lines)
    title = escape(tables.heading(item))
    table = Table(box=None, pad_edge=False, title=f"\n[bold]{title}[/]", title_justify="left", title_style="")
    one = len(item.shows) == 1
    shown = [place for place, column in enumerate(tables.HEADER) if place and not (one and column == "quantity")]
    for column in (tables.HEADER[place] for place in shown):
        right = column in ("paper", "ours", "seeds", "difference")
        table.add_column("" if column == "method" else column, justify="right" if right else "left", overflow="fold")
    above = ""
    for line in done.lines:
        if line.row != above:
            table.add_row(f"[bold]{escape(line.row)}[/]")
        above = line.row
        method, *cells = (escape(tables.cells(line, letters)[place]) for place in shown)
        table.add_row(Padding(method, (0, 0, 0, 2)), *cells)
    console.print(table)
    if one:
        console.print(f"The numbers are: {item.shows[0]}.", markup=False)
    for sentence in [*tables.remarks(item), *(f"{letter}: {meaning}" for meaning, letter in letters.items())]:
        console.print(sentence, soft_wrap=True, markup=False)


def _draw(done: Reproduced, place: Path) -> None:
    """Heat maps of an item about data, and a report with the curves of any other; the smallest runs have no curves."""
    from fedkeel.report.heatmap import label_heatmap
    from fedkeel.report.page.html import page
    from fedkeel.study.export import write
    from fedkeel.study.results import collect

    for labels in done.labels:
        name = "".join(c if c.isalnum() or c in "-+." else "-" for c in labels.row.replace(", ", "-"))
        label_heatmap(labels.counts, done.folder / f"{name}.png", title=labels.row)
    comparison = done.comparison() if not done.plan.of_data and done.plan.scale != "tiny" else None
    if comparison is not None:
        report = done.folder / "report.html"
        write(report, page(collect(comparison, place)))
        console.print(f"curves  {report}", soft_wrap=True, markup=False)


def _conclude(done: Sequence[Reproduced], place: Path) -> None:
    """Where everything is; what failed is an error."""
    from fedkeel.study.papers.lines import NOT_REACHED

    console.print(f"\ntables  {place / 'items'}\nruns    {place / 'runs'}", soft_wrap=True, markup=False)
    failed = [line for each in done for line in each.failed]
    if failed:
        fail(f"{len(failed)} of {sum(len(each.lines) for each in done)} numbers could not be computed; see above", 1)
    if done and all(line.ours is None and line.state != NOT_REACHED for each in done for line in each.lines):
        raise InputError("nothing was run, as all rows are left out; name one of them with --rows")
