"""Deployments with real processes of Flower on this machine, with TLS and keys: projects, sites, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedkeel.deploy import project
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.node import enroll
from fedkeel.deploy.programs import free_port
from tests.helpers.repository import ROOT

TINY = (
    "dataset.train_limit=300", "dataset.test_limit=100", "partition=dirichlet", "model=mlp-400", "rounds=3",
    "local.epochs=2", "local.batch_size=16", "threads=1",
)  # fmt: skip
LONGEST = 400.0
"""Seconds of a deployment on a busy machine."""
TAG = "FEDKEEL_TEST"
"""A variable by which all processes of a test are known."""


def new_app(app: Path, sites: int, settings: Sequence[str], deploy: Mapping[str, Any] | None = None) -> None:
    """A project as `fedkeel deploy new` makes it, with other settings."""
    project.new(app, None, settings, nodes=sites)
    path = app / "deploy.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **(deploy or {})}))


@dataclass
class Commands:
    """Commands in the background, with what they say in files; all that they started is known by a variable."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: str, hook: str = "", **more: str) -> subprocess.Popen[bytes]:
        """A command of fedkeel; `hook` changes one of its programs (`tests/helpers/hooked`), `more` are variables."""
        if hook:
            folders = (ROOT / "tests" / "helpers" / "hooked", ROOT / "src", ROOT)
            more |= {"FEDKEEL_TEST_HOOK": hook, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        return self.program(name, sys.executable, "-m", "fedkeel", *words, **more)

    def program(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        """Any other one."""
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), TAG: str(self.folder), **more}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=env, start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def said(self, name: str) -> str:
        """All of it so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, so: Callable[[], object], seconds: float) -> None:
        """Wait for something."""
        end = time.monotonic() + seconds
        while not so():
            assert time.monotonic() < end, {name: self.said(name)[-2000:] for name in self.running}
            time.sleep(0.05)

    def stop(self, name: str) -> int:
        """In good order; its exit code."""
        process = self.running[name]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def left(self, *words: str) -> list[int]:
        """The processes that still run, with all of these words in their command lines and environments."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes()
                told = environment + (path / "cmdline").read_bytes()
            except OSError:
                continue
            mine = f"{TAG}={self.folder}".encode() in environment.split(b"\0")
            if mine and all(word.encode() in told for word in words):
                found.append(int(path.name))
        return found

    def line(self, process: int) -> str:
        """The command line of a process."""
        try:
            return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""


@dataclass
class Federation:
    """A server and sites by their own commands, with TLS and keys."""

    those: Commands
    app: Path
    out: Path
    port: int
    keys: Keys
    private: dict[str, Path]

    def server(self, *options: str) -> subprocess.Popen[bytes]:
        """Start it."""
        words = ["deploy", "server", str(self.app), "--out", str(self.out), "--port", str(self.port), *options]
        return self.those.start("server", *words)

    def state(self, site: str) -> Path:
        """Where a site keeps its state."""
        return self.those.folder / "state" / site

    def node(
        self, site: str, *options: str, address: str = "", key: Path | None = None, **how: str
    ) -> subprocess.Popen[bytes]:
        """Start a site, with its own key or another one."""
        words = ["--site", site, "--superlink", address or f"127.0.0.1:{self.port}", "--state", str(self.state(site))]
        words += ["--ca", str(self.keys.ca), "--key", str(key or self.private[site])]
        return self.those.start(site, "node", "run", str(self.app), *words, *options, **how)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Of a table of the run folder, as far as it is written."""
        path = self.out / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def until_round(self, number: int) -> None:
        """Wait until so many rounds are recorded."""
        self.those.until(lambda: len(self.rows("rounds")) >= number, LONGEST)


def federation(those: Commands, app: Path, sites: Sequence[str]) -> Federation:
    """The project's sites with a pair of keys each."""
    keys, private = Keys(app / "keys"), {}
    keys.make([])
    for site in sites:
        private[site], public = enroll(site, those.folder / "mine")
        keys.add(public, sites)
    return Federation(those, app, those.folder / "run", free_port(), keys, private)


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """Whatever happens, nothing runs after the block; at its good end, nothing may."""
    those = Commands(folder)
    try:
        yield those
        for name in those.running:
            those.stop(name)
        those.until(lambda: not those.left(), 20)
    finally:
        for process in those.left():
            os.kill(process, signal.SIGKILL)
        for each in those.running.values():
            each.wait()
