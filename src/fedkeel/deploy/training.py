"""A job on a node: it trains in a thread of its own and may wait in its middle for a fresh model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from fedkeel.local.loop import Between
from fedkeel.methods.job import Fresh, Job
from fedkeel.wire.orders import Columns, Order
from fedkeel.world.remote.message import Message

Train = Callable[[Order, Between | None], Columns]
Finish = Callable[[Order, Columns], Message]
"""Makes the answer of a job, and keeps what is to be kept."""


class GivenUpError(Exception):
    """Nobody waits for the job any more."""


class Training(threading.Thread):
    """Trains an order; `answers` has what is to be sent, one after the other."""

    def __init__(
        self, order: Order, slot: int, stoppable: bool, turn: threading.Lock, train: Train, finish: Finish
    ) -> None:
        """It asks for a fresh model after `slot` epochs, unless that is 0; if `stoppable`, it can end early.

        Who has `turn` trains; nothing is kept of a job that was given up before it had it, or while it had it.
        """
        super().__init__(name=f"job-{order.job}", daemon=True)
        self.order = order
        self._slot, self._turn, self._train, self._finish = slot, turn, train, finish
        self._between: Between | None = self._middle if slot or stoppable else None
        self._fresh = queue.Queue[Fresh[int] | None]()
        self._answers: list[Message | BaseException] = []
        self._changed = threading.Condition()
        self._given_up = self._interrupted = False
        self._merged = 0
        """After how many epochs a fresh model was merged."""
        self._begun = monotonic()

    def run(self) -> None:
        """Train, and make the answer."""
        try:
            with self._turn:
                self._check()
                columns = self._train(self.order, self._between)
                self._check()
                made = self._finish(self.order, columns)
            facts: dict[str, Any] = {**made.facts, "slot": self._merged, "seconds": self._seconds()}
            self._put(replace(made, facts=facts))
        except BaseException as error:
            self._put(error)

    def _middle(self, job: Job, finished: int) -> Job | None:
        """Where another epoch begins."""
        self._check()
        if self._interrupted and finished > self._merged:
            self.order = replace(self.order, epochs=finished, lr=self.order.lr[:finished])
            return None
        if finished != self._slot:
            return job
        self._put(Message("ask", {"job": self.order.job, "slot": finished, "seconds": self._seconds()}))
        fresh = self._fresh.get()
        self._begun = monotonic()
        self._check()
        if fresh is None:
            return job
        self._merged = finished
        version = torch.full_like(job.version, fresh.version)
        slot = torch.full_like(job.slot, finished)
        return replace(job, fresh=Fresh(fresh.w[None], fresh.buffers[None], version), slot=slot)

    def _check(self) -> None:
        if self._given_up:
            raise GivenUpError("the server gave up the job")

    def _seconds(self) -> float:
        """Since it was asked to work."""
        return monotonic() - self._begun

    def _put(self, answer: Message | BaseException) -> None:
        with self._changed:
            self._answers.append(answer)
            self._changed.notify_all()

    def answer(self, number: int) -> Message:
        """Its first or second answer, when that is there; the same again for a message that came twice.

        A job that asked for nothing has only one.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._answers) > number or self._over)
            found = self._answers[min(number, len(self._answers) - 1)]
        if isinstance(found, BaseException):
            raise found
        return found

    @property
    def _over(self) -> bool:
        return bool(self._answers) and not self.waits

    @property
    def _raised(self) -> bool:
        return bool(self._answers) and isinstance(self._answers[-1], BaseException)

    @property
    def failed(self) -> bool:
        """Whether there is no result and will be none."""
        return self._given_up or self._raised

    @property
    def waits(self) -> bool:
        """Whether it has asked for a fresh model."""
        return len(self._answers) == 1 and isinstance(self._answers[0], Message) and self._answers[0].kind == "ask"

    def go_on(self, fresh: Fresh[int] | None) -> None:
        """Hand over a fresh model, or let it go on without."""
        self._fresh.put(fresh)

    def interrupt(self) -> None:
        """End with the epoch that is going on, or after a merge with the epoch after that."""
        self._interrupted = True

    def give_up(self) -> None:
        """End without an answer, as soon as an epoch ends."""
        self._given_up = True
        self._fresh.put(None)
