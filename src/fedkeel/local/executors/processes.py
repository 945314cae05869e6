"""The executor that trains in worker processes, one a core with one thread each."""

from __future__ import annotations

import atexit
import mmap
import multiprocessing
import os
import signal
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.federated import Held
from fedkeel.errors import MishapError
from fedkeel.local.evaluation import BATCH, Evaluator, Part, together
from fedkeel.local.executor import Score
from fedkeel.local.executors import worker
from fedkeel.local.executors.memory import CAN_SHARE, Lender, Parcel
from fedkeel.local.executors.packing import pack
from fedkeel.local.executors.worker import (
    LESS_MEMORY,
    DeliverRequest,
    Done,
    Failed,
    Request,
    TestRequest,
    TrainRequest,
    agreed,
)
from fedkeel.local.trainer import Trainer, plan
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import SUM, Columns, Order, Trained

SHOWN = 5  # clients named in a message
_STOP_SECONDS = 5.0
_PAUSE = 0.5


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection


class Processes:
    """Workers are forked at the first use: they see data and model where they lie, and start in no time.

    Weights travel through shared memory. Work is drawn ticket by ticket, so that nobody idles while another has a
    queue; who draws which does not change a result. A worker dies with this process, whatever kills that.
    """

    def __init__(self, trainer: Trainer, evaluator: Evaluator, stack: int | None, workers: int) -> None:
        self._trainer, self._evaluator, self._stack, self._count = trainer, evaluator, stack, workers
        self._workers: list[_Worker] = []
        self._lender = Lender()
        self._tickets = self._parent = -1
        self._busy = np.zeros(0, dtype=np.int64)
        self._sent: Columns = {}

    def train(self, orders: Sequence[Order], limit: int | None = None) -> Trained:
        orders = Orders.of(orders)
        stacks = plan(orders, self._trainer.data, self._trainer.local, self._stack)
        packed, tensors = pack(orders)
        inputs = self._send({str(number): tensor for number, tensor in enumerate(tensors)})
        outputs, columns = self._lender.lend(self._numbers(orders))
        doing = [f"training {clients_in_words(orders, rows)}" for rows in stacks]
        replies = self._ask(TrainRequest(inputs, packed, stacks, limit, outputs), doing)
        held = reduce(agreed, (reply.held for reply in replies))
        if held:
            rows = {name: self._count if name.startswith(SUM) else len(orders) for name in held}
            more, rest = self._lender.lend({n: ((rows[n], *shape), dtype) for n, (shape, dtype) in held.items()})
            self._ask(DeliverRequest(more), [])
            columns |= {name: tensor.sum(0) if name.startswith(SUM) else tensor for name, tensor in rest.items()}
        return Trained(columns)

    def _numbers(self, orders: Orders) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        first, count = orders[0], len(orders)
        return {
            "w": ((count, 0 if orders.stay else len(first.start)), first.start.dtype),
            "buffers": ((count, *first.buffers.shape), first.buffers.dtype),
            "lr": ((count, max(order.epochs for order in orders)), first.lr.dtype),
            "steps": ((count,), torch.int64),
            "loss": ((count,), torch.float64),
            "finite": ((count,), torch.bool),
        }

    def _send(self, tensors: Columns) -> Parcel:
        parcel, places = self._lender.lend({name: (t.shape, t.dtype) for name, t in tensors.items()})
        for name, tensor in tensors.items():
            places[name].copy_(tensor)
        self._sent = places  # lent until the next request
        return parcel

    def evaluate(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None, on: Held = "test") -> Score:
        parts = self._tested(w, buffers, samples, on, not self._evaluator.task.adds_up)
        return self._evaluator.joined(parts, samples, on)

    def predict(self, w: Tensor, buffers: Tensor, on: Held = "test") -> Tensor:
        return together(self._tested(w, buffers, None, on, True))

    def _tested(self, w: Tensor, buffers: Tensor, samples: Tensor | None, on: Held, outputs: bool) -> list[Part]:
        """What comes of every batch."""
        batches = -(-self._evaluator.count(samples, on) // BATCH)
        if batches <= self._count:  # not worth a message
            return self._evaluator.parts(w, buffers, samples, range(batches), on, outputs)
        tensors = {"w": w, "buffers": buffers} | ({} if samples is None else {"samples": samples})
        replies = self._ask(TestRequest(self._send(tensors), on, outputs), ["testing the model"] * batches)
        parts = {number: part for reply in replies for number, part in reply.parts.items()}
        return [parts[number] for number in range(batches)]

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        for each in self._workers:
            with suppress(OSError):
                each.connection.send(None)
        self._end(_STOP_SECONDS)

    def _end(self, patience: float) -> None:
        for each in self._workers:
            each.process.join(patience)
            each.process.kill()
            each.process.join()
            each.process.close()
            each.connection.close()
        if self._tickets >= 0:
            os.close(self._tickets)
        self._workers, self._tickets, self._sent = [], -1, {}
        self._lender.close()

    def __del__(self) -> None:
        if self._workers and os.getpid() == self._parent:  # a fork of this process has a copy
            self._end(0)

    def _start(self) -> None:
        _open.add(self)
        context = multiprocessing.get_context("fork")
        draw, self._tickets = os.pipe()
        self._parent = os.getpid()
        self._busy = np.frombuffer(mmap.mmap(-1, 8 * self._count), dtype=np.int64)
        try:
            for number in range(self._count):
                ours, theirs = context.Pipe()
                post = worker.Post(self._parent, number, theirs, draw, self._busy)
                inherited = [self._tickets, ours.fileno(), *(each.connection.fileno() for each in self._workers)]
                process = context.Process(
                    target=worker.main, args=(post, inherited, self._trainer, self._evaluator), daemon=True
                )
                with warnings.catch_warnings():  # Python warns of forking beside threads: ours touch no lock of theirs
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours))
        except OSError as error:
            which = f"worker {len(self._workers) + 1} of {self._count}"
            raise MishapError(f"{which} could not be started ({error}); try fewer (executor.workers)") from error
        finally:
            os.close(draw)

    def _ask(self, request: Request, doing: Sequence[str]) -> list[Done]:
        """All workers' replies; `doing` says what each ticket means."""
        try:
            if not self._workers:
                self._start()
            self._busy[:] = -1
            with suppress(ConnectionError):  # whoever has died is reported below
                for each in self._workers:
                    each.connection.send(request)
                if doing:
                    self._hand_out([*range(len(doing)), *[worker.END] * self._count])
            return self._replies(doing)
        except BaseException:
            for each in self._workers:
                each.process.kill()
            self._end(_STOP_SECONDS)
            raise

    def _hand_out(self, tickets: Sequence[int]) -> None:
        rest = memoryview(b"".join(map(worker.TICKET.pack, tickets)))
        while rest:  # a signal may cut a long write short
            rest = rest[os.write(self._tickets, rest) :]

    def _replies(self, doing: Sequence[str]) -> list[Done]:
        waiting = {each.connection: number for number, each in enumerate(self._workers)}
        replies = []
        while waiting:
            for connection in wait(list(waiting), _PAUSE):  # so that an interruption from another thread is heard
                assert isinstance(connection, Connection)
                number = waiting.pop(connection)
                ticket = int(self._busy[number])
                what = doing[ticket] if ticket >= 0 else "handing over results"
                try:
                    reply: Done | Failed = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._died(number, what) from None
                if isinstance(reply, Failed):
                    raise reply.error(what)
                replies.append(reply)
        return replies

    def _died(self, number: int, what: str) -> MishapError:
        process = self._workers[number].process
        process.join(_STOP_SECONDS)
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        hint = f"; out of memory? {LESS_MEMORY}" if code == -signal.SIGKILL else ""
        return MishapError(f"a worker process {how} while {what}{hint}")


_open: WeakSet[Processes] = WeakSet()


@atexit.register  # before multiprocessing's own, which would wait for workers that do not hear its SIGTERM
def _end_all() -> None:
    for each in [*_open]:
        each.__del__()


def unavailable() -> str | None:
    """Why this process cannot have workers, if it cannot."""
    if not CAN_SHARE:
        return "workers need Linux"
    if multiprocessing.current_process().daemon:
        return "this is a worker of some pool itself, which may have no children"
    if torch.accelerator.is_available():  # autograd starts threads for it that a fork cannot have
        return "PyTorch sees an accelerator, and its autograd cannot be forked beside one"
    return None


def clients_in_words(orders: Sequence[Order], rows: Sequence[int]) -> str:
    """Of a stack, for messages."""
    shown = ", ".join(str(orders[row].client) for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"client{'s' * (len(rows) > 1)} {shown}{more} in round {orders[rows[0]].round}"
