"""The server's machine: Flower's SuperLink and SuperExec, the sites' keys, and the run, until it is complete."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedkeel.deploy import programs
from fedkeel.deploy.keys import Keys
from fedkeel.deploy.places import Beside, alone
from fedkeel.deploy.prepared import Project
from fedkeel.deploy.process import Command, Process, Restarts
from fedkeel.deploy.programs import SERVERAPP, Link
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.supervisor import POLL, EndedError, Supervisor
from fedkeel.deploy.verdict import Verdict, verdict
from fedkeel.errors import FedkeelError, InputError, counted
from fedkeel.record.places import begun, check_free, complete
from fedkeel.world.remote.lines import OURS

Tell = Callable[[str], None]
UP = 90.0
"""Seconds that the SuperLink has until it listens, and the server function until it runs."""
LINK = Restarts(first=0.5, longest=10.0, most=5, within=300.0)
AGAIN = Restarts(first=1.0, longest=30.0, most=3, within=900.0)
"""How often the server function is run again."""
ADVICE = "the same command resumes the run"
GRACE = 15.0
"""Seconds that the server function has to save its state when it is to stop."""
_LOOK = 1.0
"""Seconds between two looks at whether the server function still runs."""
_END = 10.0
"""Seconds that it has to end when the run is complete."""


@dataclass(frozen=True)
class Serving:
    """What the server needs to know."""

    app: Path
    out: Path
    host: str = "127.0.0.1"
    port: int = 8000
    secure: bool = True
    fast: bool = False
    """Whether all sites have nodes that take interrupts."""

    def checked(self) -> DeploySettings:
        """The deployment's settings; refuses what cannot work, before anything is started."""
        project = Project.load(self.app)
        project.check_run(self.out)
        if not begun(self.out):
            check_free(self.out)
        programs.program("flower-superlink")
        programs.check_free(self.host, self.port)
        return project.settings


def serve(wanted: Serving, tell: Tell) -> None:
    """Run the server until the run is complete; a run that was begun is resumed."""
    if complete(wanted.out):
        return
    settings = wanted.checked()
    keys = Keys(wanted.app / "keys") if wanted.secure else None
    link = Link(wanted.host, wanted.port, keys)
    publics: Mapping[str, Path] = {}
    if keys is not None:
        keys.check([programs.split(link.near)[0]])
        publics = keys.enrolled(settings.sites)
        if len(publics) < settings.needed:
            raise InputError(
                f"{keys.nodes} has {counted(len(publics), 'public key')}, and {settings.needed} sites are needed; add "
                f"keys with fedkeel deploy keys {shlex.quote(str(wanted.app))} --add NAME.pub"
            )
    beside = Beside(wanted.out)
    beside.make()
    with alone(beside.folder, str(wanted.out)), Supervisor(tell, ADVICE, GRACE) as supervisor:
        server = Server(supervisor, link, beside, wanted.app, wanted.fast, tell)
        server.start()
        server.admit(publics)
        tell(f"the server listens on {programs.joined(wanted.host, wanted.port)}")
        server.finish()


