"""The server's loop over events: dispatches, requests, arrivals, aggregation, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, inf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.algorithms.rules import Progress, Receipt, View
from fedkeel.data.federated import FederatedData
from fedkeel.errors import DivergenceError, FedkeelError
from fedkeel.experiment import Experiment
from fedkeel.fleet.profile import Fleet
from fedkeel.local.orders import Executor, Order, Score, Trained
from fedkeel.params import FlatModel
from fedkeel.runtime.clients import client_scores, local_accuracy, mean_score
from fedkeel.runtime.desk import AT_ONCE, Desk
from fedkeel.runtime.dispatch import Dispatcher
from fedkeel.runtime.flights import BEGINS, Begin, Flight, Flights, Request, What
from fedkeel.runtime.progress import Arrivals, Evaluation, RoundEnd
from fedkeel.runtime.records import Columns, columns, merging, patch
from fedkeel.runtime.sampling import draw
from fedkeel.runtime.server import Server
from fedkeel.runtime.surveys import uploaded

STARVED = 1000
"""Rounds in a row that came to nothing, or dispatches to nobody, after which a run is given up; without rounds, so many
jobs, or ten times as many as there are clients."""


class Simulation:
    """One run: a generator of rounds, whose state is plain tensors and numbers.

    One loop over one queue of events serves every pace. With a barrier, a round's updates are aggregated together; at
    every other pace an update is received when it arrives, and where there are no rounds, `per_round` arrivals are
    called one.
    """

    def __init__(
        self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor | None = None
    ) -> None:
        self.experiment = experiment
        self.data = data
        self.pace = experiment.pace
        self._in_rounds = self.pace in ("barrier", "stream")
        self._wanted = experiment.participants
        self.server = Server(experiment, data, model)
        self.flights = Flights(Fleet.of(experiment.fleet, data.sizes, experiment.local.epochs, experiment.seed))
        self.desk = Desk(executor)
        self._initial = self.server.client_rule.initial(model.w.clone(), model.buffers)
        self._dispatch = Dispatcher(experiment, data, self.server, self.flights, self.desk, self._initial)
        self.round = 1
        """The one that is going on."""
        self.bytes_up = self.bytes_down = self.updates = self.refused = self.samples_trained = 0
        self.round_seconds: list[float] = []
        """Of each round: dispatch, local training and aggregation, without evaluation."""
        self._limit = inf if experiment.limit_seconds is None else experiment.limit_seconds
        self._wave = self._in_vain = 0
        self._awaited: set[float] = set()
        """When dispatches are planned because a device comes on."""
        self._begun = self._started = 0.0
        self._arrived: list[Flight] = []
        """Of the round that is going on."""
        self._told: Columns = {}
        """What is to be recorded of those that were received at once."""
        self._models: list[tuple[Tensor, Tensor]] = []
        """As they came back, where they are to be tested."""

    @property
    def executor(self) -> Executor | None:
        """Who trains and tests."""
        return self.desk.executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        self.desk.executor = executor

    # The loop.

    def rounds(self) -> Iterator[RoundEnd]:
        """Run to the end, one item a round."""
        self._started = self._begun = perf_counter()
        tested = False
        self._schedule(0.0)
        for event in self.flights.queue.until(self._limit):
            end = self._handle(event.what)
            if end is None:
                continue
            yield end
            if self._finished(end):
                return
            tested = end.evaluation is not None
            self._begun = perf_counter()
        if self.pace == "barrier":  # time is up in mid-round, and nobody waits for the others any more
            self.flights.give_back(self._arrived)
            self._arrived = []
        if self.server.close() or self._arrived or not tested:
            yield self._end_round(final=True)

    def _handle(self, what: What) -> RoundEnd | None:
        """What an event leads to; the round, if that ends with it."""
        if isinstance(what, Begin):
            self._begin()
            return None
        flight = self.flights.find(what)
        if flight is None:  # it was planned differently since
            return None
        if isinstance(what, Request):
            self._answer(flight)
            return None
        if flight.lost:
            self._lose(flight)
        else:
            self.flights.land(flight)
            self._arrive(flight)
        return self._after()

    def _after(self) -> RoundEnd | None:
        """What comes after a job's end: the round's end, or somebody else's turn."""
        enough = len(self._arrived) >= self._wanted
        if self._in_rounds:
            if not enough and len(self.flights):
                return None
            for flight in [*self.flights.by_client.values()]:
                self._lose(flight, "not needed")
            return self._end_round()
        if self.pace == "concurrency":
            self._schedule(self.flights.now)
        return self._end_round() if enough else None

    def _lose(self, flight: Flight, why: str | None = None) -> None:
        self.desk.drop(flight)
        self.flights.lose(flight, why)
        if not self._in_rounds:
            self._starve(max(STARVED, 10 * len(self.data)))

    def _finished(self, end: RoundEnd) -> bool:
        if end.round >= self.experiment.rounds:
            return True
        target = self.experiment.target_accuracy
        reached = target is not None and end.evaluation is not None and end.evaluation.accuracy >= target
        return self.experiment.stop_at_target and reached

    def _schedule(self, time: float) -> None:
        self.flights.queue.schedule(time, (BEGINS,), Begin())

    # Dispatches.

    def first_orders(self) -> list[Order]:
        """What is dispatched first, for an executor to look at beforehand; this simulation is spent."""
        with warnings.catch_warnings(action="ignore"):  # of what is only tried
            while not self.flights.by_client:
                self._begin(trial=True)
                if not self.flights.by_client:
                    next(iter(self.flights.queue))  # nobody is on yet: what is planned for later comes now
        return [flight.order for flight in self.flights.by_client.values()]

    def _begin(self, trial: bool = False) -> None:
        """Draw clients and dispatch their jobs, and plan when to do so again."""
        wanted, seconds = self._wanted, self.experiment.schedule.trigger_seconds
        if self._in_rounds:
            count = wanted + ceil(wanted * self.experiment.schedule.over_select - 1e-9)
        elif self.pace == "periodic":
            count = min(wanted, self.experiment.busy_limit - len(self.flights))
        else:
            count = self.experiment.concurrency - len(self.flights)
        launched = 0
        if count > 0:
            self._wave += 1
            clients, draws = draw(self.experiment, self.data.sizes, self._wave, count, self.flights.free())
            launched = len(clients)
            if launched:
                self._launch(clients, draws, trial)
            elif not len(self.flights):
                self._starve(STARVED)
        nobody = not launched and not len(self.flights)
        now, later = self.flights.now, self._next_on() if launched < count else inf
        if self.pace == "periodic":
            self._schedule(now + seconds * (max(1, ceil((later - now) / seconds)) if nobody else 1))
        elif (nobody or self.pace == "concurrency") and now < later < inf and later not in self._awaited:
            self._awaited = {time for time in self._awaited if time > now} | {later}
            self._schedule(later)

    def _next_on(self) -> float:
        """When the next device that could be given a job comes on; now, if one is on; infinite if all are at work."""
        idle = np.flatnonzero((self.data.sizes > 0) & self.flights.idle)
        return self.flights.fleet.next_on(self.flights.now, idle) if len(idle) else inf

    def _starve(self, limit: int) -> None:
        """Something came to nothing, once more in a row."""
        self._in_vain += 1
        if self._in_vain > limit:
            what = "rounds" if self._in_rounds else "jobs"
            raise FedkeelError(
                f"the server starves: {limit} {what} in a row came to nothing, or nobody was there, until "
                f"{self.flights.now:g} virtual seconds; devices fail, are off, or miss the deadline (fleet.dropout, "
                "fleet.availability, schedule.deadline_seconds)"
            )

    def _launch(self, clients: NDArray[np.int64], draws: NDArray[np.int64] | None, trial: bool) -> None:
        progress = Progress(self.server.version, self.updates, self._planned, self._wanted)
        for flight in self._dispatch(clients, draws, self.round, self._wave, progress, trial):
            self.bytes_down += flight.bytes_down
            self.bytes_up += flight.bytes_up
            self.flights.launch(flight)
            if not flight.asks and self.pace != "barrier":
                self.desk.add(flight)

    @property
    def _planned(self) -> int:
        return self.experiment.rounds * self._wanted

    # What devices ask for and send.

    def _answer(self, flight: Flight) -> None:
        """A device asks for a fresh model: it gets the newest, if that is newer than what it has."""
        order, server = flight.order, self.server
        if server.version > order.version:
            w, buffers, version = server.state.w, server.buffers, server.version
            flight.order = replace(order, fresh=w, fresh_buffers=buffers, fresh_version=version)
            fetch = self.flights.fleet.download_seconds(np.array([order.client]), server.down)
            flight.bytes_down += server.down
            self.bytes_down += server.down
            self.flights.refresh(flight, float(fetch[0]))
        else:
            flight.order = replace(order, slot=0)
        self.flights.plan(flight)
        self.desk.add(flight)

    def _arrive(self, flight: Flight) -> None:
        """An upload is there: it waits for the others, or is received at once."""
        self._in_vain = 0
        self._arrived.append(flight)
        if self.pace == "barrier":
            return
        # Of a round, no more than the server waits for; else whatever is known, wherever the run will end.
        wanted = self._wanted - len(self._arrived) if self.pace == "stream" else AT_ONCE
        trained = self.desk.collect([flight.order], wanted)
        order = flight.order
        view = View(
            time=self.flights.now,
            version=self.server.version,
            round=self.round,
            client=order.client,
            start_version=order.version,
            fresh_version=order.fresh_version if flight.merged is not None else None,
            seconds=self.flights.now - flight.dispatched,
            busy=self.flights.versions,
            held=self.flights.held,
        )
        receipt = self.server.receive(flight, trained, view)
        self.refused += not receipt.accepted
        self._record(flight, trained, view, receipt)
        for client in receipt.interrupt:
            other = self.flights.by_client[client]
            if other.finished > self.flights.now and self.flights.interrupt(other) and not other.asks:
                self.desk.add(other)

    def _record(self, flight: Flight, trained: Trained, view: View, receipt: Receipt) -> None:
        """Write down an update that was received at once."""
        said = trained.messages if flight.merged is not None else {}
        notes = {name: float(said[name][0]) for name in self.server.client_rule.recorded if name in said}
        notes |= receipt.notes
        sent = self._count([flight], trained)
        row = columns([flight], self.data.sizes, trained, [receipt.weight], sent, view.version)
        row |= merging([flight]) | {"accepted": [receipt.accepted], "notes": [notes or None]}
        for name, column in row.items():
            self._told.setdefault(name, []).extend(column)
        if receipt.earlier:
            patch(self._told["weight"], receipt.earlier)
        if self.experiment.evaluate_local:
            self._models.append((trained.w[0], trained.buffers[0]))

    def _count(self, flights: Sequence[Flight], trained: Trained) -> list[int]:
        """Count them in; returns the bytes that each of them sent."""
        sent = self.server.up + uploaded(self.server.client_rule, trained).numpy()
        self.bytes_up += int(sent.sum())
        up: list[int] = (sent + [flight.bytes_up for flight in flights]).tolist()
        self.updates += len(flights)
        self.samples_trained += sum(int(self.data.sizes[f.order.client]) * f.order.epochs for f in flights)
        return up

    # Rounds.

    def _aggregate(self) -> Columns:
        """The new model from what has come of a round with a barrier."""
        flights = sorted(self._arrived, key=lambda flight: flight.order.job)
        trained = self.desk.collect([flight.order for flight in flights], 0)
        version = self.server.version
        weights = self.server.aggregate(flights, trained)
        if self.experiment.evaluate_local:
            self._models = list(zip(trained.w, trained.buffers, strict=True))
        sent = self._count(flights, trained)
        return columns(flights, self.data.sizes, trained, weights, sent, version)

    def _end_round(self, final: bool = False) -> RoundEnd:
        """What a round came to; `final` where time is up in the middle of it."""
        round, barrier = self.round, self.pace == "barrier"
        last = final or round >= self.experiment.rounds
        told = self._aggregate() if barrier and self._arrived else self._told
        if last and not final:
            self.server.close()
        self.round_seconds.append(perf_counter() - self._begun)
        seen = np.array(told.get("samples", []), dtype=np.int64) * np.array(told.get("epochs", []), dtype=np.int64)
        train_loss = float(np.average(told["train_loss"], weights=seen)) if told else None
        test = last or round % self.experiment.evaluate_every == 0
        end = RoundEnd(
            round=round,
            virtual_seconds=self.flights.now,
            seconds=self.round_seconds[-1],
            train_loss=train_loss,
            arrivals=Arrivals(told),
            unfinished=self.flights.take_unfinished(),
            report={name: tensor.tolist() for name, tensor in self.server.rule.report(self.server.state).items()},
            evaluation=self._evaluate(round, train_loss) if test else None,
        )
        if self._in_rounds and not self._arrived and not final:
            self._starve(STARVED)
        self._arrived, self._told, self._models = [], {}, []
        self.round += 1
        if self._in_rounds:
            self._schedule(self.flights.now)
        return end

    def _evaluate(self, round: int, train_loss: float | None) -> Evaluation:
        assert self.executor is not None
        if self.server.client_rule.global_model:
            score = self.executor.evaluate(self.server.evaluated, self.server.buffers)
        else:
            score = mean_score(self.client_scores())
        if not np.isfinite(score.loss):
            raise DivergenceError(
                f"training diverged in round {round}: the test loss is {score.loss} "
                f"at learning rate {self.experiment.local.lr:g}; try a smaller one"
            )
        return Evaluation(
            round=round,
            version=self.server.version,
            virtual_seconds=self.flights.now,
            wall_seconds=perf_counter() - self._started,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=train_loss,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            updates=self.updates,
            local_accuracy=local_accuracy(self._models, self.executor) if self._models else None,
        )

    # What a run leaves.

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""
        kept = self.desk.kept.get(client, self._initial)
        return self.server.client_rule.own(self.server.evaluated, self.server.buffers, kept)

    @property
    def took_part(self) -> list[int]:
        """The clients that keep something of an earlier job."""
        return sorted(self.desk.kept)

    def client_scores(self) -> list[Score | None]:
        """Every client's own model on its own share of the test set."""
        assert self.executor is not None
        clients = range(len(self.data))
        return client_scores(clients, map(self.own, clients), self.executor.evaluate, self.data, self.experiment.seed)
