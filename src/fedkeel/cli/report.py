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

Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN-OR-COMPARISON...", help="Run folders and folders of comparisons.")
]


@app.command(epilog="Examples:  fedkeel report runs/asmu --open  |  fedkeel report runs/a runs/b --out compared.html")
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file of the page. The default is report.html in the folder, or here if there are several folders."
        ),
    ] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG and SVG files into this folder.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one self-contained HTML page about a run, several runs, or a comparison."""
    with importing():
        from fedkeel.report.figures import figures as draw
        from fedkeel.report.page.html import page
        from fedkeel.study.adhoc import gather
        from fedkeel.study.export import write

    results = gather(folders, at, target, reference, metric)
    if not any(run.history or run.broken for run in results.outcomes):
        raise InputError(f"{folders[0]} has no evaluation yet; wait for the first one, or use fedkeel watch")
    path = out or _place(folders, at, target, reference, metric)
    write(path, page(results))
    if figures is not None:
        draw(results, figures)
    _tell_of_unfinished(results, "the report shows what there is so far")
    typer.echo(path)
    if open_:
        typer.launch(str(path))


def _tell_of_unfinished(results: Results, so: str) -> None:
    """That is easily overlooked in what was written."""
    from fedkeel.study.results import LEFT

    left = [run.name for run in results.outcomes if run.state in LEFT]
    if left:
        which = left[0] if len(results.outcomes) == 1 else f"{len(left)} of {len(results.outcomes)} runs"
        typer.echo(f"fedkeel: {which} {'are' if len(left) > 1 else 'is'} not finished; {so}", err=True)


def _place(
    folders: list[Path], at: str | None, target: float | None, reference: str | None, metric: str | None
) -> Path:
    """In a folder of its own, a report has its usual name; what is asked for in another way overwrites none."""
    if len(folders) > 1:
        return Path("report.html")
    words = ["report", *([at] if at else []), *([f"{target:g}"] if target is not None else [])]
    words += ([f"against {reference}"] if reference else []) + ([metric] if metric else [])
    return folders[0] / f"{re.sub(r'[^A-Za-z0-9.]+', '-', '-'.join(words))}.html"


@app.command(
    epilog="Examples:  fedkeel export runs/asmu --out table.tex  |  "
    "fedkeel export runs/asmu --what history --out curves.parquet  |  fedkeel export runs/asmu --format markdown  |  "
    "fedkeel export runs/first --to onnx --out model.onnx"
)
def export(
    folders: Folders,
    what: Annotated[
        Literal["table", "runs", "history"],
        typer.Option(
            help="table: one row per scene and variant. runs: one row per run. history: one row per evaluation."
        ),
    ] = "table",
    to: Annotated[
        Literal["torchscript", "onnx", "safetensors"] | None,
        typer.Option(help="Write the trained model of one run instead of a table."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="With --to, the model of the best evaluation instead of the last model.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .csv, .parquet, .tex or .md file. Default: print it. With --to, the model's file. Default: "
            "exported.* in the run folder."
        ),
    ] = None,
    form: Annotated[
        Literal["csv", "parquet", "latex", "markdown"] | None,
        typer.Option("--format", help="The format. The default follows from the name of the file, or is csv."),
    ] = None,
    at: At = None,
    target: Target = None,
    reference: Reference = None,
    metric: Metric = None,
) -> None:
    """Write the results of runs as CSV, Parquet, LaTeX or Markdown, or with --to the trained model of a run."""
    if to is not None:
        tables: dict[str, object] = {"--what": what != "table", "--format": form, "--at": at, "--target": target}
        tables |= {"--reference": reference, "--metric": metric}
        typer.echo(_model(folders, to, out, best, [name for name, value in tables.items() if value]))
        return
    if best:
        raise InputError("--best needs --to, which says the format of the model; add it or remove --best")
    with importing():
        from fedkeel.study.adhoc import gather
        from fedkeel.study.export import export as save
        from fedkeel.study.export import told

    results = gather(folders, at, target, reference, metric)
    _tell_of_unfinished(results, "the table counts finished runs only")
    if out is None:
        if form == "parquet":
            raise InputError("--format parquet cannot be printed; add --out FILE.parquet, or choose another format")
        typer.echo(told(results, what, form or "csv"), nl=False)
        return
    typer.echo(save(results, out, what, form))


def _model(folders: list[Path], to: str, out: Path | None, best: bool, others: list[str]) -> Path:
    """The file of a run's model."""
    if others:
        raise InputError(f"{others[0]} is for tables and cannot be combined with --to; remove one of them")
    if len(folders) > 1:
        raise InputError(f"--to writes the model of one run; got {len(folders)} folders")
    with importing():
        from fedkeel.runner.export import export_run

    return export_run(folders[0], to, out, best)
