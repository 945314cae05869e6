"""A process that does one run after the other; it ends when its parent ends, for whatever reason."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any

from fedkeel import api, sinks
from fedkeel.config import usercode
from fedkeel.config.experiment import Experiment, contradiction
from fedkeel.errors import FedkeelError, MishapError, StoppedError
from fedkeel.local.cluster.connection import Connection as Cluster
from fedkeel.local.cluster.wish import Wish
from fedkeel.local.machine import OURS
from fedkeel.record.folder import begun, complete
from fedkeel.record.rows import Evaluation, RoundEnd
from fedkeel.record.schema import EXPERIMENT
from fedkeel.runner.sinks import Sink, Start
from fedkeel.runner.stopping import Stop
from fedkeel.study.settle import estimate
from fedkeel.study.tasks import Ended, Moved, Refused, Reply, RunTask, Score, Settled, SettleTask, Stopping, Task

_PAUSE = 0.2
"""Seconds between two messages of progress."""
_TRIES = 20
"""So often is a folder removed in which somebody may still be writing."""


def work(connection: Connection, cores: frozenset[int], most: int, scratch: Path | None = None) -> None:
    """Do what comes through the connection, on these cores, but on no more than so many at a time.

    The folder `scratch` ends with this process.
    """
    os.environ[OURS] = str(most)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent decides what happens to a run
        signal.signal(number, signal.SIG_IGN)
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, cores)
    inbox = SimpleQueue[tuple[Task, Stop]]()
    Thread(target=_listen, args=(connection, inbox, scratch), daemon=True).start()
    while True:
        task, stop = inbox.get()
        reply = _settle(task) if isinstance(task, SettleTask) else _run(task, connection, stop)
        try:
            connection.send(reply)
        except OSError:  # the parent has no more use for it, and `_listen` ends this process
            Event().wait()


def _listen(connection: Connection, inbox: SimpleQueue[tuple[Task, Stop]], scratch: Path | None) -> None:
    """Each task has its own stop, so that a request to stop also counts before the task is begun."""
    stop = Stop()
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):  # the parent is gone, or has no more work
            if scratch is not None:
                _remove(scratch)
            os._exit(0)
        if isinstance(message, Stopping):
            stop.asked = True
        else:
            stop = Stop()
            inbox.put((message, stop))


def _remove(folder: Path) -> None:
    """The run may go on meanwhile, and make files."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _settle(task: SettleTask) -> Reply:
    try:
        return Settled(task.key, estimate(task.experiment, task.workers))
    except FedkeelError as error:
        return Refused(task.key, _kind(error), str(error), error.exit_code)
    except Exception as error:
        return Refused(task.key, _kind(error), _told(error))


def _run(task: RunTask, connection: Connection, stop: Stop) -> Ended:
    try:
        told = [_Teller(task, connection), *map(sinks.named, task.sinks)]
        if complete(task.folder):
            return Ended(task.name, "finished")
        with _joined(task) as task:
            if begun(task.folder):
                result = api.resume(task.folder, sinks=told, stop=stop, tell=lambda _: None, **_in_other_hands(task))
            else:
                result = api.run(task.experiment, task.folder, sinks=told, stop=stop)
        return Ended(task.name, "finished", score=_score(task.experiment, result.history[-1]))
    except StoppedError:
        return Ended(task.name, "stopped")
    except FedkeelError as error:
        return Ended(task.name, "failed", _kind(error), str(error).removesuffix(error.advice))
    except Exception as error:
        return Ended(task.name, "failed", _kind(error), _told(error))


def _in_other_hands(task: RunTask) -> dict[str, Any]:
    """The executor, if it is another one than before and makes no difference to the result."""
    asked = task.experiment.executor.model_dump()
    before = Experiment.load(task.folder / EXPERIMENT).executor.model_dump()
    return {} if contradiction({"executor": before}, {"executor": asked}) else {"executor": asked}


@contextmanager
def _joined(task: RunTask) -> Iterator[RunTask]:
    """Connected to the run's cluster, if it has one: its executor takes as many workers from there as are left."""
    if task.cluster is None:
        yield task
        return
    cluster = Cluster(Wish(task.cluster))
    try:
        executor = task.experiment.executor
        left = cluster.wait_for_room(Wish.of(executor), 1)
        executor = executor.model_copy(update={"workers": min(left, executor.workers or left)})
        yield replace(task, experiment=task.experiment.replace(executor=executor))
    finally:
        cluster.close()


def _kind(error: Exception) -> str:
    """The name of an error's class; all mishaps have the same."""
    return MishapError.__name__ if isinstance(error, MishapError) else type(error).__name__


def _told(error: Exception) -> str:
    return usercode.said(error)


class _Teller(Sink):
    """Tells the parent how far a run is."""

    def __init__(self, task: RunTask, connection: Connection) -> None:
        self._name, self._connection = task.name, connection
        self._experiment = task.experiment
        self._score: Score | None = None
        self._next = 0.0

    def begin(self, start: Start) -> None:
        """Report where a run starts or continues."""
        self._take(start.history[-1] if start.history else None)
        seconds = start.history[-1].virtual_seconds if start.history else 0.0
        self._send(start.round, seconds)

    def round(self, end: RoundEnd) -> None:
        """Report from time to time."""
        self._take(end.evaluation)
        if monotonic() >= self._next:
            self._next = monotonic() + _PAUSE
            self._send(end.round, end.virtual_seconds)

    def _take(self, evaluation: Evaluation | None) -> None:
        self._score = _score(self._experiment, evaluation) if evaluation else self._score

    def _send(self, round: int, seconds: float) -> None:
        share = done(self._experiment, round, seconds)
        self._connection.send(Moved(self._name, share, round, self._score))


def _score(experiment: Experiment, evaluation: Evaluation) -> Score:
    """The first metric of an evaluation."""
    metric = experiment.objective.metrics[0]
    return Score(metric.name, evaluation.first, metric.share)


def done(experiment: Experiment, round: int, seconds: float) -> float:
    """The share of a run that is done: by its rounds or by the virtual clock, whichever ends it first."""
    by_clock = seconds / experiment.limit_seconds if experiment.limit_seconds else 0.0
    return min(1.0, max(round / experiment.rounds, by_clock))
