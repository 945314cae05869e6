"""The server's end: messages go out through Flower's grid, and answers come back."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol
from uuid import uuid4

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedkeel.errors import FedkeelError, words
from fedkeel.world.flower import fleetapi, parcel
from fedkeel.world.flower.failures import TooLargeError
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.transport import Reply

_SOON = 0.3
"""Seconds that a call waits for answers that are on their way from the SuperLink."""
_CODES = {
    1: "the node could not load the ClientApp",
    2: "the ClientApp raised an error",
    3: "the message has expired or is gone",
    4: "the answer has expired or is gone",
    5: "the node is not available",
    6: "the ClientApp was not allowed to run",
    7: "the node does not accept the app",
    8: "the ClientApp crashed",
}


class GridTransport:
    """A `Transport` over Flower.

    No call takes longer than `fleetapi.BOUND` seconds while the SuperLink is away. A push takes as long as it takes to
    send the bytes. Answers are fetched by threads, so that nobody waits for a node that is slowly sending its own.
    """

    def __init__(self, grid: Grid, interrupts: bool = False, most: int | None = None) -> None:
        self.interrupts = interrupts
        """Whether a node can take a message while it works on another; so can `fleetnode`, but not Flower's own."""
        self.most = most
        """The largest answer in bytes; None is no limit."""
        self._line: _Line = fleetapi.runtime_line(grid) or _PlainLine(grid)
        self._awaited: dict[str, int] = {}
        self._fetching: dict[str, threading.Event] = {}
        """Answers that are on their way from the SuperLink; set to give them up."""
        self._threads: list[threading.Thread] = []
        """That fetch them, and then say so to the SuperLink."""
        self._came: SimpleQueue[Reply] = SimpleQueue()
        self._void: list[Reply] = []
        """News of messages that the SuperLink did not take."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""
        with fleetapi.translated():
            return sorted(self._line.grid.get_node_ids())

    def push(self, node: int, body: bytes, seconds: float) -> str:
        """Send a message that is void after so many seconds; returns its name."""
        message = Message(parcel.packed(body), node, parcel.KIND, ttl=seconds)
        with fleetapi.translated():
            name = self._line.push(message)
        if name:
            self._awaited[name] = node
            return name
        name = f"void-{uuid4().hex}"
        self._void.append(Reply(name, node, None, "the SuperLink did not take the message, as the node is unknown"))
        return name

    def poll(self) -> list[Reply]:
        """What came since the last call; answers that came are told even if the SuperLink is away."""
        try:
            self._begin()
        except ConnectionError:
            if self._came.empty() and not self._void:
                raise
        void, self._void = self._void, []
        return void + self._arrived()

    def _begin(self) -> None:
        """Fetch the answers that are there now."""
        asked = [name for name in self._awaited if name not in self._fetching]
        if not asked:
            return
        with fleetapi.translated():
            headers = [each for each in self._line.answered(asked) if each.answers in asked]
        there = []
        self._threads = [each for each in self._threads if each.is_alive()]
        for header in headers:
            stop = self._fetching[header.answers] = threading.Event()
            there.append(threading.Event())
            self._threads.append(threading.Thread(target=self._fetch, args=(header, stop, there[-1]), daemon=True))
            self._threads[-1].start()
        for each in there:
            each.wait(_SOON / len(there))

    def _fetch(self, header: Any, stop: threading.Event, there: threading.Event) -> None:
        name = header.answers
        node = self._awaited.get(name, 0)
        try:
            reply = self._reply(name, node, self._line.fetch(header, self.most, stop))
        except (FedkeelError, EnvelopeError) as error:
            reply = Reply(name, node, None, str(error), isinstance(error, TooLargeError))
        except Exception as error:  # whatever a node sends, the server goes on
            reply = Reply(name, node, None, f"it cannot be read ({type(error).__name__}: {words(error)})")
        self._came.put(reply)
        there.set()
        self._line.confirm(header)

    def _reply(self, name: str, node: int, message: Message) -> Reply:
        if message.has_error():
            return Reply(name, node, None, _told(message.error))
        body = parcel.unpacked(message.content)
        if self.most is not None and len(body) > self.most:
            return Reply.refused(name, node, len(body), self.most)
        return Reply(name, node, body)

    def _arrived(self) -> list[Reply]:
        """All that has been fetched, without what has been forgotten."""
        replies = []
        while not self._came.empty():
            reply = self._came.get()
            if self._fetching.pop(reply.message, None) is not None:
                del self._awaited[reply.message]
                replies.append(reply)
        return replies

    def forget(self, messages: Collection[str]) -> None:
        """Answers to these are not waited for any more."""
        for name in messages:
            self._awaited.pop(name, None)
            if (fetching := self._fetching.pop(name, None)) is not None:
                fetching.set()

    def close(self) -> None:
        """Let go of the connection; Flower's own one stays."""
        self.forget([*self._awaited, *self._fetching])
        for thread in self._threads:
            thread.join(_SOON)
        self._line.close()


class _Line(Protocol):
    """What a transport needs; `fleetapi.RuntimeLine` is one."""

    grid: Any

    def push(self, message: Message) -> str: ...

    def answered(self, messages: list[str]) -> list[Any]: ...

    def fetch(self, header: Any, most: int | None, stop: threading.Event) -> Message: ...

    def confirm(self, header: Any) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Whole:
    """An answer that is there."""

    answers: str
    message: Message


class _PlainLine:
    """Any other grid, such as that of Flower's simulation."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def push(self, message: Message) -> str:
        return next(iter(self.grid.push_messages([message])), "")

    def answered(self, messages: list[str]) -> list[_Whole]:
        return [_Whole(each.metadata.reply_to_message_id, each) for each in self.grid.pull_messages(messages)]

    def fetch(self, header: _Whole, most: int | None, stop: threading.Event) -> Message:
        return header.message

    def confirm(self, header: _Whole) -> None:
        pass

    def close(self) -> None:
        pass


def _told(error: Error) -> str:
    """Flower's error in words."""
    reason = words(Exception(error.reason or ""))
    told = f"{error.code}: {reason}" if reason else str(error.code)
    return f"{_CODES.get(error.code, 'it failed')} (Flower's error {told})"
