"""`fedkeel plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedkeel.errors import InputError

app = typer.Typer()


@app.command(
    epilog="Examples:  fedkeel plot runs/a runs/b --out compare.png --x virtual_seconds  |  "
    "fedkeel plot runs/a --what timeline --first 100 --last 300 --out lanes.png"
)
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    what: Annotated[
        Literal["curves", "rates", "timeline", "staleness", "weights"],
        typer.Option(
            help="curves: accuracy and loss. rates: the clients' learning rates. timeline: what each device of one run "
            "did when. staleness: how stale updates were. weights: the weights of updates."
        ),
    ] = "curves",
    out: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file. Default: WHAT.png.")] = None,
    x: Annotated[
        Literal["round", "virtual_seconds", "updates", "bytes_up"], typer.Option(help="The horizontal axis of curves.")
    ] = "round",
    first: Annotated[float | None, typer.Option(help="The first virtual second of a timeline.")] = None,
    last: Annotated[
        float | None, typer.Option(help="The last virtual second of a timeline. Default: 25 mean jobs later.")
    ] = None,
) -> None:
    """Draw runs in one figure: learning curves, or something else that was recorded."""
    from fedkeel.record.runs import RunRecord
    from fedkeel.report.curves import learning_curves
    from fedkeel.report.rates import learning_rates
    from fedkeel.report.staleness import staleness_histograms, weight_histograms
    from fedkeel.report.timeline import timeline

    out = out or Path(f"{what}.png")
    for option, value in (("--first", first), ("--last", last)):
        if value is not None and what != "timeline":
            raise InputError(f"{option}: {value:g} is not accepted with {what}; accepted: --what timeline")
    records = [RunRecord.read(path) for path in runs]
    match what:
        case "curves":
            learning_curves(records, [out], x)
        case "rates":
            learning_rates(records, [out])
        case "timeline":
            if len(records) > 1:
                raise InputError(f"runs: {len(records)} are not accepted with a timeline; accepted: one")
            timeline(records[0], [out], first, last)
        case "staleness":
            staleness_histograms(records, [out])
        case "weights":
            weight_histograms(records, [out])
    typer.echo(out)