class Server:
    """The programs of the server's machine."""

    def __init__(
        self,
        supervisor: Supervisor,
        link: Link,
        beside: Beside,
        app: Path,
        interrupts: bool,
        tell: Tell,
        started: int = 0,
    ) -> None:
        """`started` is how many sites there are at all, or 0 if that is not known."""
        self._supervisor, self._link, self._beside, self._app, self._tell = supervisor, link, beside, app, tell
        self._interrupts, self._started = interrupts, started
        self._env = programs.environment(beside.home)
        self._runs = beside.database.exists()
        """Whether Flower may know of runs that have not ended."""
        self._superexec: Process | None = None
        self._looked = 0.0
        self._there = False

    def start(self) -> None:
        """Start the SuperLink and the SuperExec; returns when the SuperLink listens."""
        (self._beside.home / "config.toml").write_text(self._link.configuration(), encoding="utf-8")
        link = self._start("superlink", self._link.superlink(self._beside.database, self._beside.secret), wave=0)
        self._supervisor.until(
            lambda: programs.listens(self._link.near), UP, f"the SuperLink does not listen (see {link.command.log})"
        )
        if not self._runs:  # otherwise it would begin them again
            self._start_superexec()

    def _start_superexec(self) -> None:
        self._superexec = self._start("superexec", self._link.superexec(self._beside.secret), wave=1)

    def _start(self, name: str, words: tuple[str, ...], wave: int) -> Process:
        command = Command(f"Flower's {name}", words, self._beside.log(name), self._env, self._app)
        return self._supervisor.start(command, LINK, wave)

    def _end_earlier(self) -> None:
        """End the runs that Flower knows: two server functions at a time would spoil the run folder.

        Such a run may be that of an earlier server. Or it is one of ours, where Flower's answer was lost.
        """
        (found,) = self._call([programs.listed()])
        try:
            runs = json.loads(found[found.index("{") :])["runs"]
            open_ = [str(run["run-id"]) for run in runs if not run["status"].startswith("finished")]
        except (ValueError, LookupError, TypeError):
            raise FedkeelError(f"Flower does not tell its runs ({_plain(found)})") from None
        for called in self._supervisor.call([programs.ended(run) for run in open_], self._env, self._app):
            if called.code:
                raise FedkeelError(f"Flower does not end an earlier run ({_plain(called.output)})")
        if self._superexec is not None:
            log = self._beside.log("superexec")
            told = f"the server function of an earlier run has not ended (see {log})"
            self._supervisor.until(lambda: not self._serving(), UP, told)

    def admit(self, publics: Mapping[str, Path]) -> None:
        """Let the sites with these keys take part; each under its own name."""
        if not publics:
            return
        (found,) = self._call([programs.register(self._link, publics.values())])
        try:
            told = json.loads(found.splitlines()[-1])
            self._beside.add_nodes({name: int(told[str(path)]) for name, path in publics.items()})
        except (ValueError, LookupError, TypeError):
            raise FedkeelError(f"Flower does not take the keys of the sites ({_plain(found)})") from None

    def _call(self, commands: list[tuple[str, ...]]) -> list[str]:
        return [each.output for each in self._supervisor.call(commands, self._env, self._app)]

    def finish(self) -> None:
        """Run the server function until the run is complete; it is run again if it ends before."""
        failures: list[float] = []
        while True:
            told = self._run()
            if told is None:
                break
            now = time.monotonic()
            failures = [*(each for each in failures if now - each < AGAIN.within), now]
            if told.final or len(failures) > AGAIN.most:
                raise told.error
            pause = AGAIN.pause(len(failures))
            self._tell(f"{told.error}; it is run again in {pause:g} s")
            self._wait(pause)
        self._let_end()

    def _run(self) -> Verdict | None:
        """Run the server function once; None if the run is complete then."""
        try:
            run = self._begin()
            self._follow(run)
            if complete(self._beside.out):
                return None
            (said,) = self._call([programs.logged(run)])
        except EndedError:
            raise
        except FedkeelError as error:
            return Verdict(error, False)
        log = self._beside.log("serverapp")
        with log.open("a", encoding="utf-8") as file:
            file.write(said)
        return verdict(said, self._beside.out, log)

    def _begin(self) -> str:
        """Start a run of the Flower app, and wait until the server function is there; returns the run's number."""
        near = self._link.near
        self._supervisor.until(lambda: programs.listens(near), UP, "the SuperLink does not listen")
        if self._runs:
            self._end_earlier()
        self._runs = True
        if self._superexec is None:
            self._start_superexec()
        config = self._beside.home / "run.toml"
        config.write_text(
            programs.run_config(self._app, self._beside.out, self._interrupts, self._started), encoding="utf-8"
        )
        (called,) = self._supervisor.call([programs.begin(self._app, config)], self._env, self._app)
        found = re.search(r'"run-id":\s*"(\d+)"', called.output)
        if called.code or found is None:
            raise FedkeelError(f"Flower does not start the run ({_plain(called.output)})")
        self._supervisor.until(
            lambda: self._serving() or complete(self._beside.out),
            UP,
            f"Flower has not started the server function (see {self._beside.log('superexec')})",
        )
        return found[1]

    def _follow(self, run: str) -> None:
        """Wait until the run is complete or the server function has ended; pass on what it tells."""
        words, log = programs.streamed(run), self._beside.log("told")
        command = Command("the log of the server function", words, log, self._env, self._app)
        telling = self._supervisor.start(command, Restarts(needed=False))
        while not complete(self._beside.out) and self._serving():
            for line in telling.news():
                if line.startswith(OURS):
                    self._tell(line.removeprefix(OURS))
            self._supervisor.tend()
            time.sleep(POLL)

    def _serving(self) -> bool:
        """Whether the server function runs, as of a moment ago."""
        now = time.monotonic()
        if now - self._looked >= _LOOK or not self._there:
            assert self._superexec is not None
            self._looked, self._there = now, bool(self._superexec.children(SERVERAPP))
        return self._there

    def _let_end(self) -> None:
        end = time.monotonic() + _END
        while self._serving() and time.monotonic() < end:
            time.sleep(POLL)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._supervisor.tend()
            time.sleep(POLL)


def _plain(output: str) -> str:
    """What a command of Flower said, on one line and without its frame."""
    bare = re.sub(r"\x1b\[[0-9;]*m|[^\x20-\x7e\n]", "", output)
    return " ".join(bare.split())[-300:] or "it says nothing"
