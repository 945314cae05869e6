"""An experiment as the command line gives it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.errors import InputError, label

if TYPE_CHECKING:
    from fedkeel.config.experiment import Experiment

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml] [KEY=VALUE]...", help="An experiment file, and settings that replace those of the file."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE ...", help="One or more settings: --set clients=50 local.lr=0.1"),
]


def described(given: list[str] | None, overrides: list[str] | None) -> Experiment:
    """The experiment that a command names."""
    with importing():
        from fedkeel.config.experiment import Experiment
        from fedkeel.study.files import is_study

    file, settings = sorted_out(given, overrides)
    if file is not None and is_study(file):
        raise InputError(f"{label(str(file))} is a comparison; use fedkeel compare {label(str(file))}")
    return Experiment.load(file, settings)


def sorted_out(given: list[str] | None, overrides: list[str] | None) -> tuple[Path | None, list[str]]:
    """(A file, settings): words with '=' are settings wherever they are, so that one --set is enough."""
    words = given or []
    files = [w for w in words if "=" not in w]
    if len(files) > 1:
        raise InputError(f"{len(files)} experiment files are given ({', '.join(map(label, files))}); keep one of them")
    settings = [*(overrides or []), *(w for w in words if "=" in w)]
    return (Path(files[0]) if files else None), settings
