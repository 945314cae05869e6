"""A site's machine: the silo process with the data, and the node that brings it messages."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy import identity, programs
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.places import alone, meeting_place, new_secret
from fedkeel.deploy.process import Command, Process, Restarts
from fedkeel.deploy.programs import Link
from fedkeel.deploy.reach import Reach
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.supervisor import POLL, EndedError, Supervisor
from fedkeel.deploy.verdict import last_words
from fedkeel.errors import FedkeelError, InputError, unknown
from fedkeel.world.remote.lines import COMPLETE, OURS, READY

Tell = Callable[[str], None]
LOADING = 3600.0
"""Seconds that a silo has to read its data."""
WRONG = 2
"""The exit code of a silo that was given something wrong."""
SILO = Restarts(first=1.0, longest=30.0, most=5, within=600.0, final=(WRONG,))
NODE = Restarts(first=1.0, longest=15.0, most=8, within=300.0, final=(WRONG,))
"""Where a killed node could say no goodbye, Flower refuses it for a minute; there are starts enough for that."""
_REFUSED = "Exit Code: 305"


@dataclass(frozen=True)
class NodeOptions:
    """What a node needs to know."""

    app: Path
    name: str
    superlink: str
    ca: Path | None = None
    """None: nothing is encrypted."""
    key: Path | None = None
    data: Path | None = None
    state: Path | None = None
    fast: bool = False

    @property
    def folder(self) -> Path:
        """Where the site keeps what it needs between two jobs, and its logs."""
        return self.state or self.app / "state" / self.name

    def check(self) -> None:
        """Refuse what cannot work, before anything is started."""
        sites = DeploySettings.load(self.app).sites
        if self.name not in sites:
            raise unknown("site", self.name, sites, what="site of deploy.yaml")
        programs.split(self.superlink)
        programs.program("flower-supernode")
        if self.ca is not None:
            identity.check_valid(self.ca)
            if self.key is None:
                raise InputError("--key is missing; give the private key of the site, see fedkeel node enroll")
            identity.check_private(self.key)
        if self.data is not None and not self.data.exists():
            raise InputError(f"--data: {self.data} does not exist; give the path of this site's data")


def enroll(site: str, folder: Path) -> tuple[Path, Path]:
    """Make the pair of keys of a site: (private, public)."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", site):
        raise InputError(f"site must be 1 to 63 letters, digits, '.', '_' or '-'; got {site!r}")
    identity.check_installed()
    identity.private_folder(folder)
    private, public = folder / site, folder / f"{site}.pub"
    if public.exists():
        raise InputError(f"{public} is there already and is not overwritten; move it away first")
    identity.make_node(private, public)
    return private, public


def run_node(site: NodeOptions, tell: Tell) -> None:
    """Take part until somebody stops this process."""
    site.check()
    identity.private_folder(site.folder)
    with (
        alone(site.folder, f"the state of {site.name} in {site.folder}"),
        meeting_place() as sockets,
        Supervisor(lambda sentence: tell(node.explained(sentence)), "the same command takes part again") as supervisor,
    ):
        node = Node(supervisor, site, sockets / site.name)
        try:
            node.start_silo()
            supervisor.until(node.ready, LOADING, f"the silo is not ready (see {node.silo.command.log})")
            node.start()
            tell(f"the silo of {site.name} is ready; its node connects with {site.superlink}")
            while True:
                for sentence in node.news():
                    tell(sentence)
                supervisor.tend()
                time.sleep(POLL)
        except EndedError as error:
            raise explained(error) from None


class Node:
    """The programs of a site."""

    def __init__(self, supervisor: Supervisor, site: NodeOptions, socket: Path) -> None:
        """`socket` is where they meet, in a private folder; its path must be short."""
        self._supervisor, self._site, self._socket = supervisor, site, socket
        self._env = programs.environment(site.folder / "flower", tasks=0.1)  # each message is a task
        self._reach, self._starts = Reach(site.name, site.superlink), 0
        self.node: Process | None = None

    def start_silo(self) -> None:
        """Start the process that has the data."""
        site = self._site
        words = programs.silo(site.app, site.name, self._socket, site.folder, site.data)
        self.silo = self._start(f"the silo of {site.name}", "silo", words, SILO)

    def ready(self) -> bool:
        """Whether the silo takes messages."""
        return any(line.strip() == READY for line in self.silo.said().splitlines())

    def start(self) -> None:
        """Start the node; that of Flower is two programs, of which the second one starts a process for each message."""
        site, log = self._site, self._log("node")
        if site.fast:
            words = programs.fleetnode(site.superlink, site.ca, site.key, self._socket, log)
            self.node = self._start(f"the node of {site.name}", "node", words, NODE)
            return
        own = Path(tempfile.mkdtemp(prefix="node-", dir=self._socket.parent))
        keys, secret = Keys(own), new_secret(own / "superexec.secret")
        keys.make([])
        tasks = Link("127.0.0.1", programs.free_port(), keys)
        words = programs.supernode(site.superlink, site.ca, site.key, tasks, secret, self._socket, log)
        self.node = self._start(f"the node of {site.name}", "node", words, NODE)
        self._start(f"the superexec of {site.name}", "superexec", tasks.superexec(secret), NODE)

    def news(self) -> list[str]:
        """What both have written that a user should know: whether the server is reached, and whether it wants us."""
        told: list[str | None] = []
        if self.node is not None:
            if self.node.starts != self._starts:
                self._starts = self.node.starts
                self._reach.started()
            told = [*map(self._reach.heard, self.node.news()), self._reach.waited()]
        said = [line.removeprefix(OURS) for line in self.silo.news() if line.startswith(OURS)]
        if any(line.startswith(COMPLETE) for line in said):
            self._reach.completed()
        told += said
        return [each for each in told if each is not None]

    def explained(self, sentence: str) -> str:
        """What is told of a program that is started again; of a node that is refused, what to do."""
        if self.node is not None and sentence.startswith(self.node.name) and _REFUSED in self.node.said():
            return f"{refused(self.node)}; it tries again"
        return sentence

    def _log(self, short: str) -> Path:
        return self._site.folder / "logs" / f"{short}.log"

    def _start(self, name: str, short: str, words: tuple[str, ...], restarts: Restarts) -> Process:
        command = Command(name, words, self._log(short), self._env, self._site.app)
        return self._supervisor.start(command, restarts)


def explained(error: EndedError) -> FedkeelError:
    """Why a program of a site has ended, in words that say what to do."""
    said = error.process.said()
    if error.process.code == WRONG and last_words(said):
        return InputError(last_words(said))
    return FedkeelError(refused(error.process)) if _REFUSED in said else error


def refused(process: Process) -> str:
    """What is to be done for a node that the server does not take, or the other way round."""
    return (
        f"{process.name} is refused by the server, or does not trust it (see {process.command.log}); check that the "
        "server has the public key of the site, that --key is the private one, that --ca is the server's ca.crt, and "
        "that the clock here is right: Flower takes it if it is at most 5 s ahead of the server's or 305 s behind it"
    )
