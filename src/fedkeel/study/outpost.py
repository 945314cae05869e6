"""An actor of Ray that has one run at a time made, in a process of its own on the actor's machine.

The run's process is like that of a study on one machine: it knows nothing of Ray, hears when it is to stop, and ends
when the actor ends.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from uuid import uuid4

from fedkeel.local.cluster.alike import Facts, facts
from fedkeel.local.cluster.connection import package
from fedkeel.local.machine import OURS
from fedkeel.runner.stopping import Stop
from fedkeel.study import mirror
from fedkeel.study.crew import Crew
from fedkeel.study.mirror import Changes, Source
from fedkeel.study.tasks import Moved, Reply, RunTask, Task

SYNC_SECONDS = 2.0
"""Between two copies of what a run has written."""


@dataclass(frozen=True)
class News:
    """What has come since the last news."""

    replies: tuple[Reply, ...]
    changes: Changes
    """In the folder of the run: at least what the replies tell of."""
    over: bool
    """Whether that was all."""


class Outpost:
    """Whoever made it calls `begin`, and then `listen` until everything is over; `stop` may come in between."""

    def __init__(self, environment: Mapping[str, str], folder: str, path: Sequence[str]) -> None:
        """The caller's variables, working folder and import path: the user's code and data are found by them."""
        vars(sys.modules["__main__"]).pop("__file__", None)  # each run's process would run Ray's own script again
        os.environ.update({**environment, OURS: "1"})
        with suppress(OSError):  # who needs what is there is told that it is missing
            os.chdir(folder)
        sys.path += [each for each in path if each not in sys.path]
        self._ray = package()
        self._home = Path(tempfile.gettempdir()) / f"fedkeel-runs-{uuid4().hex}"
        self._crew = Crew(1, self._home)
        self._stop = Stop()
        self._inbox = SimpleQueue[Reply | Exception | None]()
        self._source: Source | None = None
        self._next = 0.0

    def where(self) -> tuple[str, Facts]:
        """(The machine that this is on, what must be the same everywhere)."""
        return str(self._ray.util.get_node_ip_address()), facts()

    def begin(self, packed: bytes, files: Changes) -> None:
        """Do a task; `files` are those of a run that was begun before."""
        task: Task = pickle.loads(packed)
        self._stop, self._inbox, self._source, self._next = Stop(), SimpleQueue(), None, float("inf")
        self._home.mkdir(mode=0o700, exist_ok=True)  # not before: who removes it is the process of the runs
        tempfile.tempdir = str(self._home)  # folders of multiprocessing, which stay if this process is killed
        if isinstance(task, RunTask):
            task = replace(task, folder=self._home / task.name)
            mirror.apply(files, task.folder, self._ray.get)
            self._source = Source(task.folder, self._put)
            self._source.same()
        Thread(target=self._work, args=(task, self._stop, self._inbox), daemon=True).start()

    def _put(self, chunk: bytes) -> object:
        return self._ray.put(chunk)

    def _work(self, task: Task, stop: Stop, inbox: SimpleQueue[Reply | Exception | None]) -> None:
        try:
            for _, reply in self._crew.work([task], stop):
                inbox.put(reply)
        except Exception as error:
            inbox.put(error)
        inbox.put(None)

    def listen(self, seconds: float) -> News:
        """Wait so long, or until the task is over."""
        moved, last, over, end = None, None, False, monotonic() + seconds
        while not over and (left := end - monotonic()) > 0:
            with suppress(Empty):
                reply = self._inbox.get(timeout=left)
                if isinstance(reply, Exception):
                    raise reply
                over = reply is None
                if isinstance(reply, Moved):
                    moved = reply
                    self._next = min(self._next, monotonic() + SYNC_SECONDS)  # rows only grow from now on
                else:
                    last = reply or last
        return News(tuple(each for each in (moved, last) if each is not None), self._changes(over), over)

    def _changes(self, over: bool) -> Changes:
        if self._source is None or not (over or monotonic() >= self._next):
            return Changes()
        self._next = monotonic() + SYNC_SECONDS
        found = self._source.changes(all=over)
        if over:
            shutil.rmtree(self._source.folder, ignore_errors=True)
        return found

    def stop(self) -> None:
        """Let the run end soon, in good order."""
        self._stop.asked = True

    def close(self) -> None:
        """End the process of the runs."""
        self._crew.__exit__()
        shutil.rmtree(self._home, ignore_errors=True)
