"""A worker process: trains and tests what it draws tickets for, and writes the results into shared memory."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel import errors
from fedkeel.config import usercode
from fedkeel.data.federated import Held
from fedkeel.errors import FedkeelError
from fedkeel.local.evaluation import Evaluator, Part
from fedkeel.local.executors.inprocess import consecutive, put
from fedkeel.local.executors.memory import Parcel, Reader
from fedkeel.local.executors.packing import unpack
from fedkeel.local.trainer import Trainer
from fedkeel.wire.orders import SUM, Columns, add, divided

TICKET = struct.Struct("<i")
END = -1
LESS_MEMORY = "fewer workers (executor.workers) or smaller stacks (executor.stack) need less"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class TrainRequest:
    """Train these orders; ticket n means the n-th stack."""

    inputs: Parcel
    orders: bytes
    """Which name the inputs by their numbers."""
    stacks: Sequence[Sequence[int]]
    limit: int | None
    outputs: Parcel


@dataclass(frozen=True)
class DeliverRequest:
    """Write what was held back, as there was no room for it, into these columns."""

    outputs: Parcel


@dataclass(frozen=True)
class TestRequest:
    """Test a model; ticket n means the n-th batch of the test or validation set."""

    inputs: Parcel
    on: Held
    outputs: bool
    """Whether the model's outputs are wanted, not what they add up to."""


Request = TrainRequest | DeliverRequest | TestRequest


Kinds = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Of columns: the shape of a row, and the type."""


@dataclass(frozen=True)
class Done:
    """What a worker has to say afterwards."""

    held: Kinds | None = None
    """What the rule sends and keeps: held back until there is room for it. Nothing if no stack was drawn.
    Sums have no rows; each worker has its own, of what it drew."""
    parts: dict[int, Part] = field(default_factory=dict)
    """What came of each batch that was tested."""


@dataclass(frozen=True)
class Failed:
    """An exception, in words."""

    said: str
    trace: str
    ours: type[FedkeelError] | None
    """If it was one of ours, its class: what it says needs no explanation."""

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """What happened in a worker."""
        ours = next((kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__), None)
        where = usercode.place(error)
        said = str(error) if ours else f"{type(error).__name__}: {error}{f' ({where})' if where else ''}"
        return cls(said, traceback.format_exc(), ours)

    def error(self, doing: str) -> FedkeelError:
        """What the parent says of it; the worker's traceback is its cause."""
        memory = "MemoryError" in self.said or "allocate memory" in self.said
        hint = f"; out of memory: {LESS_MEMORY}" if memory else ""
        error = self.ours(self.said) if self.ours else FedkeelError(f"{doing} failed in a worker: {self.said}{hint}")
        error.__cause__ = RuntimeError(f"in a worker process:\n{self.trace}")
        return error


@dataclass(frozen=True)
class Post:
    """What binds a worker to its parent."""

    parent: int
    number: int
    connection: Connection
    tickets: int
    """The end of the pipe that all workers draw from."""
    busy: NDArray[np.int64]
    """[workers], shared: which ticket each is working on."""


def main(post: Post, inherited: Sequence[int], trainer: Trainer, evaluator: Evaluator) -> None:
    """Serve requests until the parent says so or dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != post.parent:  # it died before it could be watched
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these are for the parent, whoever gets them
        signal.signal(number, signal.SIG_IGN)
    for file in inherited:
        os.close(file)
    torch.set_num_threads(1)
    worker = _Worker(post, trainer, evaluator)
    while (request := _next(post.connection)) is not None:
        try:
            reply: Done | Failed = worker.serve(request)
        except Exception as error:
            reply = Failed.of(error)
        post.connection.send(reply)
    os._exit(0)  # nothing of the parent's is cleaned up here


def _next(connection: Connection) -> Request | None:
    try:
        request: Request | None = connection.recv()
    except EOFError:
        return None
    return request


class _Worker:
    def __init__(self, post: Post, trainer: Trainer, evaluator: Evaluator) -> None:
        self._post = post
        self._trainer = trainer
        self._evaluator = evaluator
        self._reader = Reader()
        self._held: list[tuple[Sequence[int], Columns]] = []
        self._sums: Columns | None = None

    def serve(self, request: Request) -> Done:
        match request:
            case TrainRequest():
                return self._train(request)
            case DeliverRequest():
                columns = self._reader.tensors(request.outputs)
                for rows, part in self._held:
                    put(part, rows, {name: columns[name] for name in part})
                for name in (name for name in columns if name.startswith(SUM)):
                    columns[name][self._post.number] = (self._sums or {}).get(name, 0.0)
                self._held, self._sums = [], None
                return Done()
            case TestRequest():
                inputs = self._reader.tensors(request.inputs)
                w, buffers, samples = inputs["w"], inputs["buffers"], inputs.get("samples")
                told = request.on, request.outputs
                return Done(parts={n: self._evaluator.parts(w, buffers, samples, [n], *told)[0] for n in self._draw()})

    def _draw(self) -> Iterator[int]:
        """Tickets, until there is none left; every worker draws from the same pipe."""
        while True:
            (ticket,) = TICKET.unpack(os.read(self._post.tickets, TICKET.size))
            if ticket == END:
                return
            self._post.busy[self._post.number] = ticket
            yield ticket

    def _train(self, request: TrainRequest) -> Done:
        orders = unpack(request.orders, [*self._reader.tensors(request.inputs).values()])
        outputs = self._reader.tensors(request.outputs)
        self._held, self._sums = [], None
        held: Kinds | None = None
        for ticket in self._draw():
            rows = request.stacks[ticket]
            out = outputs["w"][span] if (span := consecutive(rows)) else None
            part, sums = divided(self._trainer(orders.pick(np.array(rows)), request.limit, out))
            self._sums = add(self._sums, sums)
            put({name: part.pop(name) for name in outputs}, rows, outputs)
            self._held.append((rows, part))
            kinds = {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in part.items()}
            kinds |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in sums.items()}
            held = agreed(held, kinds)
        return Done(held)


def agreed(known: Kinds | None, more: Kinds | None) -> Kinds | None:
    """What both say, if they do not contradict each other."""
    if known is not None and more is not None and known != more:
        raise FedkeelError(
            f"the client rule sends or keeps {sorted(known)} for some clients and {sorted(more)} for others, "
            "or the same names in other shapes or types; make them the same for all clients"
        )
    return more if known is None else known
