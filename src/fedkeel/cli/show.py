"""`fedkeel show` and `fedkeel list`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from fedkeel.cli.given import Given, Overrides, described

app = typer.Typer()


@app.command(epilog="Example:  fedkeel show --set algorithm.name=fedavg > my.yaml")
def show(given: Given = None, overrides: Overrides = None) -> None:
    """Print the whole experiment as YAML, with all defaults."""
    typer.echo(described(given, overrides).to_yaml(), nl=False)


@app.command("list", epilog="Example:  fedkeel list models --json")
def list_(
    what: Annotated[Literal["algorithms", "models", "datasets", "partitions"], typer.Argument()],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List the methods, models, data sets or partitions that an experiment can name."""
    from fedkeel.cli.display import console

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
    from fedkeel import methods, models
    from fedkeel.data import datasets, partition

    if what == "algorithms":
        return [
            {"name": m.name, "about": f"{m.about} ({m.cite})", "settings": m.defaults}
            for m in methods.methods().values()
        ]
    if what == "models":
        return [{"name": n, "about": models.describe(n), "settings": models.options(n)} for n in models.names()]
    if what == "datasets":
        return [{"name": n, "about": datasets.describe(n), "settings": {}} for n in datasets.names()]
    return [{"name": k, "about": partition.describe(k), "settings": partition.options(k)} for k in partition.names()]
