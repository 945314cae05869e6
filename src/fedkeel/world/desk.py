"""Deferred training: nothing is computed when a job is dispatched.

When the first result is needed, everything whose inputs are known trains in as few stacks as possible; the virtual
timeline never depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.local.executor import Executor
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import Answers
from fedkeel.methods.types import Message
from fedkeel.server.stateful import Stateful
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Same, Trained, divergence, gather
from fedkeel.world.flights import Flight


class Desk(Stateful):
    """Jobs whose inputs are known, results that nobody has asked for yet, and what clients keep between jobs."""

    saved = ("kept", "_ready")

    def __init__(self, executor: Executor, max_loss: float) -> None:
        """A loss above `max_loss` counts as divergence."""
        self.executor = executor
        self._max_loss = max_loss
        self.kept: dict[int, Message] = {}
        self._ready: dict[int, Flight] = {}
        self._results: dict[int, tuple[Trained, int]] = {}

    def add(self, flight: Flight) -> None:
        """Its inputs are known; an earlier result for it does not count."""
        self._results.pop(flight.order.job, None)
        self._ready[flight.order.job] = flight

    def drop(self, flight: Flight) -> None:
        """It will not be asked for."""
        self._ready.pop(flight.order.job, None)
        self._results.pop(flight.order.job, None)

    def collect(self, orders: Orders, most: int) -> Trained:
        """The results of orders, by job; where some are missing, also computes the next `most` jobs to arrive."""
        known = self._ready or self._results
        trained = self._collected(orders, most) if known else self.train(orders)  # nothing to look up
        self._keep(orders, trained)
        return trained

    def _collected(self, orders: Orders, most: int) -> Trained:
        if orders.share is not None:  # their mean is wanted, so they train together, and nobody else with them
            for job in orders.numbers("job"):
                self._ready.pop(job, None)
            return self.train(orders)
        missing = [order for order in orders if order.job not in self._results]
        if missing:
            jobs = {order.job for order in missing}
            others = [f for f in self._ready.values() if not f.lost and f.order.job not in jobs]
            soon = [flight.order for flight in sorted(others, key=_arrival)[:most]]
            train = sorted([*missing, *soon], key=lambda order: order.job)
            trained = self.train(Orders.of(train))
            self._results.update({order.job: (trained, row) for row, order in enumerate(train)})
            for order in train:
                self._ready.pop(order.job, None)
        return gather([self._results.pop(order.job) for order in orders])

    def train(self, orders: Orders, limit: int | None = None) -> Trained:
        """The results of orders, without a trace in what clients keep; with `limit`, after so many steps."""
        return self.executor.train(orders, limit)

    def look_ahead(self, orders: Orders, trained: Trained, epochs: int, lr: Tensor) -> Trained:
        """Results with `Trained.completed`: the jobs that ended early are trained once more, for all epochs.

        They have the same start, mini-batches and rule, and leave no trace in what clients keep.
        """
        late = np.flatnonzero(orders.epochs < epochs)
        completed = trained.w
        if len(late):
            whole = orders.pick(late).but(epochs=np.full(len(late), epochs), lr=Same(lr, len(late)))
            rows = torch.from_numpy(late).to(completed.device)
            completed = completed.index_copy(0, rows, self.train(whole).w)
        return Trained({**trained.columns, "completed": completed})

    def ask(self, orders: Orders, told: Sequence[Message], rule: ClientRule, limit: int | None = None) -> Answers:
        """What clients answer to a survey; with `limit`, after so many steps."""
        assert rule.survey is not None
        received = [{**known, **more} for known, more in zip(orders.received, told, strict=True)]
        asked = orders.but(received=received, survey=Same(True, len(orders)))
        trained = self.train(asked, limit or rule.survey.limit)
        for row in torch.nonzero(~trained.finite)[:1, 0].tolist():
            raise divergence(asked[row], trained, row)
        return Answers(trained.messages, trained.sums, torch.tensor(asked.epochs)[:, None])

    def snapshot(self) -> dict[str, Any]:
        """Includes the results, because a job that is trained alone would differ by rounding from one in a stack."""
        results = {job: trained.pick(slice(row, row + 1)).columns for job, (trained, row) in self._results.items()}
        return {**super().snapshot(), "results": results}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set what a snapshot holds."""
        super().restore(state)
        self._results = {job: (Trained(columns), 0) for job, columns in state["results"].items()}

    def _keep(self, orders: Orders, trained: Trained) -> None:
        """Each client's state gets memory of its own, so that it does not keep a whole round's memory alive.

        A client whose training failed keeps what it had before.
        """
        kept = trained.kept
        if not kept and not self.kept:
            return
        sound = trained.sound(self._max_loss) if kept else []
        for row, client in enumerate(orders.numbers("client")):
            if not kept:
                self.kept.pop(client, None)
            elif sound[row]:
                self.kept[client] = {name: tensor[row].clone() for name, tensor in kept.items()}


def _arrival(flight: Flight) -> tuple[float, int]:
    return flight.arrives, flight.order.client
