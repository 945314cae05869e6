"""`fedkeel plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedkeel.errors import InputError, label

app = typer.Typer()


@app.command(
    epilog="Examples:  fedkeel plot runs/* --out compare.png --x virtual_seconds  |  "
    "fedkeel plot runs/a runs/b --seeds separate  |  "
    "fedkeel plot runs/a --what timeline --first 100 --last 300 --out lanes.png"
)
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or comparisons, of which all runs are drawn.")],
    what: Annotated[
        Literal["curves", "rates", "timeline", "staleness", "weights"],
        typer.Option(
            help="curves: the main metric and the losses. rates: the learning rates of the clients. timeline: what "
            "each device of one run did, and when. staleness: how stale the updates were. weights: the weights of the "
            "updates."
        ),
    ] = "curves",
    out: Annotated[
        Path | None, typer.Option(help="The figure, a .png, .svg or .pdf file. Default: WHAT.png, such as curves.png.")
    ] = None,
    x: Annotated[
        Literal["round", "virtual_seconds", "updates", "bytes_up"], typer.Option(help="The horizontal axis of curves.")
    ] = "round",
    seeds: Annotated[
        Literal["together", "separate"],
        typer.Option(
            help="How curves show runs that differ in their seed alone. together: their mean, and a band from the "
            "lowest to the highest. separate: one line per run."
        ),
    ] = "together",
    first: Annotated[float | None, typer.Option(help="The first virtual second of a timeline. Default: 0.")] = None,
    last: Annotated[
        float | None,
        typer.Option(help="The last virtual second of a timeline. Default: 25 times the length of a mean job later."),
    ] = None,
) -> None:
    """Draw runs in one figure.

    Learning curves show one line per method or setting. The legend names what differs between the runs, and says which
    runs diverged or have not finished.
    """
    from fedkeel.record.runs import RunRecord
    from fedkeel.report.curves import learning_curves
    from fedkeel.report.rates import learning_rates
    from fedkeel.report.staleness import staleness_histograms, weight_histograms
    from fedkeel.report.timeline import timeline

    out = out or Path(f"{what}.png")
    _check_options(what, x, seeds, first, last)
    folders = [folder for path in runs for folder in _run_folders(path)]
    if what == "timeline" and len(folders) > 1:
        raise InputError(f"runs: a timeline shows one run, and {len(folders)} are given; choose one of them")
    records = [(RunRecord.begun if what == "curves" else RunRecord.read)(folder) for folder in folders]
    match what:
        case "curves":
            learning_curves(records, [out], x, separate=seeds == "separate")
        case "rates":
            learning_rates(records, [out])
        case "timeline":
            timeline(records[0], [out], first, last)
        case "staleness":
            staleness_histograms(records, [out])
        case "weights":
            weight_histograms(records, [out])
    typer.echo(out)


def _check_options(what: str, x: str, seeds: str, first: float | None, last: float | None) -> None:
    """Refuse options that another figure has."""
    for option, given, needs in (
        ("--x", x != "round", "curves"),
        ("--seeds", seeds != "together", "curves"),
        ("--first", first is not None, "timeline"),
        ("--last", last is not None, "timeline"),
    ):
        if given and what != needs:
            raise InputError(f"{option} needs --what {needs}, and this is --what {what}; remove it")


def _run_folders(path: Path) -> Sequence[Path]:
    """The folder of a run, or those of the runs of a comparison that have begun."""
    from fedkeel.record.folder import begun
    from fedkeel.study.store import RUNS, is_comparison

    if not is_comparison(path):
        return [path]
    folders = [folder for folder in sorted((path / RUNS).glob("*")) if begun(folder)]
    if not folders:
        raise InputError(f"{label(str(path))}: no run of this comparison has begun yet; run it first")
    return folders
