"""Every event that the server of a deployment was told, in one file: a new server gets the same weights from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.errors import FedkeelError
from fedkeel.methods.job import Fresh
from fedkeel.methods.server import Answers
from fedkeel.server import events as ev
from fedkeel.server.core import Core
from fedkeel.server.trips import Times, Trip
from fedkeel.wire.orders import Trained
from fedkeel.world.remote.envelope import EnvelopeError
from fedkeel.world.remote.message import Message, named

FILE = "events.msgs"
BEGIN = "begin"
"""The kind of the first record, which is no event."""
_TIMES = ("dispatched", "began", "finished", "arrives", "asked", "merged", "resumed")


class Journal:
    """Appends events to a file, each with its length in front."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self.size = self._file.tell()
        """Bytes so far."""

    def cut(self, size: int) -> None:
        """Forget what came after so many bytes: a resumed server is told those events anew."""
        os.truncate(self._file.fileno(), size)
        self._file.seek(size)
        self.size = size

    def begin(self, samples: list[int]) -> None:
        """Write down the samples of all clients with which the server was built; events come after that."""
        self._write(Message(BEGIN, {"samples": samples}))

    def add(self, event: ev.Event, samples: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Write an event down, with the samples of all clients at that moment."""
        self._write(_written(event, samples.tolist()))

    def _write(self, message: Message) -> None:
        body = message.pack()
        self._file.write(len(body).to_bytes(8, "big") + body)
        self._file.flush()
        self.size += 8 + len(body)

    def close(self) -> None:
        """The file is complete."""
        os.fsync(self._file.fileno())
        self._file.close()


def read(path: Path) -> Iterator[Message]:
    """The records of a file, one after the other: how it began, then events."""
    try:
        with path.open("rb") as file:
            while head := file.read(8):
                size = int.from_bytes(head, "big")
                body = file.read(size)
                if len(head) < 8 or len(body) < size:
                    return  # a kill came in the middle of it
                yield Message.unpack(body)
    except (OSError, EnvelopeError) as error:
        raise FedkeelError(f"{path} cannot be read ({error}); only a run with record_uploads can be replayed") from None


def _written(event: ev.Event, samples: list[int]) -> Message:
    facts: dict[str, Any] = {"time": event.time, "samples": samples}
    tensors = {}
    match event:
        case ev.Wake():
            facts["free"] = None if event.free is None else event.free.tolist()
        case ev.Answered():
            tensors = {**named("message/", event.answers.messages), **named("sum/", event.answers.sums)}
            tensors["epochs"] = event.answers.epochs
        case ev.Unanswered():
            facts["clients"] = [*event.clients]
        case ev.Asked():
            facts |= {"client": event.client, "job": event.job}
        case ev.Arrived():
            names = ("client", "job", "version", "nbytes", "work", "objection")
            facts |= {name: getattr(event, name) for name in names} | {"trip": _trip(event.trip), "order": None}
            if event.order is not None:
                facts["order"] = {"epochs": event.order.epochs, "slot": event.order.slot}
            tensors = {} if event.upload is None else {**event.upload.columns}
        case ev.Lost():
            facts |= {name: getattr(event, name) for name in ("client", "job", "why", "nbytes", "work")}
            facts["trip"] = _trip(event.trip)
        case ev.TimeUp():
            pass
        case _:
            raise FedkeelError(f"{type(event).__name__} cannot be written down")
    return Message(type(event).__name__, facts, tensors)


def _trip(trip: Trip | None) -> list[float | None] | None:
    return None if trip is None else [getattr(trip, name) for name in _TIMES]


class Replay:
    """Feeds events to a core as the world did."""

    def __init__(self, core: Core, samples: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """`samples` [N] is the core's own array."""
        self._core, self._samples = core, samples
        self._fresh: dict[int, Fresh[int] | None] = {}

    def feed(self, message: Message) -> None:
        """One event."""
        self._samples[:] = message.facts["samples"]
        for command in self._core.on(self._event(message)):
            if isinstance(command, ev.Answer):
                self._fresh[command.client] = command.fresh

    def _event(self, message: Message) -> ev.Event:
        told = message.facts
        time = told["time"]
        match message.kind:
            case "Wake":
                return ev.Wake(time, None if told["free"] is None else np.array(told["free"], dtype=np.bool_))
            case "Answered":
                answers = Answers(message.below("message/"), message.below("sum/"), message.tensors["epochs"])
                return ev.Answered(time, answers)
            case "Unanswered":
                return ev.Unanswered(time, told["clients"])
            case "Asked":
                return ev.Asked(time, told["client"], told["job"])
            case "Arrived":
                return self._arrived(time, message)
            case "Lost":
                return ev.Lost(
                    time, told["client"], told["job"], told["why"], Times(*told["trip"]), told["nbytes"], told["work"]
                )
            case "TimeUp":
                return ev.TimeUp(time)
        raise FedkeelError(f"{message.kind!r} is no event")

    def _arrived(self, time: float, message: Message) -> ev.Arrived:
        told, order = message.facts, None
        if told["order"] is not None:
            sent = self._core.at_work.sent[told["client"]].order
            slot, epochs = told["order"]["slot"], told["order"]["epochs"]
            fresh = self._fresh.pop(told["client"], None) if slot else None
            order = replace(sent, epochs=epochs, lr=sent.lr[:epochs], slot=slot, fresh=fresh)
        trip = None if told["trip"] is None else Times(*told["trip"])
        upload = Trained({**message.tensors}) if message.tensors else None
        return ev.Arrived(
            time, told["client"], told["job"], told["version"], told["nbytes"], order, trip, upload, told["work"],
            told["objection"],
        )  # fmt: skip
