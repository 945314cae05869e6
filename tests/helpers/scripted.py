"""A transport on which a test plays the nodes, and a clock that it winds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fedkeel.world.remote.message import Message
from fedkeel.world.remote.transport import Reply


class Clock:
    """Passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0
        self.wakes: list[tuple[float, Callable[[], None]]] = []
        """What happens when."""

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for due in [each for each in self.wakes if each[0] <= self.time]:
            self.wakes.remove(due)
            due[1]()


class Scripted:
    """Keeps what is pushed; answers are what a test says."""

    def __init__(self, nodes: Collection[int] = (), interrupts: bool = False) -> None:
        self.interrupts = interrupts
        self.most: int | None = None
        self.connected = list(nodes)
        self.sent: list[tuple[str, int, Message]] = []
        self.forgotten: list[str] = []
        self.away = False
        self._came: list[Reply] = []

    def _check(self) -> None:
        if self.away:
            raise ConnectionError("away")

    def nodes(self) -> list[int]:
        self._check()
        return self.connected

    def push(self, node: int, body: bytes, seconds: float) -> str:
        self._check()
        self.sent.append((f"m{len(self.sent)}", node, Message.unpack(body)))
        return self.sent[-1][0]

    def poll(self) -> list[Reply]:
        self._check()
        came, self._came = self._came, []
        return came

    def forget(self, messages: Collection[str]) -> None:
        self.forgotten += messages

    def close(self) -> None:
        pass

    def to(self, node: int) -> list[str]:
        """The kinds of all messages that a node was sent."""
        return [message.kind for _, each, message in self.sent if each == node]

    def last(self, node: int) -> tuple[str, Message]:
        return next((name, message) for name, each, message in reversed(self.sent) if each == node)

    def reply(self, node: int, kind: str, tensors: Any = None, **facts: Any) -> Reply:
        """The answer to the last message of a node."""
        name, asked = self.last(node)
        return Reply(name, node, Message(kind, {"run": asked.facts["run"], **facts}, tensors or {}).pack())

    def answer(self, node: int, kind: str, tensors: Any = None, **facts: Any) -> None:
        self._came.append(self.reply(node, kind, tensors, **facts))

    def fail(self, node: int, why: str) -> None:
        self._came.append(Reply(self.last(node)[0], node, None, why))
