"""`fedkeel show` and `fedkeel list`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.given import Given, Overrides, described
from fedkeel.errors import InputError

app = typer.Typer()


@app.command(
    epilog="Examples:  fedkeel show --set algorithm=fedavg > my.yaml  |  fedkeel show --explain local.lr fleet  |  "
    "fedkeel show --explain algorithm --set algorithm=fedagg  |  fedkeel show --schema > fedkeel.schema.json"
)
def show(
    given: Given = None,
    overrides: Overrides = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Explain settings instead. Name settings or sections to see only those: --explain local.lr",
        ),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print a JSON schema instead, by which editors check YAML files."),
    ] = False,
) -> None:
    """Print the whole experiment as YAML, with all defaults."""
    if schema:
        _print_schema(given, overrides, explain)
        return
    if not explain:
        typer.echo(described(given, overrides).to_yaml(), nl=False)
        return
    with importing():
        from fedkeel.cli import explain as explaining

    topics = [word for word in given or [] if explaining.is_topic(word)]
    experiment = described([word for word in given or [] if word not in topics], overrides)
    explaining.explain(experiment, topics)


def _print_schema(given: list[str] | None, overrides: list[str] | None, explain: bool) -> None:
    if given or overrides or explain:
        raise InputError("--schema describes every experiment file; use it without other arguments")
    with importing():
        from fedkeel.study.schema import file_schema
    typer.echo(json.dumps(file_schema(), indent=2, ensure_ascii=False))


@app.command("list", epilog="Example:  fedkeel list models --json")
def list_(
    what: Annotated[Literal["algorithms", "models", "datasets", "partitions"], typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the methods, models, data sets or partitions that an experiment can name."""
    from rich.table import Table

    from fedkeel.cli.console import console

    rows = _catalogue(what)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        settings = ", ".join(f"{k}={v}" for k, v in row["settings"].items())
        table.add_row(f"[bold]{row['name']}[/]", row["about"], f"[dim]{settings}[/]")
    console.print(table)


def _catalogue(what: str) -> list[dict[str, Any]]:
    """Only what is listed is imported: data sets and partitions need no PyTorch."""
    match what:
        case "algorithms":
            with importing():
                from fedkeel.methods import methods
            return [
                {"name": m.name, "about": f"{m.about} ({m.cite})", "settings": m.defaults} for m in methods().values()
            ]
        case "models":
            with importing():
                from fedkeel import models
            return [{"name": n, "about": models.describe(n), "settings": models.options(n)} for n in models.names()]
        case "datasets":
            from fedkeel.data import datasets

            return [{"name": n, "about": datasets.describe(n), "settings": {}} for n in datasets.names()]
        case _:
            from fedkeel.data import partition

            return [
                {"name": kind, "about": partition.describe(kind), "settings": partition.options(kind)}
                for kind in partition.names()
            ]
