"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

import fedkeel
from fedkeel.cli.exits import fail, guarded
from fedkeel.errors import InputError, StoppedError

if TYPE_CHECKING:
    from fedkeel.config.experiment import Experiment
    from fedkeel.runner.stopping import Stop

app = typer.Typer(
    name="fedkeel",
    help="Federated learning across unequal clients.",
    epilog="Exit codes: 0 done, 2 bad input, 3 training diverged, 130 interrupted (143 by SIGTERM), 1 anything else. "
    "--debug anywhere shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Fetch data sets and look at partitions.", no_args_is_help=True)
app.add_typer(data_app, name="data")
fleet_app = typer.Typer(help="Look at the devices.", no_args_is_help=True)
app.add_typer(fleet_app, name="fleet")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedkeel {fedkeel.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    pass


Given = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE.yaml] [KEY=VALUE]...", help="An experiment file, and settings on top of it."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE ...", help="Settings, as many as you like: --set clients=50 local.lr=0.1"),
]


@app.command(
    epilog="Examples:  fedkeel run  |  fedkeel run my.yaml --set seed=1  |  "
    "fedkeel run --set dataset=mnist model=linear clients=100 participation=0.2 --out runs/first  |  "
    "fedkeel run --resume runs/first"
)
def run(
    given: Given = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: a new one below runs/.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the run in this folder, from its last checkpoint. With an experiment, which must be the "
            "same, begin it there if that has not happened yet.",
        ),
    ] = None,
) -> None:
    """Train, with a live display, and leave a run folder behind.

    Ctrl-C ends it after the round that is going on, with a checkpoint.
    """
    from fedkeel import api
    from fedkeel.cli import display
    from fedkeel.record.folder import begun
    from fedkeel.report.curves import learning_curves
    from fedkeel.report.runs import RunRecord
    from fedkeel.runner.stopping import Stop

    if out is not None and resume is not None:
        raise InputError(f"--out: {out} is not accepted with --resume, which names the folder; accepted: one of them")
    described = resume is None or bool(given or overrides)
    experiment = _experiment(given, overrides) if described else None
    stop = Stop()
    try:
        with stop.on_signals(display.tell):
            if resume is not None and (begun(resume) or experiment is None):
                folder = _resume(resume, experiment, stop)
            else:
                assert experiment is not None
                with display.progress(experiment) as progress:
                    result = api.run(experiment, resume or out, below="runs", sinks=[progress], stop=stop)
                assert result.out is not None
                folder = result.out
            figures = [folder / "learning_curve.png", folder / "learning_curve.svg"]
            learning_curves([RunRecord.read(folder)], figures)
            display.summary(folder, figures[0])
    except StoppedError as error:
        fail(str(error), stop.code)
    except KeyboardInterrupt as error:
        fail("; ".join(["interrupted", *getattr(error, "__notes__", [])]), stop.code)


def _resume(folder: Path, given: Experiment | None, stop: Stop) -> Path:
    """Go on with the run in a folder, unless it is complete; `given` must not contradict it."""
    from fedkeel import api
    from fedkeel.cli import display
    from fedkeel.config.experiment import Experiment, contradiction
    from fedkeel.record import schema
    from fedkeel.record.folder import begun, complete

    if not begun(folder):
        raise InputError(
            f"--resume: {folder} holds no run that was begun; accepted: a folder made by fedkeel run, or an experiment "
            "to begin there"
        )
    schema.check(folder)
    stored = Experiment.load(folder / schema.EXPERIMENT)
    reason = contradiction(stored.model_dump(), given.model_dump(exclude_unset=True)) if given is not None else None
    if reason:
        raise InputError(
            f"--resume: the run in {folder} was begun with {reason}; accepted: the same, or another folder"
        )
    if complete(folder):
        display.tell(f"the run in {folder} is complete: nothing is left to do")
    else:
        with display.progress(stored) as progress:
            api.resume(folder, sinks=[progress], stop=stop, tell=display.tell)
    return folder


@app.command(epilog="Example:  fedkeel show --set algorithm.name=fedavg > my.yaml")
def show(given: Given = None, overrides: Overrides = None) -> None:
    """Print the whole experiment as YAML, every default included."""
    typer.echo(_experiment(given, overrides).to_yaml(), nl=False)


