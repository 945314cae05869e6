"""Starts programs, watches them, starts them again when they end, and leaves none behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from fedkeel.deploy import guard
from fedkeel.deploy.process import Command, Process, Restarts
from fedkeel.errors import FedkeelError, StoppedError

GRACE = 8.0
"""Seconds that programs have to end when they are asked to."""
POLL = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedError(FedkeelError):
    """A program ended that should not have, and is not started again."""

    process: Process


class _Asked(KeyboardInterrupt):
    """Somebody asked this process to end."""


@dataclass(frozen=True)
class Called:
    """What a program that ran to its end has left."""

    code: int
    output: str


class Supervisor(AbstractContextManager["Supervisor"]):
    """Inside of `with`, programs run; at its end they are stopped, whatever the reason.

    Ctrl-C, SIGTERM and a closed terminal end it in good order; a second signal hurries. If this process is killed, its
    guard ends the programs. Nothing here runs in the background: `tend` must be called again and again.
    """

    def __init__(self, tell: Callable[[str], None] | None = None, advice: str = "", grace: float = GRACE) -> None:
        """`tell` hears of programs that are started again; `advice` says how to go on after a stop."""
        self._tell, self._advice, self._grace = tell, advice, grace
        self._mark = uuid.uuid4().hex
        self._count = 0
        self._processes: list[Process] = []
        self._asked = 0
        self._hurry = False
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Supervisor:
        self._guard = self._watched()
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asked, self._asked = self._asked, self._asked or -1  # from now on, signals only hurry
            self.stop()
        finally:
            self._guard.communicate()
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if isinstance(error, _Asked):
            stopped = StoppedError("; ".join(filter(None, ["stopped", self._advice])))
            stopped.exit_code = 128 + asked
            raise stopped from None

    def _watched(self) -> subprocess.Popen[bytes]:
        """A guard, which ends the programs if this process ends before them."""
        command = [sys.executable, "-I", "-S", guard.__file__, self._mark]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            self._hurry = True
            return
        self._asked = number
        raise _Asked

    def start(self, command: Command, restarts: Restarts | None = None, wave: int = 1) -> Process:
        """Start a program. Those of wave 1 are stopped before those of wave 0."""
        process = Process(command, self._next_mark(wave), restarts or Restarts(), wave)
        self._processes.append(process)
        process.start()
        return process

    def _next_mark(self, wave: int) -> str:
        self._count += 1
        return f"{self._mark}.{wave}.{self._count}."

    def tend(self) -> None:
        """See to programs that have ended: start them again, or give up with an EndedError."""
        if self._guard.poll() is not None:
            self._guard.communicate()
            self._guard = self._watched()
        now = time.monotonic()
        for process in self._processes:
            if process.running or not process.restarts.needed:
                continue
            if process.due is None:
                self._bury(process, now)
            elif now >= process.due:
                process.start()

    def _bury(self, process: Process, now: float) -> None:
        ends, rules = process.count_end(), process.restarts
        if ends > rules.most or process.code in rules.final:
            times = f" after {ends} starts" if ends > 1 else ""
            error = EndedError(f"{process.name} has ended{times} ({process.ended()}); see {process.command.log}")
            error.process = process
            raise error
        pause = rules.pause(ends)
        process.due = now + pause
        if self._tell is not None:
            self._tell(f"{process.name} has ended ({process.ended()}); it is started again in {pause:g} s")

    def until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Tend the programs until something is so; raises FedkeelError if it is not after these seconds."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() >= end:
                raise FedkeelError(f"{what} after {seconds:g} s")
            self.tend()
            time.sleep(POLL)

    def call(
        self, commands: Sequence[Sequence[str]], env: dict[str, str], cwd: Path | None = None, seconds: float = 120.0
    ) -> list[Called]:
        """Run programs side by side to their end, for at most these seconds; what they wrote, and their codes."""
        mark = self._next_mark(guard.WAVES[0])
        with tempfile.TemporaryDirectory(prefix="fedkeel-") as folder:
            outputs = [Path(folder) / str(number) for number in range(len(commands))]
            own = env | {guard.MARK: mark}
            running = [_begun(words, output, own, cwd) for words, output in zip(commands, outputs, strict=True)]
            try:
                name = Path(commands[0][0]).name if commands else ""
                self.until(lambda: all(each.poll() is not None for each in running), seconds, f"{name} has not ended")
            finally:
                guard.sweep(mark)
                for each in running:
                    each.wait()
            texts = [output.read_text(encoding="utf-8", errors="replace") for output in outputs]
        return [Called(each.returncode, text) for each, text in zip(running, texts, strict=True)]

    def stop(self) -> None:
        """End all programs, wave by wave; returns when none is left."""
        for wave in guard.WAVES:
            those = [process for process in self._processes if process.wave == wave]
            for process in those:
                process.terminate()
            end = time.monotonic() + self._grace
            for process in those:
                guard.gone(process.mark, max(0.0, end - time.monotonic()), lambda: self._hurry)
                with suppress(ChildProcessError):
                    process.kill()
        self._processes.clear()
        guard.sweep(self._mark)


def _begun(words: Sequence[str], output: Path, env: Mapping[str, str], cwd: Path | None) -> subprocess.Popen[bytes]:
    """A program whose output goes to a new file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
