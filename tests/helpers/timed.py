"""Deployments on a clock of their own, so that no test depends on how busy the machine is.

`wound` is for `Timed`, whose messages and work take as long as a test says. `idle` is for the loopback: its clock
stands still while a node is at work, so only what never comes is late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fedkeel.deploy import deployment, serving
from fedkeel.world.remote import loopback
from fedkeel.world.remote.loopback import Handler
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.remote import Remote
from fedkeel.world.remote.roster import Roster
from fedkeel.world.remote.transport import Reply
from tests.helpers.scripted import Clock

Work = Callable[[int, Message, Message], float]
"""Seconds that a node is at work on a message, by its number, the message and the answer."""


def wound(patch: pytest.MonkeyPatch) -> Clock:
    """The clock by which deployments go from now on."""
    return _followed(Clock(), patch)


def idle(patch: pytest.MonkeyPatch, work: float = 0.0) -> Clock:
    """The same for the loopback, whose nodes work in threads; each message takes so many seconds of this clock."""
    clock, lock = _Idle(), threading.Lock()

    class Pool(ThreadPoolExecutor):
        def submit(self, *args: Any, **more: Any) -> Future[Any]:
            with lock:
                clock.at_work += 1
            future = super().submit(*args, **more)
            future.add_done_callback(self._ended)
            return future

        def _ended(self, _: Future[Any]) -> None:
            with lock:
                clock.at_work -= 1
                clock.time += work

    patch.setattr(loopback, "ThreadPoolExecutor", Pool)
    patch.setattr(loopback, "monotonic", clock)
    return _followed(clock, patch)


class _Idle(Clock):
    """Stands still while somebody is at work."""

    at_work = 0

    def sleep(self, seconds: float) -> None:
        time.sleep(0.001)
        if not self.at_work:
            super().sleep(seconds)


def _followed(clock: Clock, patch: pytest.MonkeyPatch) -> Clock:
    """Let deployments go by it."""
    patch.setattr(deployment, "Remote", partial(Remote, clock=clock, sleep=clock.sleep))
    patch.setattr(serving, "Roster", partial(Roster, clock=clock))
    patch.setattr(serving, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep, time_ns=time.time_ns))
    return clock


class Timed:
    """A transport whose nodes answer at once; their answers are kept until they are due.

    A node does one thing after the other. `ways` are the seconds of a message to a node, and of its answer.
    """

    interrupts = False

    def __init__(self, handlers: Mapping[int, Handler], clock: Clock, ways: Mapping[int, float], work: Work) -> None:
        self.handlers = dict(handlers)
        """May be changed: a node that is not in it is not connected."""
        self.most: int | None = None
        self._clock, self._ways, self._work = clock, ways, work
        self._free: dict[int, float] = {}
        """By node: when it can begin with the next message."""
        self._due: list[tuple[float, Reply]] = []
        self._count = 0

    def nodes(self) -> list[int]:
        return sorted(self.handlers)

    def push(self, node: int, body: bytes, seconds: float) -> str:
        self._count += 1
        name, way = str(self._count), self._ways[node]
        if node not in self.handlers:
            self._due.append((self._clock() + way, _gone(name, node)))
            return name
        made = Message.unpack(self.handlers[node](body))
        took = self._work(node, Message.unpack(body), made)
        ends = max(self._clock() + way, self._free.get(node, 0.0)) + took
        self._free[node] = ends
        self._due.append((ends + way, Reply(name, node, replace(made, facts={**made.facts, "seconds": took}).pack())))
        return name

    def poll(self) -> list[Reply]:
        came = [reply for due, reply in self._due if due <= self._clock()]
        self._due = [each for each in self._due if each[0] > self._clock()]
        return [each if each.node in self.handlers else _gone(each.message, each.node) for each in came]

    def forget(self, messages: Collection[str]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing is open."""


def _gone(message: str, node: int) -> Reply:
    return Reply(message, node, None, "the node is not connected")