@app.command("list", epilog="Example:  fedkeel list models --json")
def list_(
    what: Annotated[Literal["algorithms", "models", "datasets", "partitions"], typer.Argument()],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List what can be named in an experiment."""
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


@app.command(
    epilog="Examples:  fedkeel plot runs/a runs/b --out compare.png --x virtual_seconds  |  "
    "fedkeel plot runs/a --what timeline --first 100 --last 300 --out lanes.png"
)
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    what: Annotated[
        Literal["curves", "rates", "timeline", "staleness", "weights"],
        typer.Option(
            help="Learning curves; learning rates that clients used; what devices of one run did when; how stale "
            "updates were; weights that they were given."
        ),
    ] = "curves",
    out: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file; default: WHAT.png.")] = None,
    x: Annotated[Literal["round", "virtual_seconds", "updates", "bytes_up"], typer.Option(help="Of curves.")] = "round",
    first: Annotated[float | None, typer.Option(help="Of the timeline: from this virtual second.")] = None,
    last: Annotated[float | None, typer.Option(help="Until this one; by default 25 mean jobs later.")] = None,
) -> None:
    """Draw the learning curves of runs in one figure, or something else that they recorded."""
    from fedkeel.report.curves import learning_curves
    from fedkeel.report.rates import learning_rates
    from fedkeel.report.runs import RunRecord
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


@data_app.command("get", epilog="Example:  fedkeel data get fashion-mnist")
def data_get(name: Annotated[str, typer.Argument(help="A data set's name.")]) -> None:
    """Fetch a data set into the cache ($FEDKEEL_DATA, default ~/.cache/fedkeel) and check it."""
    from fedkeel.data import datasets

    typer.echo(datasets.get(name))


@data_app.command(
    "show",
    epilog="Example:  fedkeel data show mnist --partition dirichlet --set partition.alpha=0.6 clients=100",
)
def data_show(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
    given: Given = None,
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet, shards or classes.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The heat map's file (.png) or folder.")] = None,
) -> None:
    """Show who has what: a table of sizes, the distance from IID, and a label-by-client heat map as PNG."""
    from fedkeel.cli import display
    from fedkeel.report.heatmap import label_heatmap
    from fedkeel.runner.prepare import federate

    kind = [f"partition.kind={partition}"] if partition else []
    experiment = _experiment(given, [f"dataset.name={name}", *kind, *(overrides or [])])
    what = f"{experiment.dataset.name}-{experiment.partition.kind}.png".replace(":", "_")
    path = Path(what) if out is None else out if out.suffix else out / what
    counts = federate(experiment).label_counts()
    title = f"{experiment.dataset.name}, {experiment.partition.kind}, seed {experiment.seed}"
    label_heatmap(counts, path, title=title)
    display.partition(counts, path)


@fleet_app.command(
    "show",
    epilog="Examples:  fedkeel fleet show fleet.speed_ratio=5  |  "
    "fedkeel fleet show my.yaml --set fleet.profile=devices.csv --out devices.png",
)
def fleet_show(
    given: Given = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A .png, .svg or .pdf file, or a folder.")] = None,
) -> None:
    """Show how long jobs take on the devices, how fast their links are and when they are on: a table and a figure."""
    from fedkeel.cli import display
    from fedkeel.report.fleet import JobCosts, fleet_profile
    from fedkeel.runner.prepare import prepare
    from fedkeel.world.fleet.profile import Fleet

    experiment, data, model = prepare(_experiment(given, overrides))
    fleet = Fleet.of(experiment.fleet, data.sizes, experiment.local.epochs, experiment.seed)
    nbytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    costs = JobCosts.of(fleet, data.sizes, experiment.local.epochs, nbytes)
    what = f"fleet-{Path(experiment.fleet.profile).stem}.png".replace(":", "_")
    path = Path(what) if out is None else out if out.suffix else out / what
    title = f"{len(fleet):,} devices, {Path(experiment.fleet.profile).name}, seed {experiment.seed}"
    fleet_profile(fleet, costs, path, title)
    display.fleet(fleet, costs, nbytes, path)


def main() -> None:
    """The console script."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    sys.path.insert(0, "")  # a user's module:function is looked for where the command is given
    guarded(typer.main.get_command(app), arguments, debug)


def _experiment(given: list[str] | None, overrides: list[str] | None) -> Experiment:
    """Words with '=' are settings wherever they stand, so that one --set takes as many as you like."""
    from fedkeel.config.experiment import Experiment

    words = given or []
    files = [w for w in words if "=" not in w]
    if len(files) > 1:
        raise InputError(f"files {', '.join(files)}: too many; accepted: one experiment file")
    return Experiment.load(files[0] if files else None, [*(overrides or []), *(w for w in words if "=" in w)])


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
