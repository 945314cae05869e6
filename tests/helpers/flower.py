"""Flower's processes on this machine, and silos that answer as a test says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedkeel.world.remote import envelope
from tests.helpers.loopback import closed_port
from tests.helpers.repository import ROOT

BIN = Path(sys.executable).parent
PROJECT = """
[project]
name = "tinyapp"
version = "1.0.0"
description = "of a test"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]
[tool.flwr.app]
publisher = "test"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "tinyapp.server:app"
clientapp = "tinyapp.client:app"
[tool.flwr.app.config]
app = ""
out = ""
"""
Answer = Callable[[bytes], bytes]


@dataclass
class Silo:
    """A silo in a thread, which answers each message by a function."""

    path: str
    answer: Answer
    got: list[bytes] = field(default_factory=list)
    _server: socket.socket | None = None

    def start(self) -> Silo:
        """Also again, after `stop`."""
        Path(self.path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(8)
        threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Nobody can connect any more."""
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(line,), daemon=True).start()

    def _take(self, line: socket.socket) -> None:
        with line, suppress(ConnectionError):
            self.got.append(envelope.receive(line, 1 << 30))
            envelope.send(line, self.answer(self.got[-1]))


@contextmanager
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="fk") as folder:
        yield Path(folder)


@dataclass
class Flower:
    """A SuperLink without TLS, and what is connected with it."""

    folder: Path
    address: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Nothing leaves this machine."""
        return os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process with its children in a group of their own; what it says is in a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment(), cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        return self.processes[name]

    def superlink(self) -> None:
        """With a database, so that it can be started again."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        )
        host, port = self.address.split(":")
        self.start(
            "superlink", "flower-superlink", "--insecure", "--isolation", "process", "--host", host, "--port", port,
            "--disable-runtime-dependency-installation", "--database", str(self.folder / "link.db"),
        )  # fmt: skip

    def superexec(self) -> None:
        """Runs the ServerApp."""
        self.start("superexec", "flower-superexec", "--insecure", "--runtime-api-address", self.address)

    def stock_node(self, name: str, silo: str) -> None:
        """Flower's own."""
        self.start(
            name, "flower-supernode", "--insecure", "--superlink", self.address, "--port", str(closed_port()),
            "--node-config", f'silo="{silo}"',
        )  # fmt: skip

    def own_node(self, name: str, silo: str) -> None:
        """Ours."""
        self.start(
            name, sys.executable, "-m", "fedkeel.world.flower.fleetnode", "--insecure", "--superlink", self.address,
            "--silo", silo, "--poll", "0.05",
        )  # fmt: skip

    def run(self, server: str, out: Path) -> None:
        """Begin a run whose ServerApp is this program."""
        app = self.folder / "app"
        (app / "tinyapp").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "LICENSE").write_text("none")
        (app / "tinyapp" / "__init__.py").write_text("")
        (app / "tinyapp" / "client.py").write_text("from fedkeel.world.flower import relay\n\napp = relay.app\n")
        (app / "tinyapp" / "server.py").write_text(server)
        command = ["flwr", "run", str(app), "here", "--run-config", f'app="{app}" out="{out}"']
        done = subprocess.run(
            command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def reachable(self) -> bool:
        """Whether the SuperLink takes connections."""
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def kill(self, name: str) -> None:
        """At once, with its children."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def logs(self) -> str:
        """For the message of a test that fails."""
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log")
        )


@contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    """All processes end with the block."""
    here = Flower(folder, f"127.0.0.1:{closed_port()}")
    try:
        yield here
    finally:
        for name in [*here.processes]:
            here.kill(name)


def until(condition: Callable[[], bool], seconds: float, why: Callable[[], str] = str) -> None:
    """Wait for something, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.05)
