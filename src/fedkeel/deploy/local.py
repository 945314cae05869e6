"""A whole deployment on this machine: a server and all sites, with certificates and keys made for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy import identity, programs
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.node import LOADING, Node, NodeOptions, enroll, explained
from fedkeel.deploy.places import Beside, alone, meeting_place
from fedkeel.deploy.programs import Link
from fedkeel.deploy.server import GRACE, Server, Serving
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.supervisor import EndedError, Supervisor
from fedkeel.deploy.verdict import trouble
from fedkeel.errors import FedkeelError, InputError, counted
from fedkeel.record.places import complete

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Local:
    """What is to be started."""

    app: Path
    out: Path
    nodes: int | None = None
    """How many of the sites; None: all."""
    secure: bool = True
    fast: bool = False
    data: Path | None = None
    """A folder with one file or folder per site."""

    @property
    def command(self) -> str:
        """What goes on with it."""
        words = ["fedkeel", "deploy", "local", str(self.app), "--out", str(self.out)]
        words += [] if self.nodes is None else ["--nodes", str(self.nodes)]
        words += [] if self.data is None else ["--data", str(self.data)]
        words += [] if self.secure else ["--insecure"]
        return shlex.join([*words, *(["--fast"] if self.fast else [])])

    def sites(self, settings: DeploySettings) -> tuple[str, ...]:
        """The sites to start."""
        count = len(settings.sites) if self.nodes is None else self.nodes
        if not settings.needed <= count <= len(settings.sites):
            raise InputError(
                f"nodes must be from {settings.needed} to {len(settings.sites)}, by wait_for and sites of deploy.yaml; "
                f"got {count}"
            )
        return settings.sites[:count]

    def data_of(self, site: str) -> Path | None:
        """A site's file or folder, whose name is the site's, with any ending."""
        if self.data is None:
            return None
        if not self.data.is_dir():
            raise InputError(f"--data: {self.data} is no folder; give a folder with a file or folder for each site")
        found = [path for path in self.data.iterdir() if site in (path.name, path.stem)]
        if len(found) != 1:
            told = "nothing" if not found else counted(len(found), "path")
            raise InputError(f"--data: {self.data} has {told} for {site}; name one file or folder {site} or {site}.*")
        return found[0]


def free_folder(app: Path) -> Path:
    """A new run folder in the project."""
    number = 1
    while True:
        path = app / "runs" / f"local-{number}"
        if not path.exists() and not Beside(path).folder.exists():
            return path
        number += 1


def run_local(wanted: Local, tell: Tell) -> None:
    """Run the deployment on this machine until the run is complete."""
    if complete(wanted.out):
        return
    link = Link("127.0.0.1", programs.free_port(), None)
    settings = Serving(wanted.app, wanted.out, link.host, link.port, wanted.secure).checked()
    names = wanted.sites(settings)
    data = {name: wanted.data_of(name) for name in names}
    beside = Beside(wanted.out)
    beside.make()
    keys = _keys(beside, names) if wanted.secure else None
    link = Link(link.host, link.port, keys)
    sites = [
        NodeOptions(
            wanted.app, name, link.near, keys.ca if keys else None, _private(beside, name) if keys else None,
            data[name], beside.folder / "nodes" / name, wanted.fast,
        )
        for name in names
    ]  # fmt: skip
    for site in sites:
        site.check()
        identity.private_folder(site.folder)
    with (
        alone(beside.folder, str(wanted.out)),
        meeting_place() as sockets,
        Supervisor(tell, f"go on with {wanted.command}", GRACE) as supervisor,
    ):
        server = Server(supervisor, link, beside, wanted.app, wanted.fast, tell, len(sites))
        nodes = [Node(supervisor, site, sockets / site.name) for site in sites]
        try:
            _start(supervisor, server, nodes, keys, tell)
            server.finish()
        except EndedError as error:
            raise explained(error) from None
        except FedkeelError:  # the server knows which sites fail, but not why
            for sentence in filter(None, (trouble(node.silo.said()) for node in nodes)):
                tell(sentence)
            raise


def _start(supervisor: Supervisor, server: Server, nodes: list[Node], keys: Keys | None, tell: Tell) -> None:
    """Start everything, side by side where that is possible."""
    for node in nodes:
        node.start_silo()
    server.start()
    if keys is not None:
        server.admit(keys.enrolled([path.stem for path in keys.nodes.glob("*.pub")]))
    tell("the server is up")
    waiting = list(nodes)

    def joined() -> bool:
        for node in [each for each in waiting if each.ready()]:
            node.start()
            waiting.remove(node)
        return not waiting

    supervisor.until(joined, LOADING, "the silos are not ready")


def _keys(beside: Beside, names: tuple[str, ...]) -> Keys:
    """The certificates, and a pair of keys for each site, made if they are missing."""
    keys = Keys(beside.folder / "keys")
    keys.make([])
    for name in names:
        private = _private(beside, name)
        if not private.exists():
            enroll(name, private.parent)
        keys.add(private.with_name(f"{name}.pub"), names)
    return keys


def _private(beside: Beside, name: str) -> Path:
    return beside.folder / "sites" / name
