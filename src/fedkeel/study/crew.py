"""Worker processes that do the tasks of a study; one that is killed is replaced, and its task counts as failed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedkeel.local.machine import cores
from fedkeel.runner.stopping import Stop
from fedkeel.study import worker
from fedkeel.study.tasks import Ended, Moved, Refused, Reply, RunTask, Stopping, Task

DIED = "WorkerDied"
"""The kind of failure of a run whose process ended."""
_TICK = 0.5
_PATIENCE = 5.0


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    place: int
    task: Task | None = None


class Crew(AbstractContextManager["Crew"]):
    """Workers, each with its share of the cores; they start when they are first needed."""

    def __init__(self, size: int, scratch: Path | None = None) -> None:
        """`scratch` is a folder that ends with the workers, however they end."""
        self.size = size
        self._scratch = scratch
        self._context: Any = multiprocessing.get_context(_method())
        if _method() == "forkserver":
            self._context.set_forkserver_preload(["fedkeel.study.worker"])
        self._workers: list[_Worker] = []

    def work(self, tasks: Sequence[Task], stop: Stop) -> Iterator[tuple[Task, Reply]]:
        """Do all tasks, and yield the workers' replies; when a stop is asked for, the running tasks end early."""
        waiting, told = deque(tasks), False
        while True:
            if stop.asked and not told:
                told = True
                waiting.clear()
                for each in self._busy:
                    with suppress(OSError):
                        each.connection.send(Stopping())
            while waiting and (free := self._free()):
                free.task = waiting.popleft()
                self._hand(free)
            if not self._busy:
                return
            yield from self._listen()

    @property
    def _busy(self) -> list[_Worker]:
        return [each for each in self._workers if each.task is not None]

    def _free(self) -> _Worker | None:
        if len(self._busy) >= self.size:
            return None
        found = next((each for each in self._workers if each.task is None), None)
        if found is None:
            found = self._start(len(self._workers))
            self._workers.append(found)
        elif not found.process.is_alive():  # it was killed while it had nothing to do
            found = self._replaced(found)
        return found

    def _start(self, place: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        told = (theirs, _share(place, self.size), max(1, cores() // self.size), self._scratch)
        process = self._context.Process(target=worker.work, args=told, daemon=False)
        with _undisturbed():
            process.start()
        theirs.close()
        return _Worker(process, ours, place)

    def _hand(self, free: _Worker) -> None:
        with suppress(OSError):  # it has died: `_listen` sees that
            free.connection.send(free.task)

    def _listen(self) -> Iterator[tuple[Task, Reply]]:
        ready = wait([end for each in self._busy for end in (each.connection, each.process.sentinel)], _TICK)
        for each in [each for each in self._busy if each.connection in ready or each.process.sentinel in ready]:
            task = each.task
            assert task is not None
            try:
                reply: Reply = each.connection.recv() if each.connection.poll() else self._lost(each)
            except (EOFError, OSError):
                reply = self._lost(each)
            if not isinstance(reply, Moved):
                each.task = None
            yield task, reply

    def _lost(self, dead: _Worker) -> Reply:
        """The reply for a task whose worker died; the worker is replaced."""
        dead.process.join(_PATIENCE)
        code = dead.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        why = f"its process {how}" + ("; there may not be enough memory" if code == -9 else "")
        task = dead.task
        assert task is not None
        self._replaced(dead)
        return failed(task, DIED, why)

    def _replaced(self, dead: _Worker) -> _Worker:
        dead.connection.close()
        place = self._workers.index(dead)
        self._workers[place] = self._start(dead.place)
        return self._workers[place]

    def __exit__(self, *_: object) -> None:
        for each in self._workers:
            each.connection.close()  # which ends it
        for each in self._workers:
            each.process.join(0 if each.task is not None else _PATIENCE)
            if each.process.is_alive():
                each.process.kill()
                each.process.join()


def failed(task: Task, kind: str, why: str) -> Ended | Refused:
    """The reply for a task that could not be done."""
    return Ended(task.name, "failed", kind, why) if isinstance(task, RunTask) else Refused(task.key, kind, why)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait meanwhile, and processes that are started never get them: their parent acts on them."""
    resource_tracker.ensure_running()  # it would let signals through again if it started meanwhile
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _method() -> str:
    """A server that has imported everything forks workers quickly; where there is none, each worker imports again."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def _share(place: int, size: int) -> frozenset[int]:
    """The cores of a worker: an equal share, and at least one."""
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    each = max(1, len(known) // size)
    first = place * each % len(known)
    return frozenset(known[first : first + each])
