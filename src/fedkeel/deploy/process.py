"""A program that a supervisor has started, with its log."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedkeel.deploy import guard
from fedkeel.deploy.verdict import last_words

_TAIL = 65_536
"""Bytes of a log that are looked at for what was said last."""


@dataclass(frozen=True)
class Command:
    """What to start."""

    name: str
    """How messages call it."""
    words: tuple[str, ...]
    log: Path
    """Where its output goes, behind what is there."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class Restarts:
    """How a process that ended is started again: after a pause that doubles, and not too often."""

    first: float = 0.5
    """Seconds before the first new start."""
    longest: float = 20.0
    most: int = 5
    """With more ends than that `within` these seconds, the supervisor gives up."""
    within: float = 300.0
    needed: bool = True
    """Whether it is started again at all; if not, its end is of no interest."""
    final: tuple[int, ...] = ()
    """Exit codes that say that another start is of no use."""

    def pause(self, ends: int) -> float:
        """Seconds to wait after so many ends."""
        return float(min(self.longest, self.first * 2 ** min(ends - 1, 30)))


class Process:
    """One program; it can be started again when it has ended."""

    def __init__(self, command: Command, mark: str, restarts: Restarts, wave: int) -> None:
        self.command, self.mark, self.restarts, self.wave = command, mark, restarts, wave
        self.ends: list[float] = []
        """When it ended, as far as that still counts."""
        self.due: float | None = None
        """When it is to be started again."""
        self.starts = 0
        self._open: subprocess.Popen[bytes] | None = None
        self._since = self._read = 0

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.command.name

    @property
    def pid(self) -> int:
        """Of the last start."""
        assert self._open is not None
        return self._open.pid

    def start(self) -> None:
        """Start it in a session of its own; what is left of an earlier start is ended first."""
        if self.starts:
            guard.sweep(self.mark)
        self.command.log.parent.mkdir(parents=True, exist_ok=True)
        with self.command.log.open("ab") as log:
            self._since = self._read = log.tell()
            self._open = subprocess.Popen(
                self.command.words,
                cwd=self.command.cwd,
                env={**self.command.env, guard.MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1
        self.due = None

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs; a signal is a negative number."""
        return None if self._open is None else self._open.poll()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._open is not None and self._open.poll() is None

    def terminate(self) -> None:
        """Ask it and its children to end."""
        guard.tell(self.mark, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its children at once."""
        guard.sweep(self.mark)
        if self._open is not None:
            if self._open.poll() is None:  # it has overwritten its environment
                os.killpg(self._open.pid, signal.SIGKILL)
            self._open.wait()

    def children(self, naming: str) -> list[int]:
        """Its living descendants with a word in their command line."""
        return [each for each in guard.marked(self.mark, naming) if each != self.pid]

    def said(self) -> str:
        """The end of what it has written since its last start."""
        try:
            with self.command.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._since, size - _TAIL))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def news(self) -> list[str]:
        """The complete lines that it has written since the last call; a progress bar ends its lines with `\\r`.

        Of a line that is longer than any that is looked for, only the end is seen.
        """
        try:
            with self.command.log.open("rb") as log:
                log.seek(self._read)
                text = log.read(_TAIL)
        except OSError:
            return []
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._read += end or (len(text) if len(text) == _TAIL else 0)
        return text[:end].decode("utf-8", "replace").splitlines()

    def ended(self) -> str:
        """How it ended, and what it said last."""
        code, last = self.code or 0, last_words(self.said())
        if code < 0:  # what it said last is not why
            return f"it was ended by {signal.Signals(-code).name}"
        return f"its exit code was {code}: {last}" if last else f"its exit code was {code}"

    def count_end(self) -> int:
        """Note that it ended; returns how often it did lately."""
        now = time.monotonic()
        self.ends = [*(end for end in self.ends if now - end < self.restarts.within), now]
        return len(self.ends)
