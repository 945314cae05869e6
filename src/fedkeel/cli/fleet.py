"""`fedkeel fleet`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.given import Given, Overrides, described
from fedkeel.errors import counted

app = typer.Typer(help="Look at the simulated devices.", no_args_is_help=True)


@app.command(
    "show",
    epilog="Examples:  fedkeel fleet show fleet.speed_ratio=5  |  "
    "fedkeel fleet show my.yaml --set fleet.profile=devices.csv --out devices.png",
)
def show(
    given: Given = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The .png, .svg or .pdf file of the figure, or a folder for it.")
    ] = None,
) -> None:
    """Show the devices in a table and a figure: how long jobs take, how fast links are, and when devices are on."""
    with importing():
        from fedkeel.cli import display
        from fedkeel.local.work import whole_jobs
        from fedkeel.report.fleet import JobCosts, fleet_profile
        from fedkeel.runner.prepare import prepare
        from fedkeel.world.fleet.profile import Fleet

    experiment, data, model = prepare(described(given, overrides))
    samples, epochs = whole_jobs(data.sizes, experiment.local)
    fleet = Fleet.of(experiment.fleet, samples, epochs, experiment.seed)
    nbytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    costs = JobCosts.of(fleet, samples, epochs, nbytes)
    what = f"fleet-{Path(experiment.fleet.profile).stem}.png".replace(":", "_")
    path = Path(what) if out is None else out if out.suffix else out / what
    title = f"{counted(len(fleet), 'device')}, {Path(experiment.fleet.profile).name}, seed {experiment.seed}"
    fleet_profile(fleet, costs, path, title)
    display.fleet(fleet, costs, nbytes, path)
