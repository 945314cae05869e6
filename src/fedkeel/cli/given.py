"""An experiment as the command line gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.errors import InputError

if TYPE_CHECKING:
    from fedkeel.config.experiment import Experiment

Given = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE.yaml] [KEY=VALUE]...", help="An experiment file, and settings on top of it."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE ...", help="Settings, as many as you like: --set clients=50 local.lr=0.1"),
]


def described(given: list[str] | None, overrides: list[str] | None) -> Experiment:
    """Words with '=' are settings wherever they stand, so that one --set takes as many as you like."""
    from fedkeel.config.experiment import Experiment

    words = given or []
    files = [w for w in words if "=" not in w]
    if len(files) > 1:
        raise InputError(f"files {', '.join(files)}: too many; accepted: one experiment file")
    return Experiment.load(files[0] if files else None, [*(overrides or []), *(w for w in words if "=" in w)])
