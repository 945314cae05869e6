"""Flower's programs and ours as command lines, and the environment that they run in."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy.keys import Keys
from fedkeel.errors import InputError, label

SERVERAPP = "flwr-serverapp"
"""The program in which Flower runs the server function."""
CONNECTION = "deployment"
"""The name of the connection to the SuperLink in Flower's configuration."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses that mean every one of this machine, and where it reaches itself then."""


def program(name: str) -> str:
    """The path of one of Flower's programs: beside Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise InputError("fedkeel deploy needs Flower; run pip install 'fedkeel[flower]'")
    return found


def environment(home: Path, tasks: float = 1.0) -> dict[str, str]:
    """For all programs of a deployment: Flower's files in a folder of their own, nothing reported to anybody.

    A SuperExec looks for tasks every `tasks` seconds.
    """
    own = dict(os.environ)
    folders = own.get("PYTHONPATH", "").split(os.pathsep)
    local = [each for each in own.get("NO_PROXY", own.get("no_proxy", "")).split(",") if each]
    beyond = ",".join([*local, "localhost", "127.0.0.1", "::1"])
    return own | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(tasks),
        "NO_PROXY": beyond,
        "no_proxy": beyond,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in folders if each),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True)
class Link:
    """The SuperLink, or the part of a node that gives out tasks: where it is, and by which keys it is known.

    Without keys nothing is encrypted.
    """

    host: str
    port: int
    keys: Keys | None

    @property
    def near(self) -> str:
        """Its address, for this machine itself."""
        return joined(_ANY.get(self.host, self.host), self.port)

    @property
    def trust(self) -> list[str]:
        """How programs know it."""
        return ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys.ca)]

    @property
    def proof(self) -> list[str]:
        """How it shows programs who it is."""
        if self.keys is None:
            return []
        own = ["--ssl-certfile", str(self.keys.server), "--ssl-keyfile", str(self.keys.server_key)]
        return [*own, "--ssl-ca-certfile", str(self.keys.ca)]

    def superlink(self, database: Path, secret: Path) -> tuple[str, ...]:
        """The SuperLink itself. With its database, a run outlives it."""
        safety = ["--insecure"] if self.keys is None else [*self.proof, "--enable-supernode-auth"]
        return (
            *(program("flower-superlink"), "--isolation", "process", "--host", self.host, "--port", str(self.port)),
            *(*safety, "--disable-runtime-dependency-installation", "--database", str(database)),
            *("--superexec-auth-secret-file", str(secret)),
        )

    def superexec(self, secret: Path) -> tuple[str, ...]:
        """What starts functions of an app; nobody else can read their tokens."""
        return (
            *(sys.executable, "-m", "fedkeel.world.flower.superexec", program("flower-superexec"), *self.trust),
            *("--runtime-api-address", self.near, "--superexec-auth-secret-file", str(secret)),
        )

    def configuration(self) -> str:
        """Flower's configuration file, for commands to this SuperLink."""
        known = "insecure = true" if self.keys is None else f"root-certificates = {_toml(self.keys.ca)}"
        return f"[superlink]\n[superlink.{CONNECTION}]\naddress = {json.dumps(self.near)}\n{known}\n"


def register(link: Link, publics: Iterable[Path]) -> tuple[str, ...]:
    """Let the sites with these keys take part."""
    own = (sys.executable, "-m", "fedkeel.world.flower.registration", "--superlink", link.near)
    return (*own, *link.trust, *map(str, publics))


def begin(app: Path, config: Path) -> tuple[str, ...]:
    """Start the run, with a file of its settings."""
    return (program("flwr"), "run", str(app), CONNECTION, "--run-config", str(config), "--format", "json")


def run_config(app: Path, out: Path, interrupts: bool, started: int = 0) -> str:
    """The settings of a run: the two folders of the server function, whether all nodes take interrupts, and how many
    sites there are at all, or 0 if that is not known."""
    told = f"interrupts = {str(interrupts).lower()}\nstarted = {started}\n"
    return f"app = {_toml(app)}\nout = {_toml(out)}\n{told}"


def _toml(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False).replace("\x7f", "\\u007f")


def listed() -> tuple[str, ...]:
    """Ask for all runs."""
    return (program("flwr"), "list", CONNECTION, "--format", "json")


def ended(run: str) -> tuple[str, ...]:
    """End a run."""
    return (program("flwr"), "stop", run, CONNECTION)


def logged(run: str) -> tuple[str, ...]:
    """Ask for what the server function has written in a run."""
    return (program("flwr"), "log", run, CONNECTION, "--show")


def streamed(run: str) -> tuple[str, ...]:
    """Write what the server function writes, until it ends."""
    return (program("flwr"), "log", run, CONNECTION, "--stream")


def supernode(
    superlink: str, ca: Path | None, key: Path | None, tasks: Link, secret: Path, silo: Path, log: Path
) -> tuple[str, ...]:
    """Flower's node. At `tasks`, it gives out tasks to the SuperExec, which knows the secret."""
    again: tuple[str, ...] = ()
    if key is not None:
        again = (sys.executable, "-m", "fedkeel.world.flower.again", "--superlink", superlink)
        again = (*again, *_known(ca, key, "--key"), "--log", str(log), "--")
    return (
        *again,
        *(program("flower-supernode"), "--superlink", superlink, *_known(ca, key, "--auth-supernode-private-key")),
        *("--isolation", "process", "--port", str(tasks.port), *tasks.proof),
        *("--superexec-auth-secret-file", str(secret), "--node-config", f"silo={json.dumps(str(silo))}"),
    )


def fleetnode(superlink: str, ca: Path | None, key: Path | None, silo: Path, log: Path) -> tuple[str, ...]:
    """Our own node, for short jobs and interrupts."""
    return (
        *(sys.executable, "-m", "fedkeel.world.flower.fleetnode", "--superlink", superlink),
        *(*_known(ca, key, "--key"), "--silo", str(silo), "--log", str(log)),
    )


def silo(app: Path, site: str, socket_: Path, state: Path, data: Path | None) -> tuple[str, ...]:
    """The process that has a site's data and trains."""
    given = () if data is None else ("--data", str(data))
    return (
        *(sys.executable, "-m", "fedkeel.deploy.service", "--app", str(app), "--site", site),
        *("--socket", str(socket_), "--state", str(state), *given),
    )


def _known(ca: Path | None, key: Path | None, option: str) -> list[str]:
    trust = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    return [*trust, *([] if key is None else [option, str(key)])]


def joined(host: str, port: int) -> str:
    """`host:port`; an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host and port of an address that a user gave."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host.strip("[]") or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"superlink must be HOST:PORT, such as fl.example.org:8000; got {label(address)}")
    return host.strip("[]"), int(port)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens to now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Refuse a port or an address that cannot be listened to."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        told = error.strerror or str(error)
        raise InputError(f"port {port} of {label(host)} cannot be used ({told}); give another --port") from None


def listens(address: str) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection(split(address), timeout=1.0):
            return True
    except OSError:
        return False
