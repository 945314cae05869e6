"""`fedkeel deploy`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.cli.given import Given, Overrides, sorted_out

if TYPE_CHECKING:
    from fedkeel.record.rows import Evaluation

app = typer.Typer(
    help="Run an experiment on real machines, with Flower: a server, and a site for each client.", no_args_is_help=True
)
App = Annotated[Path, typer.Argument(metavar="APP", help="The folder of the deployment; see fedkeel deploy new.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")]


@app.command(
    epilog="Examples:  fedkeel deploy new hospitals --sites north,south,west  |  "
    "fedkeel deploy new trial my.yaml --set algorithm=scaffold rounds=20 --nodes 3"
)
def new(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The new folder.")],
    given: Given = None,
    overrides: Overrides = None,
    sites: Annotated[
        str | None, typer.Option(metavar="NAME,NAME...", help="The names of the sites, with commas between them.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="The number of sites, if they have no names. Default: 4.")] = None,
) -> None:
    """Write a deployment that you can edit: an experiment, a model, a reader of data and a Flower app."""
    with importing():
        from fedkeel.deploy import project

    file, settings = sorted_out(given, overrides)
    names = None if sites is None else [name.strip() for name in sites.split(",")]
    made = project.new(folder, file, settings, names, nodes)
    for name in made.files:
        typer.echo(folder / name)
    for module in made.modules:
        typer.echo(f"copy your {module.replace('.', '/')}.py into {folder}")
    command = shlex.join(["fedkeel", "deploy", "local", str(folder)])
    typer.echo(f"\nTry it on this machine:\n  {command}\nFor real machines, see {folder}/README.md.")


@app.command(
    epilog="Examples:  fedkeel deploy keys hospitals --host fl.example.org --host 10.0.0.7  |  "
    "fedkeel deploy keys hospitals --add north.pub --add south.pub"
)
def keys(
    folder: App,
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A DNS name or an address by which sites reach the server.")
    ] = None,
    add: Annotated[
        list[Path] | None, typer.Option(metavar="NAME.pub", help="The public key of a site, which sent it to you.")
    ] = None,
) -> None:
    """Make the server's certificates in APP/keys, if they are missing, and add public keys of sites."""
    with importing():
        from fedkeel.deploy.keys import Keys
        from fedkeel.deploy.settings import DeploySettings

    settings, found = DeploySettings.load(folder), Keys(folder / "keys")
    ca, server = found.ca.exists(), found.server.exists()
    found.make(host or [])
    if not ca:
        typer.echo(f"{found.ca}  send this file to every site, in a way that they trust")
    elif not server:
        typer.echo(f"{found.server}  is new; sites need nothing new, as they know {found.ca.name}")
    if not (server or host):
        typer.echo("the server's certificate is for this machine only; for other machines it needs a --host")
    for public in add or ():
        typer.echo(f"{found.add(public, settings.sites)} is added")
    enrolled = found.enrolled(settings.sites)
    missing = [name for name in settings.sites if name not in enrolled]
    rest = f"; missing: {', '.join(missing)}" if missing else ""
    typer.echo(f"{len(enrolled)} of {len(settings.sites)} sites have a key{rest}")


