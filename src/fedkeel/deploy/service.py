"""The process of a silo: listens on a Unix socket and answers each message (`python -m fedkeel.deploy.service`)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedkeel.errors import FedkeelError
from fedkeel.world.remote import envelope
from fedkeel.world.remote.lines import OURS, READY

MOST = 1 << 36
"""Bytes of a message that is read; the socket is this machine's own."""
LONGEST = 100
"""Letters of a socket's path: systems allow little more."""


def listen(path: Path, answer: Callable[[bytes], bytes], ready: Callable[[], None]) -> None:
    """Answer messages until the process ends, each in a thread of its own; only this user can connect."""
    if len(str(path)) > LONGEST:
        raise FedkeelError(f"the path of the socket must have at most {LONGEST} letters; got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        before = os.umask(0o177)
        try:
            server.bind(str(path))
        finally:
            os.umask(before)
        server.listen(64)
        ready()
        while True:
            came, _ = server.accept()
            threading.Thread(target=_serve, args=(came, answer), daemon=True).start()


def _serve(came: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with came, suppress(OSError):  # who asked may be gone
        try:
            body = envelope.receive(came, MOST)
        except envelope.EnvelopeError as error:
            envelope.send(came, envelope.plain(envelope.FAILED, why=str(error)))
            return
        envelope.send(came, answer(body))


def tell(sentence: str) -> None:
    """Tell the site's people something, on a line of its own: a progress bar of the user's may not have ended its."""
    print(f"\n{OURS}{sentence}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m fedkeel.deploy.service", description=__doc__)
    for name, about in (
        ("--app", "the project's folder"),
        ("--site", "the name of the site"),
        ("--socket", "the path of the Unix socket"),
        ("--state", "where the site keeps its state"),
    ):
        parser.add_argument(name, required=True, help=about)
    parser.add_argument("--data", help="the file or folder of the site's rows")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # state on the disk is always whole
    from fedkeel.deploy.prepared import Project
    from fedkeel.deploy.silo import Silo
    from fedkeel.deploy.site import Site
    from fedkeel.runner.threads import threads

    try:
        project = Project.load(Path(asked.app))
        site = Site.of(project, asked.site, Path(asked.data).resolve() if asked.data else None)
        silo = Silo(project, site, Path(asked.state).resolve(), tell)
        with threads(project.experiment.threads):
            listen(Path(asked.socket), silo.answer, lambda: print(READY, flush=True))
    except FedkeelError as error:
        print(f"{OURS}{error}", file=sys.stderr, flush=True)
        sys.exit(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main()
