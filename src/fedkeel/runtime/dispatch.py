"""From drawn clients to jobs on their way: surveys, orders, and what they take on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.local.orders import Order
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import Cohort, Progress
from fedkeel.methods.types import Message, nbytes
from fedkeel.runtime.desk import Desk
from fedkeel.runtime.flights import LEFT, TOO_LATE, Flight, Flights
from fedkeel.runtime.server import Server
from fedkeel.runtime.stateful import Stateful
from fedkeel.runtime.surveys import Surveys, follow, rows, uploaded
from fedkeel.world.faults import HANG, LEAVE


class Dispatcher(Stateful):
    """Sends jobs out, wave after wave."""

    saved = ("first", "jobs", "_message_bytes", "_before")

    def __init__(
        self, experiment: Experiment, data: FederatedData, server: Server, flights: Flights, desk: Desk, first: Message
    ) -> None:
        self._experiment, self._data, self._server, self._desk = experiment, data, server, desk
        self._flights = flights
        self.first = first
        """What a client keeps before its first job."""
        self.jobs = 0
        """So far."""
        self._message_bytes: int | None = None
        self._before: dict[int, int] = {}
        """Each client's last job, where devices may send that again."""

    def __call__(
        self,
        clients: NDArray[np.int64],
        draws: NDArray[np.int64] | None,
        round: int,
        wave: int,
        progress: Progress,
        trial: bool,
    ) -> list[Flight]:
        """Ask clients what the server wants to know, and send them their jobs; in a trial, ask in passing."""
        local, fleet, server, sizes = (
            self._experiment.local,
            self._flights.fleet,
            self._server,
            self._data.sizes[clients],
        )
        epochs, rate = server.rule.work(local.epochs, local.lr * local.lr_decay ** (round - 1), progress)
        lr = torch.full((epochs,), rate, dtype=server.state.w.dtype, device=server.state.w.device)
        orders = self._orders(clients, lr, round, wave)
        surveys = Surveys(server.client_rule.survey, orders, self._desk.executor, trial)
        counted = None if draws is None else torch.from_numpy(draws).to(lr.device)
        cohort = Cohort(torch.from_numpy(sizes[:, None]).to(lr.device), lr, counted)
        server.state, brief = follow(server.rule.plan(server.state, cohort), surveys)
        for order, more in zip(orders, rows(brief, len(orders)), strict=True):
            order.received = {**order.received, **more} if more else order.received
        down = np.array([server.down + nbytes(order.received) for order in orders]) + surveys.bytes_down
        delay = 0.0
        if surveys.count:
            answers = fleet.upload_seconds(clients, surveys.bytes_up)
            delay = float((surveys.count * fleet.train_seconds(clients, surveys.work(sizes, local)) + answers).max())
        sent = np.broadcast_to(0 if trial else self._upload_bytes(orders), len(orders))
        counts = [1] * len(orders) if draws is None else draws.tolist()
        return self._fly(orders, counts, epochs, (down, surveys.bytes_up, sent), delay)

    def _fly(
        self,
        orders: Sequence[Order],
        counts: Sequence[int],
        epochs: int,
        traffic: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        delay: float,
    ) -> list[Flight]:
        """What the clock knows of jobs of so many epochs, which begin so much later because of surveys.

        `traffic` is the bytes that go down, those that went up in surveys, and those of the uploads.
        """
        experiment, fleet, now = self._experiment, self._flights.fleet, self._flights.now
        wave, (down, asked, sent) = orders[0].wave, traffic
        clients = np.array([order.client for order in orders])
        began = now + (fleet.download_seconds(clients, down) + delay)
        seconds = fleet.train_seconds(clients, self._data.sizes[clients] * epochs)  # also of who runs out of time
        faults, shares = [""] * len(orders), np.zeros(len(orders))
        if any(experiment.faults.chances):
            faults, shares = experiment.faults.draw(clients, experiment.seed, wave)
        pause = experiment.faults.hang_seconds * np.array([fault == HANG for fault in faults])
        ends = {
            LEFT: np.where([fault == LEAVE for fault in faults], began + seconds * shares, np.nan),
            "dropped out": began + seconds * fleet.fails_at(clients, experiment.seed, wave),
            "went offline": fleet.off_at(clients, now),
            TOO_LATE: np.full(len(clients), now + (experiment.schedule.deadline_seconds or np.inf)),
        }
        fails = np.fmin.reduce([*ends.values()])
        why = np.select([times == fails for times in ends.values()], [*ends], "")
        up = fleet.upload_seconds(clients, sent)
        columns = (began, seconds / epochs, began + seconds + pause, up, fails, why)
        told = zip(
            orders,
            down.tolist(),
            asked.tolist(),
            repeat(now, len(orders)),
            *(column.tolist() for column in columns),
            counts,
            faults,
            pause.tolist(),
            sent.tolist(),
            map(self._last, orders),
            strict=True,
        )
        return [Flight(*row) for row in told]  # in the order of its fields: there may be thousands

    def _last(self, order: Order) -> int:
        """The client's job before this one, where devices may send that again."""
        if not self._experiment.faults.old_job:
            return 0
        before = self._before.get(order.client, 0)
        self._before[order.client] = order.job
        return before

    def _orders(self, clients: NDArray[np.int64], lr: Tensor, round: int, wave: int) -> list[Order]:
        seed, server, asked = self._experiment.seed, self._server, len(lr)
        done = self._flights.fleet.epochs_done(asked, clients, seed, wave).tolist()
        rates = {epochs: lr[:epochs] if epochs < asked else lr for epochs in done}
        slots = self._asks(clients, wave)
        orders = []
        for row, (client, epochs) in enumerate(zip(clients.tolist(), done, strict=True)):
            received, kept = server.rule.send(server.state, client), self._desk.kept.get(client, self.first)
            slot = server.client_rule.asks_after(kept, received, asked, slots[row]) if slots else 0
            self.jobs += 1
            orders.append(
                Order(
                    job=self.jobs,
                    client=client,
                    round=round,
                    epochs=epochs,
                    start=server.state.w,
                    buffers=server.buffers,
                    lr=rates[epochs],
                    received=received,
                    kept=kept,
                    wave=wave,
                    version=server.version,
                    slot=slot if slot < epochs else 0,
                )
            )
        return orders

    def _asks(self, clients: NDArray[np.int64], wave: int) -> list[tuple[float, float]]:
        """What clients may use to choose their slots; nothing where the rule has none."""
        if type(self._server.client_rule).asks_after is ClientRule.asks_after:
            return []
        drawn = streams.uniform(streams.keys(self._experiment.seed, "slot", wave, clients), 2)
        return [(one, two) for one, two in drawn.tolist()]

    def _upload_bytes(self, orders: Sequence[Order]) -> NDArray[np.int64] | int:
        """Of each upload, so that the clock knows beforehand how long it takes.

        What a rule sends beside the weights shows after one step of a job, and is as large in all jobs but with a rule
        that says otherwise.
        """
        rule, executor = self._server.client_rule, self._desk.executor
        if np.isinf(self._flights.fleet.uplink).all() and not any(self._experiment.faults.chances):
            return 0
        assert executor is not None
        if rule.ragged:
            return self._server.up + uploaded(rule, executor.train(orders, 1)).numpy()
        if self._message_bytes is None:
            self._message_bytes = int(uploaded(rule, executor.train(orders[:1], 1))[0])
        return self._server.up + self._message_bytes
