"""`fedkeel node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.collector import importing
from fedkeel.errors import InputError

app = typer.Typer(help="Take part in a deployment, at a site.", no_args_is_help=True)
NodeOptions = Annotated[str, typer.Option(metavar="NAME", help="The name of this site in deploy.yaml.")]


@app.command(epilog="Example:  fedkeel node enroll --site north --out keys")
def enroll(
    site: NodeOptions,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the keys go.")] = Path("keys"),
) -> None:
    """Make the pair of keys of this site. The private key stays here; the public one goes to the server."""
    with importing():
        from fedkeel.deploy.node import enroll as make

    private, public = make(site, out)
    typer.echo(f"{private}  the private key: keep it here, and let nobody else read it")
    typer.echo(f"{public}  the public key: send it to the administrator of the server, who runs")
    typer.echo(f"\n  fedkeel deploy keys APP --add {public.name}\n\nIts content is:\n{public.read_text().strip()}")


@app.command(
    epilog="Example:  fedkeel node run hospitals --site north --superlink fl.example.org:8000 --ca ca.crt "
    "--key keys/north --data patients.csv"
)
def run(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of the deployment, as the server has it.")],
    site: NodeOptions,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")],
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key of this site.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The data of this site, which data.py reads.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What the site keeps between two jobs, and logs. Default: APP/state/NAME."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="With a node of fedkeel instead of Flower's: for short jobs and interrupts.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without encryption and keys. For trials on a trusted network only.")
    ] = False,
) -> None:
    """Take part in a deployment with the data of this site, until Ctrl-C.

    The data stay on this machine. The two processes of the site are watched and started again when they end.
    """
    with importing():
        from fedkeel.cli.display import tell
        from fedkeel.deploy import node

    if insecure and (ca is not None or key is not None):
        raise InputError("--insecure cannot be combined with --ca and --key; remove one or the other")
    if not insecure and ca is None:
        raise InputError("--ca is missing; give the server's ca.crt, or --insecure for a trial without encryption")
    ca, key, data, state = (None if path is None else path.absolute() for path in (ca, key, data, state))
    node.run_node(node.NodeOptions(folder.absolute(), site, superlink, ca, key, data, state, fast), tell)
