"""`fedkeel report` and `fedkeel export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.compare import At, Metric, Reference, Target
from fedkeel.errors import InputError

if TYPE_CHECKING:
    from fedkeel.study.results import Results

app = typer.Typer()

Folders = Annotated[list[Path], typer.Argument(metavar="RUN-OR-COMPARISON...", help="Run folders and comparisons.")]


@app.command(epilog="Examples:  fedkeel report runs/asmu --open  |  fedkeel report runs/a runs/b --out compared.html")
def report(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="The page. Default: in the folder; of several, here.")] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG and SVG into this folder.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page on a run, on several, or on a comparison."""
    with importing():
        from fedkeel.report.figures import figures as draw
        from fedkeel.report.page.html import page
        from fedkeel.study.adhoc import gather
        from fedkeel.study.export import write

    results = gather(folders, at, target, reference, metric)
    if not any(run.history or run.broken for run in results.outcomes):
        raise InputError(f"{folders[0]}: no evaluation yet; accepted: a run with at least one, or fedkeel watch")
    path = out or _place(folders, at, target, reference, metric)
    write(path, page(results))
    if figures is not None:
        draw(results, figures)
    _tell_of_unfinished(results, "the report shows what there is now")
    typer.echo(path)
    if open_:
        typer.launch(str(path))


def _tell_of_unfinished(results: Results, so: str) -> None:
    """That is easily overlooked in what was written."""
    from fedkeel.study.results import LEFT

    left = [run.name for run in results.outcomes if run.state in LEFT]
    if left:
        which = left[0] if len(results.outcomes) == 1 else f"{len(left)} of {len(results.outcomes)} runs"
        typer.echo(f"fedkeel: {which} {'are' if len(left) > 1 else 'is'} not finished: {so}", err=True)


def _place(folders: list[Path], at: str | None, target: float | None, reference: str | None, metric: str | None) -> Path:
    """In a folder of its own, a report has its usual name; what is asked for in another way overwrites none."""
    if len(folders) > 1:
        return Path("report.html")
    words = ["report", *([at] if at else []), *([f"{target:g}"] if target is not None else [])]
    words += ([f"against {reference}"] if reference else []) + ([metric] if metric else [])
    return folders[0] / f"{re.sub(r'[^A-Za-z0-9.]+', '-', '-'.join(words))}.html"


@app.command(
    epilog="Examples:  fedkeel export runs/asmu --out table.tex  |  "
    "fedkeel export runs/asmu --what history --out curves.parquet  |  fedkeel export runs/asmu --format markdown"
)
def export(
    folders: Folders,
    what: Annotated[
        Literal["table", "runs", "history"],
        typer.Option(help="table: one row per scene and variant. runs: one per run. history: one per evaluation."),
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="A .csv, .parquet, .tex or .md file. Default: print it.")] = None,
    form: Annotated[
        Literal["csv", "parquet", "latex", "markdown"] | None,
        typer.Option("--format", help="Default: as the file's name ends, or csv."),
    ] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
) -> None:
    """Write what runs came to as CSV, Parquet, LaTeX or Markdown."""
    with importing():
        from fedkeel.study.adhoc import gather
        from fedkeel.study.export import export as save
        from fedkeel.study.export import told

    results = gather(folders, at, target, reference, metric)
    _tell_of_unfinished(results, "the table counts what is finished")
    if out is None:
        if form == "parquet":
            raise InputError("out: parquet is no text; accepted: --out FILE.parquet, or another format")
        typer.echo(told(results, what, form or "csv"), nl=False)
        return
    typer.echo(save(results, out, what, form))
