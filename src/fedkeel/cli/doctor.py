"""`fedkeel doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

app = typer.Typer()
STYLES = {"ok": "green", "optional": "dim", "warning": "yellow", "broken": "bold red"}
WIDTH = len("executor choices")
"""Of the longest item."""


@app.command(epilog="Example:  fedkeel doctor --json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Show what fedkeel finds on this machine: versions, processor, native kernels, workers, caches and extras.

    The exit code is 0 if fedkeel can run, even with warnings, and 1 if something is broken.
    """
    from fedkeel.cli.checks import findings

    found = findings()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        console = Console(highlight=False)
        for each in found:
            verdict = (f"{each.verdict:<8}  ", STYLES[each.verdict])
            console.print(Text.assemble(f"{each.item:<{WIDTH}}  ", verdict, each.found), soft_wrap=True)
    if any(finding.verdict == "broken" for finding in found):
        raise typer.Exit(1)
