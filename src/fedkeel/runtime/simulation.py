"""The server's loop over events: dispatch, arrivals, aggregation, evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from fedkeel import streams
from fedkeel.algorithms.rules import Message, Updates, nbytes, stack
from fedkeel.data.federated import FederatedData
from fedkeel.errors import DivergenceError
from fedkeel.experiment import Experiment
from fedkeel.fleet.clock import EventQueue
from fedkeel.fleet.profile import Fleet
from fedkeel.local.orders import Executor, Order, Update
from fedkeel.params import FlatModel
from fedkeel.runtime.progress import Arrival, Evaluation, RoundEnd

ARRIVES, BEGINS = 0, 1  # what comes first at one instant


@dataclass(frozen=True)
class _Begin:
    """A round begins."""

    round: int


@dataclass(frozen=True)
class _Flight:
    """A job on its way: the order and what the clock knows of it."""

    order: Order
    version: int
    dispatched: float
    bytes_down: int


class Simulation:
    """One run: a generator of rounds, whose state is plain tensors and numbers.

    Nothing is computed when a job is dispatched. When the first result is needed, every pending order runs as
    one stack; the virtual timeline never depends on the executor.
    """

    def __init__(self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor) -> None:
        self.experiment = experiment
        self.data = data
        self.layout = model.layout
        self.executor = executor
        _, self.rule = experiment.algorithm.rules()
        self.state = self.rule.init(model.w.clone(), model.layout, len(data))
        self.buffers = model.buffers
        self.version = 0
        self.queue: EventQueue[_Begin | _Flight] = EventQueue()
        self.bytes_up = self.bytes_down = self.updates = self.samples_trained = 0
        self.training_seconds = 0.0
        self._eligible = np.flatnonzero(data.sizes)
        self.fleet = Fleet(experiment.fleet, float(data.sizes[self._eligible].mean()) * experiment.local.epochs)
        self._jobs = 0
        self._kept: dict[int, Message] = {}
        self._pending: list[Order] = []
        self._results: dict[int, Update] = {}
        self._waiting = 0
        self._arrived: list[tuple[_Flight, float]] = []

    def rounds(self) -> Iterator[RoundEnd]:
        """Run to the end, one item a round."""
        started = perf_counter()
        self.queue.schedule(0.0, (BEGINS,), _Begin(1))
        for event in self.queue:
            match event.what:
                case _Begin(round):
                    self._begin(round)
                case _Flight() as flight:
                    self._arrived.append((flight, event.time))
                    if len(self._arrived) < self._waiting:
                        continue
                    end = self._end_round(flight.order.round, started)
                    if not self._finished(end):
                        self.queue.schedule(event.time, (BEGINS,), _Begin(end.round + 1))
                    yield end

    def _finished(self, end: RoundEnd) -> bool:
        if end.round >= self.experiment.rounds:
            return True
        target = self.experiment.target_accuracy
        reached = target is not None and end.evaluation is not None and end.evaluation.accuracy >= target
        return self.experiment.stop_at_target and reached

    def _begin(self, round: int) -> None:
        rng = streams.generator(self.experiment.seed, "sampling", round)
        count = min(self.experiment.participants, len(self._eligible))
        chosen = np.sort(rng.choice(self._eligible, count, replace=False))
        self._waiting = count
        self._arrived = []
        for client in chosen.tolist():
            self._dispatch(client, round)

    def _dispatch(self, client: int, round: int) -> None:
        local = self.experiment.local
        received = self.rule.send(self.state, client)
        self._jobs += 1
        order = Order(
            job=self._jobs,
            client=client,
            round=round,
            start=self.state.w,
            buffers=self.buffers,
            lr=torch.full((local.epochs,), local.lr * local.lr_decay ** (round - 1), dtype=self.state.w.dtype),
            received=received,
            kept=self._kept.get(client, {}),
        )
        down = self._model_bytes(order.start) + nbytes(received)
        self.bytes_down += down
        seconds = self.fleet.job_seconds(int(self.data.sizes[client]) * local.epochs)
        flight = _Flight(order, self.version, self.queue.now, down)
        self.queue.schedule(self.queue.now + seconds, (ARRIVES, client), flight)
        self._pending.append(order)

    def _model_bytes(self, w: Tensor) -> int:
        """What a model weighs on the wire, buffers included."""
        return nbytes({"w": w}) + self.layout.buffer_bytes

    def _collect(self, order: Order) -> Update:
        """An order's result; computes all pending ones if it is not there yet."""
        if order.job not in self._results:
            self._results.update({u.order.job: u for u in self.executor.train(self._pending)})
            self._pending = []
        update = self._results.pop(order.job)
        _refuse_divergence(update)
        if update.kept:
            self._kept[order.client] = update.kept
        else:
            self._kept.pop(order.client, None)
        return update

    def _end_round(self, round: int, started: float) -> RoundEnd:
        begun = perf_counter()
        flights = sorted(self._arrived, key=lambda item: item[0].order.job)
        updates = [self._collect(flight.order) for flight, _ in flights]
        weights = self._aggregate(updates)
        self.training_seconds += perf_counter() - begun
        arrivals = [
            self._arrival(flight, time, update, weight)
            for (flight, time), update, weight in zip(flights, updates, weights, strict=True)
        ]
        self.bytes_up += sum(a.bytes_up for a in arrivals)
        self.updates += len(updates)
        seen = [u.samples * len(u.lr) for u in updates]
        self.samples_trained += sum(seen)
        train_loss = float(np.average([u.loss for u in updates], weights=seen))
        self.version += 1
        return RoundEnd(round, self.queue.now, train_loss, arrivals, self._evaluate(round, train_loss, started))

    def _aggregate(self, updates: list[Update]) -> list[float]:
        starts = [u.order.start for u in updates]
        common = all(start is starts[0] for start in starts)
        stacked = Updates(
            w=torch.stack([u.w for u in updates]),
            start=starts[0].expand(len(starts), -1) if common else torch.stack(starts),
            samples=torch.tensor([[u.samples] for u in updates]),
            steps=torch.tensor([[u.steps] for u in updates]),
            messages=stack([u.message for u in updates]),
        )
        self.state, weights = self.rule.aggregate(self.state, stacked)
        # Batch-norm statistics are averaged plainly, whatever the rule does with the weights.
        samples = stacked.samples[:, 0].double()
        self.buffers = samples / samples.sum() @ torch.stack([u.buffers for u in updates])
        return list(weights.tolist())

    def _arrival(self, flight: _Flight, time: float, update: Update, weight: float) -> Arrival:
        return Arrival(
            client=flight.order.client,
            round=flight.order.round,
            start_version=flight.version,
            staleness=self.version - flight.version,
            epochs=len(update.lr),
            steps=update.steps,
            samples=update.samples,
            learning_rates=update.lr,
            weight=weight,
            train_loss=update.loss,
            bytes_up=self._model_bytes(update.w) + nbytes(update.message),
            bytes_down=flight.bytes_down,
            dispatched=flight.dispatched,
            arrived=time,
        )

    def _evaluate(self, round: int, train_loss: float, started: float) -> Evaluation | None:
        if round % self.experiment.evaluate_every and round != self.experiment.rounds:
            return None
        score = self.executor.evaluate(self.evaluated, self.buffers)
        if not np.isfinite(score.loss):
            raise DivergenceError(
                f"training diverged in round {round}: the global model's test loss is {score.loss} "
                f"at learning rate {self.experiment.local.lr:g}; try a smaller one"
            )
        return Evaluation(
            round=round,
            version=self.version,
            virtual_seconds=self.queue.now,
            wall_seconds=perf_counter() - started,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=train_loss,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            updates=self.updates,
        )

    @property
    def evaluated(self) -> Tensor:
        """The weights that are tested and handed to the user."""
        return self.rule.evaluated(self.state)


def _refuse_divergence(update: Update) -> None:
    if np.isfinite(update.loss) and bool(torch.isfinite(update.w).all()):
        return
    order = update.order
    raise DivergenceError(
        f"training diverged in round {order.round} on client {order.client}: its loss is {update.loss} at learning "
        f"rate {update.lr[0]:g}; try a smaller local.lr, or local.clip_norm"
    )
