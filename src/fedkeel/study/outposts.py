"""A crew on the machines of a Ray cluster: what a `Crew` is on one machine.

Each worker is an actor that has runs made beside it (`outpost.py`). Machines share no disk: a run's folder is copied to
its machine before the run, and back while it goes on (`mirror.py`).
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

from fedkeel.errors import DivergenceError, FedkeelError, InputError, MishapError, counted
from fedkeel.local.cluster.alike import objection
from fedkeel.local.cluster.connection import Connection
from fedkeel.local.cluster.losses import last_line
from fedkeel.local.cluster.pool import AGAIN_SECONDS, START_SECONDS, TRIES
from fedkeel.local.cluster.wish import Wish
from fedkeel.local.native import library
from fedkeel.local.settings import check_address
from fedkeel.record.lock import BusyError
from fedkeel.runner.stopping import Stop
from fedkeel.study.crew import DIED, failed
from fedkeel.study.mirror import Changes, Copy, Source
from fedkeel.study.outpost import News, Outpost
from fedkeel.study.tasks import Ended, Lost, Refused, Reply, RunTask, Task

HERE = "local"
"""The word for a cluster that is started on this machine."""
_NEEDS = {"CPU": 1.0}
_TICK = 0.5
_NEWS_SECONDS = 1.0
"""Between two reports of an actor."""
_PATIENCE = 5.0


@dataclass(eq=False)
class _Seat:
    """An actor, as this process sees it."""

    actor: Any
    host: str
    task: Task | None = None
    answer: Any = None
    """A reference to what it says next."""
    copy: Copy | None = None
    """The folder of its run."""
    waited: bool = False
    """Whether it had nothing to do before, and has not answered since: it may have been lost meanwhile."""

    def rest(self) -> None:
        """It has nothing to do any more."""
        if self.copy is not None:
            self.copy.close()
        self.task = self.answer = self.copy = None
        self.waited = True


class Outposts(AbstractContextManager["Outposts"]):
    """Actors, one for each run at a time; they start when they are first needed, and stay from plan to plan."""

    def __init__(self, address: str) -> None:
        """`local` for a cluster of its own on this machine, or where there is one: `auto` or `HOST:PORT`."""
        if address != HERE:
            with _of_option():
                check_address(address)
        self.size = 0
        self._asked = address
        self._connection: Connection | None = None
        self._seats: list[_Seat] = []
        self._coming: dict[Any, Any] = {}
        """Actors that are being started, by the answer that each will give."""
        self._again = self._since = 0.0
        self._why = ""
        """Why the last actor could not be started."""

    def join(self, jobs: int | None) -> int:
        """Connect, unless that was done before; returns how many runs there is room for if nobody else uses it."""
        if self._connection is None:
            with _of_option():
                self._connection = Connection(Wish(None if self._asked == HERE else self._asked, jobs))
        room = self._connection.room(_NEEDS)
        if room < (jobs or 1):
            raise InputError(
                f"--ray: the cluster has room for {counted(room, 'run')} of 1 CPU at a time, and {jobs or 1} "
                f"{'are' if jobs else 'is'} needed; {'give fewer --jobs, or ' if room else ''}add machines to it"
            )
        if not self._seats:
            with _of_option():
                self._connection.wait_for_room(Wish(workers=1), 1)
        return room

    @property
    def words(self) -> str:
        """What was found."""
        nodes = self._here.nodes
        cpus = sum(node.resources.get("CPU", 0.0) for node in nodes)
        return f"on a Ray cluster of {counted(len(nodes), 'machine')} with {cpus:g} CPU{'s' * (cpus != 1)}"

    @property
    def free_bytes(self) -> list[int]:
        """Of each machine, the memory that nobody has reserved."""
        return [int(node.resources.get("memory", 0.0)) for node in self._here.left()]

    @property
    def free(self) -> int:
        """How many runs there is room for beside what others do."""
        return self._here.free(_NEEDS) + len(self._seats)

    @property
    def address(self) -> str:
        """Where others can connect to the cluster."""
        return str(self._here.ray.get_runtime_context().gcs_address)

    @property
    def _here(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def work(self, tasks: Sequence[Task], stop: Stop) -> Iterator[tuple[Task, Reply]]:
        """Do all tasks, and yield the replies; when a stop is asked for, the running tasks end early.

        A task whose actor is lost is begun again elsewhere; a run goes on from its last checkpoint.
        """
        waiting, told, losses = deque(tasks), False, Counter[str]()
        self._since = monotonic()
        while True:
            if stop.asked and not told:
                told = True
                waiting.clear()
                for each in self._busy:
                    each.actor.stop.remote()
            if waiting:
                self._start(min(self.size, len(self._busy) + len(waiting)))
            while waiting and len(self._busy) < self.size and (free := self._free()):
                task = waiting.popleft()
                try:
                    self._hand(free, task)
                except BusyError:
                    why = "its folder is in use; wait until the other process has ended"
                    yield task, failed(task, MishapError.__name__, why)
            if not self._busy and not waiting:
                return
            for seat in self._heard():
                assert seat.task is not None
                task = seat.task
                for reply in self._replies(seat):
                    if isinstance(reply, Lost):
                        losses[reply.name] += bool(reply.why)
                        if told:
                            reply = _stopped(task)
                        elif losses[reply.name] >= TRIES:
                            reply = failed(task, DIED, f"its worker was lost {TRIES} times ({reply.why})")
                        else:
                            waiting.appendleft(task)
                    if not isinstance(reply, Lost) or (reply.why and isinstance(task, RunTask)):
                        yield task, reply

    @property
    def _busy(self) -> list[_Seat]:
        return [each for each in self._seats if each.task is not None]

    def _free(self) -> _Seat | None:
        return next((each for each in self._seats if each.task is None), None)

    def _start(self, wanted: int) -> None:
        """Start actors; where there is no room, they wait for it."""
        missing = wanted - len(self._seats) - len(self._coming)
        if missing <= 0 or monotonic() < self._again:
            return
        made = self._here.ray.remote(Outpost).options(
            num_cpus=_NEEDS["CPU"], max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        loaded = library.load()
        environment = {name: value for name, value in os.environ.items() if name.startswith("FEDKEEL_")}
        environment |= {"FEDKEEL_NATIVE": library.mode()} | ({"FEDKEEL_ISA": loaded.isa} if loaded else {})
        for _ in range(missing):
            actor = made.remote(environment, os.getcwd(), sys.path)
            self._coming[actor.where.remote()] = actor

    def _hand(self, seat: _Seat, task: Task) -> None:
        files = Changes()
        if isinstance(task, RunTask):
            seat.copy = Copy(task.folder)
            files = Source(task.folder, self._here.ray.put).changes()
        seat.task = task
        seat.answer = seat.actor.begin.remote(pickle.dumps(task), files)

    def _heard(self) -> list[_Seat]:
        """Those who have said something."""
        ray = self._here.ray
        refs = [*(each.answer for each in self._busy), *self._coming]
        come = set[Any]()
        if not refs:
            sleep(_TICK)
        elif ray.wait(refs, num_returns=1, timeout=_TICK)[0]:
            come = {*ray.wait(refs, num_returns=len(refs), timeout=0)[0]}
        for ref in [ref for ref in self._coming if ref in come]:
            self._arrived(ref, self._coming.pop(ref))
        if self._seats:
            self._since = monotonic()
        elif monotonic() - self._since > START_SECONDS:
            raise MishapError(
                f"no worker could be started on the Ray cluster within {START_SECONDS:.0f} seconds "
                f"({self._why or 'others use all of it'}); finished runs are safe, and the same command continues"
            )
        return [each for each in self._busy if each.answer in come]

    def _arrived(self, ref: Any, actor: Any) -> None:
        try:
            host, facts = self._here.ray.get(ref)
            self._why = objection(host, facts) or ""
        except self._here.ray.exceptions.RayError as error:
            self._why = last_line(error)
        if not self._why:
            self._seats.append(_Seat(actor, host))
            return
        self._again = monotonic() + AGAIN_SECONDS
        self._kill(actor)

    def _replies(self, seat: _Seat) -> list[Reply]:
        """What an actor says; its files are written first."""
        task, ray = seat.task, self._here.ray
        assert task is not None
        try:
            news: News | None = ray.get(seat.answer)
            if news is not None and seat.copy is not None:
                seat.copy.take(news.changes, ray.get)
        except ray.exceptions.RayTaskError as error:  # it goes on, but something went wrong there
            why = last_line(error)
            self._part_with(seat)
            return [self._with_place(failed(task, MishapError.__name__, why), seat.host)]
        except ray.exceptions.RayError as error:
            why = "" if seat.waited else f"{self._what(error)} on {seat.host}"  # it was not this task's fault
            self._part_with(seat)
            return [Lost(task.name if isinstance(task, RunTask) else task.key, why)]
        except OSError as error:
            raise MishapError(
                f"{error.filename or 'a run'} cannot be written ({error.strerror}); finished runs are safe, and the "
                "same command continues"
            ) from error
        seat.waited = False
        if news is None or not news.over:
            seat.answer = seat.actor.listen.remote(_NEWS_SECONDS)
            return [*news.replies] if news else []
        seat.rest()
        ended = any(isinstance(each, Ended | Refused) for each in news.replies)
        replies = news.replies if ended or not isinstance(task, RunTask) else (*news.replies, _stopped(task))
        return [self._with_place(each, seat.host) for each in replies]

    def _what(self, error: Exception) -> str:
        """How an actor was lost."""
        known = self._here.ray.exceptions
        if isinstance(error, known.OutOfMemoryError):
            return "out of memory"
        if isinstance(error, known.ActorUnavailableError):
            return "no answer"
        return "the machine was lost" if "node has died" in str(error) else "the process ended"

    def _with_place(self, reply: Reply, host: str) -> Reply:
        """An error with the machine where it arose, if there are several: files may be missing on one of them."""
        if len(self._here.nodes) < 2 or not isinstance(reply, Ended | Refused):
            return reply
        if not reply.error or reply.kind == DivergenceError.__name__:
            return reply
        return replace(reply, error=f"{reply.error} (on the machine {host})")

    def _part_with(self, seat: _Seat) -> None:
        seat.rest()
        self._seats.remove(seat)
        self._kill(seat.actor)
        self._again = monotonic() + AGAIN_SECONDS

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):
            self._here.ray.kill(actor)

    def release(self) -> None:
        """Let all actors go; those that have nothing to do may tidy up."""
        if self._connection is None:
            return
        idle = [each.actor.close.remote() for each in self._seats if each.task is None]
        if idle:
            with suppress(Exception):
                self._connection.ray.wait(idle, num_returns=len(idle), timeout=_PATIENCE)
        for actor in [*(each.actor for each in self._seats), *self._coming.values()]:
            self._kill(actor)
        for each in self._seats:
            each.rest()
        self._seats.clear()
        self._coming.clear()

    def __exit__(self, *_: object) -> None:
        self.release()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _stopped(task: Task) -> Reply:
    """The reply for a task that was not done, as a stop was asked for."""
    return Ended(task.name, "stopped") if isinstance(task, RunTask) else failed(task, "StoppedError", "stopped")


@contextmanager
def _of_option() -> Iterator[None]:
    """Errors that name the settings of an executor name the option instead."""
    try:
        yield
    except FedkeelError as error:
        told = str(error).replace("executor.address must be", f"--ray must be {HERE},")
        told = told.replace("set executor.address=null", f"give --ray {HERE}")
        for name in ("executor.address", "executor.kind=ray"):
            told = told.replace(name, "--ray")
        raise type(error)(told) from None


@contextmanager
def on_ray(address: str | None) -> Iterator[Outposts | None]:
    """The crew for the option `--ray`, if that is given."""
    if address is None:
        yield None
        return
    with Outposts(address) as crew:
        yield crew
