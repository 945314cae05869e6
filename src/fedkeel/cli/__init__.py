"""The command line: parse, call, print. One file per group of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fedkeel
from fedkeel.cli import (
    compare,
    data,
    deploy,
    doctor,
    fleet,
    new,
    node,
    plot,
    report,
    reproduce,
    run,
    show,
    sweep,
    watch,
)
from fedkeel.cli.exits import guarded

app = typer.Typer(
    name="fedkeel",
    help="Federated learning across unequal clients.",
    epilog="Exit codes: 0 success, 2 wrong input, 3 training diverged, 75 time limit reached (resume the run), "
    "130 interrupted (143 by SIGTERM), 1 any other error. Add --debug to any command to see the traceback of an error.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _module in (run, compare, sweep, report, watch, reproduce, show, plot, doctor):
    app.registered_commands += _module.app.registered_commands
for _name, _group in (
    ("data", data.app),
    ("fleet", fleet.app),
    ("new", new.app),
    ("deploy", deploy.app),
    ("node", node.app),
):
    app.add_typer(_group, name=_name)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedkeel {fedkeel.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    sys.path.insert(0, "")  # a user's module:name is looked for where the command is given
    guarded(typer.main.get_command(app), arguments, debug)
