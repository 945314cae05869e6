"""`fedkeel watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.collector import importing

app = typer.Typer()


@app.command(epilog="Examples:  fedkeel watch runs/first  |  fedkeel watch comparisons/speeds --port 9000 --open")
def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN-OR-COMPARISON...", help="Folders of runs and comparisons. A run may start there later."
        ),
    ],
    port: Annotated[
        int, typer.Option(help="The port of the page. If it is taken, the next free one is used; 0 means any.")
    ] = 8765,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser while they are running: the report page, updated as results arrive.

    The page is served on this machine only. Ctrl-C stops the page; the runs continue.
    """
    with importing():
        from fedkeel.report.live.server import serve

    with serve(paths, port) as server:
        if port not in (0, server.server_port):
            typer.echo(f"port {port} is taken; the page is on port {server.server_port}")
        for path in server.watch.waiting:
            typer.echo(f"no run has started in {path} yet; the page waits for it")
        typer.echo(f"{server.url}  (Ctrl-C stops the page; the runs continue)")
        if open_:
            typer.launch(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # the way to end it, so no failure
            typer.echo()