@app.command(
    epilog="Examples:  fedkeel deploy server hospitals --out runs/first --host 0.0.0.0  |  "
    "fedkeel deploy server trial --out runs/trial --port 9000 --insecure"
)
def server(
    folder: App,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder. A run that was begun there is resumed.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 means all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without encryption and keys. For trials on a trusted network only.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="All sites run with --fast, so the server may interrupt their jobs.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Start the server, wait for the sites, and run the experiment; ends when the run is complete.

    The programs of Flower are started, watched and started again. The same command given again resumes the run.
    """
    with importing():
        from fedkeel.deploy.server import Serving, serve

    begin = monotonic()
    wanted = Serving(folder.absolute(), out.absolute(), host, port, not insecure, fast)
    if _complete(folder, out, quiet):
        _result(out, quiet)
        return
    with _shown(folder, out, quiet, begin):
        serve(wanted, _teller(quiet))
    _result(out, quiet, begin)


@app.command(
    epilog="Examples:  fedkeel deploy local hospitals  |  fedkeel deploy local hospitals --data parts --out runs/try"
)
def local(
    folder: App,
    nodes: Annotated[int | None, typer.Option(help="The number of sites to start. Default: all.")] = None,
    tls: Annotated[bool, typer.Option("--tls/--insecure", help="With or without encryption and keys.")] = True,
    fast: Annotated[
        bool, typer.Option("--fast", help="With nodes of fedkeel instead of Flower's: for short jobs and interrupts.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run folder. Default: a new folder in APP/runs.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder with a file or folder for each site, of its name.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Try a deployment on this machine: a server and all sites, with certificates and keys made for it.

    All processes are stopped at the end, also after Ctrl-C.
    """
    with importing():
        from fedkeel.deploy.local import Local, free_folder, run_local

    begin = monotonic()
    where = out if out is not None else free_folder(folder)
    wanted = Local(folder.absolute(), where.absolute(), nodes, tls, fast, None if data is None else data.absolute())
    if _complete(folder, where, quiet):
        _result(where, quiet)
        return
    with _shown(folder, where, quiet, begin):
        run_local(wanted, _teller(quiet))
    _result(where, quiet, begin)


@app.command(epilog="Examples:  fedkeel deploy replay runs/first  |  fedkeel deploy replay runs/first --app hospitals")
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run with record_uploads: true.")],
    folder: Annotated[
        Path | None,
        typer.Option("--app", metavar="APP", help="The folder of the deployment, if the model or method is your own."),
    ] = None,
) -> None:
    """Feed what the sites sent in a run to a new server, and check that it gets the same weights, bit for bit.

    No site takes part. The exit code is 1 if the weights differ.
    """
    with importing():
        from fedkeel.deploy import replaying

    found = replaying.replay(run, folder)
    typer.echo(f"events      {found.events}\nrounds      {found.rounds}")
    typer.echo(f"weights     {'equal, bit for bit' if found.equal else 'not those of the run'}")
    if not found.equal:
        raise typer.Exit(1)


def _teller(quiet: bool) -> Callable[[str], None]:
    """Prints what the server tells; if it is to be quiet, only what is not as it should be."""
    from fedkeel.cli.display import tell
    from fedkeel.world.remote.lines import GOOD

    def warn(sentence: str) -> None:
        if not GOOD.match(sentence):
            tell(sentence)

    return warn if quiet else tell


def _complete(folder: Path, out: Path, quiet: bool) -> bool:
    """Whether there is nothing to do."""
    from fedkeel.cli.display import tell
    from fedkeel.deploy.prepared import Project
    from fedkeel.record.places import complete

    if complete(out):
        Project.load(folder).check_run(out)
        if not quiet:
            tell(f"the run in {out} is complete: nothing is left to do")
    return complete(out)


@contextmanager
def _shown(folder: Path, out: Path, quiet: bool, begin: float) -> Iterator[None]:
    """Print a line for each evaluation."""
    from fedkeel.cli.console import console
    from fedkeel.cli.deployed import line
    from fedkeel.deploy.following import following
    from fedkeel.deploy.prepared import Project

    console.quiet = quiet
    project = Project.load(folder)
    rounds, count = project.experiment.rounds, len(project.settings.sites)

    def show(row: Evaluation, trained: int) -> None:
        console.print(line(row, rounds, count, trained, monotonic() - begin), soft_wrap=True, markup=False)

    with following(out, show):
        yield


def _result(out: Path, quiet: bool, begin: float | None = None) -> None:
    """Draw the learning curve, as of a simulation, and print the last lines."""
    from fedkeel.cli.console import console
    from fedkeel.cli.deployed import result
    from fedkeel.record.runs import RunRecord
    from fedkeel.report.curves import learning_curves

    console.quiet = quiet
    seconds = None if begin is None else monotonic() - begin
    figures = [out / "learning_curve.png", out / "learning_curve.svg"]
    learning_curves([RunRecord.read(out)], figures)
    result(out, figures[0], seconds)
