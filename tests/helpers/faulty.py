"""Faults of links and nodes for deployments over the loopback, and runs that are over in time or fail the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from fedkeel.world.remote import envelope
from fedkeel.world.remote.loopback import Handler, Loopback
from fedkeel.world.remote.transport import Reply
from tests.helpers import deployed

T = TypeVar("T")
Way = Callable[[int, bytes], Sequence[tuple[float, bytes]]]
SMALL: dict[str, Any] = {"dataset": {"name": "fashion-mnist-mini", "train_limit": 120, "test_limit": 40}, "rounds": 3}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn"},
    "fedent": {"algorithm": "fedent"},
    "fedbuff": {"algorithm": "fedbuff", "schedule": {"concurrency": 2}},
    "fedasmu": {"algorithm": "fedasmu", "schedule": {"trigger_seconds": 0.05}, "local": {"epochs": 3, "lr": 0.05}},
}
SYNCHRONOUS = ("fedavg", "scaffold", "feddyn", "fedent")


def project(folder: Path, method: str = "fedavg", sites: int = 3, **more: Any) -> Path:
    """A small project with one of the methods."""
    return deployed.project(folder, sites, **{**SMALL, **METHODS[method], **more})


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; the test fails if that takes longer."""
    came: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    assert came, f"it is not over after {seconds:g} seconds"
    return came[0]


@dataclass
class Told:
    """A run that is over."""

    folder: Path
    summary: dict[str, Any]
    lines: list[str]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        text = (self.folder / f"{kind}.jsonl").read_text(encoding="utf-8")
        return [json.loads(row) for row in text.splitlines()]


def run(app: Path, out: Path, transport: Loopback | None = None, seconds: float = 60, **how: Any) -> Told:
    """A deployment that must be over in time."""
    lines: list[str] = []
    summary = within(seconds, lambda: deployed.deployed(app, out, transport, tell=lines.append, **how))
    return Told(out, summary, lines)


def kind(body: bytes) -> str:
    """Nothing, if it is no message."""
    try:
        return str(envelope.facts(body)["kind"])
    except envelope.EnvelopeError:
        return ""


def doubled(_: int, body: bytes) -> Sequence[tuple[float, bytes]]:
    return [(0.0, body), (0.0, body)]


def slow(_: int, body: bytes) -> Sequence[tuple[float, bytes]]:
    return [(0.05, body)]


def shuffled(seed: int) -> Way:
    """Some come twice, and all in another order; the loopback must take several messages at a time."""
    draw, lock = Random(seed), threading.Lock()

    def way(_: int, body: bytes) -> Sequence[tuple[float, bytes]]:
        with lock:
            return [(draw.random() / 20, body) for _ in range(draw.choice((1, 1, 2, 3)))]

    return way


@dataclass
class Losing:
    """Loses some of the messages of a kind, by their numbers from 0."""

    of: str
    numbers: Sequence[int]
    seen: int = 0
    lost: list[int] = field(default_factory=list)
    """The nodes they were of."""

    def __call__(self, node: int, body: bytes) -> Sequence[tuple[float, bytes]]:
        if kind(body) != self.of:
            return [(0.0, body)]
        self.seen += 1
        if self.seen - 1 in self.numbers:
            self.lost.append(node)
            return []
        return [(0.0, body)]


def failing(handler: Handler, every: int, after: bool) -> Handler:
    """A node that fails at every so many messages, before it has worked or after."""
    count = 0

    def answer(body: bytes) -> bytes:
        nonlocal count
        count += 1
        if count % every == 0 and not after:
            raise OSError("the node was not there")
        made = handler(body)
        if count % every == 0:
            raise OSError("the node was gone when it had its answer")
        return made

    return answer


class Unreachable(Loopback):
    """Now and then, for some calls in a row, nothing can be reached."""

    def __init__(self, *args: Any, every: int, calls: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._every, self._calls, self._count = every, calls, 0
        self.missed = 0

    def _pass(self) -> None:
        self._count += 1
        if self._count % self._every < self._calls:
            self.missed += 1
            raise ConnectionError("the link is away")

    def nodes(self) -> list[int]:
        self._pass()
        return super().nodes()

    def push(self, node: int, body: bytes, seconds: float) -> str:
        self._pass()
        return super().push(node, body, seconds)

    def poll(self) -> list[Reply]:
        self._pass()
        return super().poll()


class KilledError(BaseException):
    """No handler of errors catches it."""


class Mortal(Loopback):
    """The server dies after so many messages, of one kind or of any, or when so many answers have come."""

    def __init__(self, handlers: dict[int, Handler], pushes: int, replies: int = 10**9, kind: str = "") -> None:
        super().__init__(handlers)
        self._pushes, self._replies, self._only = pushes, replies, kind

    def push(self, node: int, body: bytes, seconds: float) -> str:
        self._pushes -= not self._only or kind(body) == self._only
        if self._pushes < 0:
            raise KilledError
        return super().push(node, body, seconds)

    def poll(self) -> list[Reply]:
        came = super().poll()
        self._replies -= len(came)
        if self._replies < 0:
            raise KilledError
        return came
