"""The server's loop over events: dispatch, arrivals, aggregation, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.algorithms.rules import Cohort, Message, Updates, nbytes
from fedkeel.data.federated import FederatedData
from fedkeel.errors import DivergenceError
from fedkeel.experiment import Experiment
from fedkeel.fleet.clock import EventQueue
from fedkeel.fleet.profile import Fleet
from fedkeel.local.orders import Executor, Order, Score, Trained, gather, refuse_divergence
from fedkeel.params import FlatModel, Part
from fedkeel.runtime.clients import client_scores, local_accuracy, mean_score
from fedkeel.runtime.progress import Arrivals, Evaluation, RoundEnd, readable
from fedkeel.runtime.sampling import draw
from fedkeel.runtime.surveys import Surveys, follow, rows, uploaded

ARRIVES, BEGINS = 0, 1  # what comes first at one instant
_WITH_BUFFERS = ("all", "body")  # parts of a model that batch-norm statistics belong to


@dataclass(frozen=True)
class _Begin:
    """A round begins."""

    round: int


@dataclass(slots=True)
class _Flight:
    """A job on its way: the order and what the clock knows of it."""

    order: Order
    version: int
    dispatched: float
    bytes_down: int
    bytes_up: int
    """In surveys before it."""


class Simulation:
    """One run: a generator of rounds, whose state is plain tensors and numbers.

    Nothing is computed when a job is dispatched. When the first result is needed, every pending order runs as
    one stack; the virtual timeline never depends on the executor.
    """

    def __init__(
        self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor | None = None
    ) -> None:
        self.experiment = experiment
        self.data = data
        self.layout = model.layout
        self.executor = executor
        self.client_rule, self.rule = experiment.algorithm.rules()
        self.buffers = model.buffers
        self._initial = self.client_rule.initial(model.w.clone(), self.buffers)
        sizes = torch.from_numpy(data.sizes).to(model.w.device)
        self.state = self.rule.init(model.w.clone(), model.layout, sizes)
        self.version = 0
        self.queue: EventQueue[_Begin | _Flight] = EventQueue()
        self.bytes_up = self.bytes_down = self.updates = self.samples_trained = 0
        self.round_seconds: list[float] = []
        """Of each round: dispatch, local training and aggregation, without evaluation."""
        self._eligible = np.flatnonzero(data.sizes)
        moving = model.layout.mask(self.client_rule.trains).to(model.w.device)
        self._frozen = None if moving.all() else ~moving
        self._down, self._up = self._bytes(self.client_rule.downloads), self._bytes(self.client_rule.uploads)
        self._up += self.rule.numbers * self.state.w.element_size()
        self.fleet = Fleet(experiment.fleet, float(data.sizes[self._eligible].mean()) * experiment.local.epochs)
        self._jobs = 0
        self._kept: dict[int, Message] = {}
        self._pending: list[Order] = []
        self._results: dict[int, tuple[Trained, int]] = {}
        self._waiting = 0
        self._begun = 0.0
        self._arrived: list[tuple[_Flight, float]] = []
        self._draws: NDArray[np.int64] | None = None

    def _bytes(self, part: Part) -> int:
        """What a part of the model weighs on the wire."""
        weights = int(self.layout.mask(part).sum()) * self.state.w.element_size()
        return weights + (self.layout.buffer_bytes if part in _WITH_BUFFERS else 0)

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

    def first_orders(self) -> list[Order]:
        """What the first round will dispatch, for an executor to look at beforehand; this simulation is spent."""
        with warnings.catch_warnings(action="ignore"):  # of what is only tried
            self._begin(1, trial=True)
        return self._pending

    def _begin(self, round: int, trial: bool = False) -> None:
        """Draw clients, ask them what the server wants to know, and dispatch their jobs; in a trial, ask in passing."""
        self._begun = perf_counter()
        chosen, self._draws = draw(self.experiment, self.data.sizes, round)
        local, sizes = self.experiment.local, self.data.sizes[chosen]
        rate = local.lr * local.lr_decay ** (round - 1)
        lr = torch.full((local.epochs,), rate, dtype=self.state.w.dtype, device=self.state.w.device)
        orders = self._orders(chosen, round, lr)
        surveys = Surveys(self.client_rule.survey, orders, self.executor, trial)
        cohort = Cohort(torch.from_numpy(sizes[:, None]).to(lr.device), lr, self._drawn())
        self.state, brief = follow(self.rule.plan(self.state, cohort), surveys)
        delay = surveys.count * self.fleet.job_seconds(surveys.work(sizes, local)).max()
        seconds = delay + self.fleet.job_seconds(sizes * local.epochs)  # who runs out of time has used it
        self._waiting, self._arrived = len(orders), []
        for row, (order, more) in enumerate(zip(orders, rows(brief, len(orders)), strict=True)):
            order.received = {**order.received, **more} if more else order.received
            down = self._down + nbytes(order.received) + int(surveys.bytes_down[row])
            self.bytes_down += down
            flight = _Flight(order, self.version, self.queue.now, down, int(surveys.bytes_up[row]))
            self.queue.schedule(self.queue.now + float(seconds[row]), (ARRIVES, order.client), flight)
            self._pending.append(order)

    def _drawn(self) -> Tensor | None:
        return None if self._draws is None else torch.from_numpy(self._draws).to(self.state.w.device)

    def _orders(self, clients: NDArray[np.int64], round: int, lr: Tensor) -> list[Order]:
        done = self.fleet.epochs_done(len(lr), clients, self.experiment.seed, round)
        rates = {epochs: lr[:epochs] if epochs < len(lr) else lr for epochs in done.tolist()}
        first, self._jobs = self._jobs + 1, self._jobs + len(clients)
        return [
            Order(
                job=first + row,
                client=client,
                round=round,
                epochs=epochs,
                start=self.state.w,
                buffers=self.buffers,
                lr=rates[epochs],
                received=self.rule.send(self.state, client),
                kept=self._kept.get(client, self._initial),
            )
            for row, (client, epochs) in enumerate(zip(clients.tolist(), done.tolist(), strict=True))
        ]

    def _collect(self, orders: list[Order]) -> Trained:
        """The results of orders; computes all pending ones if they are not there yet."""
        if any(order.job not in self._results for order in orders):
            assert self.executor is not None
            trained = self.executor.train(self._pending)
            self._results.update({order.job: (trained, row) for row, order in enumerate(self._pending)})
            self._pending = []
        trained = gather([self._results.pop(order.job) for order in orders])
        refuse_divergence(orders, trained)
        self._keep(orders, trained)
        return trained

    def _keep(self, orders: list[Order], trained: Trained) -> None:
        """Each client's state in memory of its own, so that it does not hold on to a whole round's."""
        kept = trained.kept
        for row, order in enumerate(orders):
            if kept:
                self._kept[order.client] = {name: tensor[row].clone() for name, tensor in kept.items()}
            else:
                self._kept.pop(order.client, None)

    def _end_round(self, round: int, started: float) -> RoundEnd:
        self._arrived.sort(key=lambda item: item[0].order.job)
        orders = [flight.order for flight, _ in self._arrived]
        trained = self._collect(orders)
        samples = self.data.sizes[[order.client for order in orders]]
        weights = self._aggregate(orders, samples, trained)
        self.round_seconds.append(perf_counter() - self._begun)
        sent = uploaded(self.client_rule, trained).numpy() + [flight.bytes_up for flight, _ in self._arrived]
        up = (self._up + sent).tolist()
        arrivals = self._arrivals(samples.tolist(), trained, weights, up)
        self.bytes_up += sum(up)
        self.updates += len(orders)
        seen = samples * [order.epochs for order in orders]
        self.samples_trained += int(seen.sum())
        train_loss = float(np.average(trained.loss.numpy(), weights=seen))
        self.version += 1
        return RoundEnd(
            round=round,
            virtual_seconds=self.queue.now,
            seconds=self.round_seconds[-1],
            train_loss=train_loss,
            arrivals=arrivals,
            report={name: tensor.tolist() for name, tensor in self.rule.report(self.state).items()},
            evaluation=self._evaluate(round, train_loss, trained, started),
        )

    def _aggregate(self, orders: list[Order], samples: NDArray[np.int64], trained: Trained) -> list[float]:
        starts = [order.start for order in orders]
        common = all(start is starts[0] for start in starts)
        updates = Updates(
            w=trained.w,
            start=starts[0].expand(len(starts), -1) if common else torch.stack(starts),
            samples=torch.from_numpy(samples[:, None]).to(trained.w.device),
            epochs=torch.tensor([[order.epochs] for order in orders]),
            steps=trained.steps[:, None].to(trained.w.device),
            lr=trained.lr,
            messages=trained.messages,
            layout=self.layout,
            sums=trained.sums,
            asked=self.experiment.local.epochs,
            draws=self._drawn(),
            momentum=self.experiment.local.momentum,
            pull=self.client_rule.pull,
        )
        before = self.state.w
        self.state, weights = self.rule.aggregate(self.state, updates)
        if self._frozen is not None:  # not even by rounding in a mean of what is the same everywhere
            self.state = replace(self.state, w=torch.where(self._frozen, before, self.state.w))
        # Batch-norm statistics are averaged plainly, whatever the rule does with the weights.
        if self.layout.buffers and self.client_rule.uploads in _WITH_BUFFERS:
            counts = updates.samples[:, 0] if updates.draws is None else updates.draws
            self.buffers = counts.double() / counts.sum() @ trained.buffers
        return list(weights.tolist())

    def _arrivals(self, samples: list[int], trained: Trained, weights: list[float], bytes_up: list[int]) -> Arrivals:
        flights = [flight for flight, _ in self._arrived]
        epochs = [flight.order.epochs for flight in flights]
        return Arrivals(
            {
                "client": [flight.order.client for flight in flights],
                "round": [flight.order.round for flight in flights],
                "start_version": [flight.version for flight in flights],
                "staleness": [self.version - flight.version for flight in flights],
                "epochs": epochs,
                "steps": trained.steps.tolist(),
                "samples": samples,
                "learning_rates": readable(trained.lr, epochs),
                "weight": weights,
                "train_loss": trained.loss.tolist(),
                "bytes_up": bytes_up,
                "bytes_down": [flight.bytes_down for flight in flights],
                "dispatched": [flight.dispatched for flight in flights],
                "arrived": [time for _, time in self._arrived],
            }
        )

    def _evaluate(self, round: int, train_loss: float, trained: Trained, started: float) -> Evaluation | None:
        if round % self.experiment.evaluate_every and round != self.experiment.rounds:
            return None
        assert self.executor is not None
        if self.client_rule.global_model:
            score = self.executor.evaluate(self.evaluated, self.buffers)
        else:
            score = mean_score(self.client_scores())
        if not np.isfinite(score.loss):
            raise DivergenceError(
                f"training diverged in round {round}: the test loss is {score.loss} "
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
            local_accuracy=local_accuracy(trained, self.executor) if self.experiment.evaluate_local else None,
        )

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""
        kept = self._kept.get(client, self._initial)
        return self.client_rule.own(self.evaluated, self.buffers, kept)

    @property
    def took_part(self) -> list[int]:
        """The clients that keep something of an earlier job."""
        return sorted(self._kept)

    def client_scores(self) -> list[Score | None]:
        """Every client's own model on its own share of the test set."""
        assert self.executor is not None
        clients = range(len(self.data))
        return client_scores(clients, map(self.own, clients), self.executor.evaluate, self.data, self.experiment.seed)

    @property
    def evaluated(self) -> Tensor:
        """The weights that are tested and handed to the user."""
        return self.rule.evaluated(self.state)
