"""`fedkeel fleet`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.exits import fail, notes
from fedkeel.cli.given import Given, Overrides, described, sorted_out
from fedkeel.errors import InputError, StoppedError, counted, label

app = typer.Typer(help="Look at the simulated devices, or make them from a run.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, on real machines or simulated.")]


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


@app.command(
    "from",
    epilog="Examples:  fedkeel fleet from runs/hospital  |  fedkeel fleet from runs/hospital --out devices.csv  |  "
    "fedkeel run --set fleet.profile=devices.csv",
)
def from_(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The .csv file of the devices. Default: devices.csv in the folder of the run.")
    ] = None,
) -> None:
    """Make a trace of the devices of a run: how fast they and their links were, and how often jobs were lost."""
    with importing():
        from fedkeel.cli import predicted
        from fedkeel.record.runs import RunRecord
        from fedkeel.study import replay

    found = replay.devices(RunRecord.begun(run))
    predicted.devices(found, replay.write(found, out or run / replay.TRACE))


@app.command(
    "replay",
    epilog="Examples:  fedkeel fleet replay runs/hospital  |  "
    "fedkeel fleet replay runs/hospital --set dataset=mnist --out runs/predicted",
)
def replayed(
    run: Run,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace those of the run.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the simulated run. Default: RUN-replay, beside that of the run.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--app", metavar="APP", help="The folder of the deployment, if the model or method is your own."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False,
) -> None:
    """Simulate the experiment of a run on the devices of that run, and compare the prediction with the measurement.

    The devices are those of `fedkeel fleet from`. The comparison is printed and written into the folder of the
    simulated run: prediction.json and prediction.png.
    """
    from fedkeel.cli.console import console, waiting

    console.quiet = quiet
    file, changes = sorted_out(settings, overrides)
    if file is not None:
        raise InputError(f"a setting must be key=value, such as dataset=mnist; got {label(str(file))}")
    with waiting("loading PyTorch"), importing():
        from fedkeel.cli import display, predicted
        from fedkeel.cli.downloads import shown_downloads
        from fedkeel.record.runs import RunRecord
        from fedkeel.report.prediction import prediction_figure
        from fedkeel.runner.stopping import Stop
        from fedkeel.study import replay

    stop = Stop()
    try:
        with _own_code(run, folder):
            plan = replay.plan(run, out, changes)
        with _own_code(run, folder), stop.on_signals(display.tell), shown_downloads(bars=False):
            with display.progress(plan.experiment) as progress:
                found = plan.run([progress], stop)
            figure = plan.folder / "prediction.png"
            prediction_figure(plan.measured, RunRecord.read(plan.folder), found, figure)
            predicted.comparison(found, plan.folder, figure)
    except StoppedError as error:
        fail(str(error), stop.code if stop.asked else error.exit_code)
    except KeyboardInterrupt as error:
        fail("; ".join(["interrupted", *notes(error)]), stop.code)


@contextmanager
def _own_code(run: Path, folder: Path | None) -> Iterator[None]:
    """With the user's modules in the folder of a deployment; where they are needed and not found, say so."""
    from fedkeel.record.places import DEPLOYMENT

    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    except InputError as error:
        if folder is None and isinstance(error.__cause__, ImportError) and (run / DEPLOYMENT).exists():
            raise InputError(f"{error}, or name the folder of the deployment with --app") from None
        raise
