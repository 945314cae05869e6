"""The server's loop over events: dispatches, requests, arrivals, aggregation, evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import DivergenceError
from fedkeel.local.orders import Executor, Order, Score
from fedkeel.methods.server import Progress, ServerState
from fedkeel.params import FlatModel, Layout
from fedkeel.record.rows import Arrivals, Evaluation, Refused, RoundEnd, Unfinished
from fedkeel.record.standing import Rest, Standing
from fedkeel.runtime.clients import client_scores, local_accuracy, mean_score
from fedkeel.runtime.desk import AT_ONCE, Desk
from fedkeel.runtime.dispatch import Dispatcher
from fedkeel.runtime.flights import NOT_NEEDED, Begin, End, Flight, Flights, Request, Stray, What
from fedkeel.runtime.intake import Intake
from fedkeel.runtime.ledger import Ledger
from fedkeel.runtime.server import Server
from fedkeel.runtime.stateful import Stateful
from fedkeel.runtime.turns import Turns
from fedkeel.world.fleet.profile import Fleet


class Simulation(Stateful):
    """One run: a generator of rounds, whose state is plain tensors and numbers.

    One loop over one queue of events serves every pace. With a barrier, a round's updates are aggregated together; at
    every other pace an update is received when it arrives, and where there are no rounds, `per_round` arrivals are
    called one.
    """

    saved = ("round", "over", "_tested")
    classes = (Begin, End, Flight, Order, Refused, Request, ServerState, Stray, Unfinished)
    """What a snapshot is made of, beside plain values and tensors."""

    def __init__(
        self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor | None = None
    ) -> None:
        self.experiment = experiment
        self.data = data
        self.pace = experiment.pace
        self._wanted = experiment.participants
        self.server = Server(experiment, data, model)
        self.flights = Flights(Fleet.of(experiment.fleet, data.sizes, experiment.local.epochs, experiment.seed))
        self.turns = Turns(experiment, data.sizes, self.flights)
        self.desk = Desk(executor, experiment.gate.max_loss)
        self.ledger = Ledger()
        self.intake = Intake(experiment, data, self.server, self.flights, self.desk, self.ledger)
        first = self.server.client_rule.initial(model.w.clone(), model.buffers)
        self._dispatch = Dispatcher(experiment, data, self.server, self.flights, self.desk, first)
        self.round = 1
        """The one that is going on."""
        self.over = False
        """Whether there is none after the last one that was told."""
        self._limit = inf if experiment.limit_seconds is None else experiment.limit_seconds
        self._tested = False
        """Whether the model as it is after the last round was tested."""
        self._started = self._begun = perf_counter()

    @property
    def executor(self) -> Executor | None:
        """Who trains and tests."""
        return self.desk.executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        self.desk.executor = executor

    # The loop.

    def rounds(self) -> Iterator[RoundEnd]:
        """Run to the end, one item a round; whoever takes one may take a snapshot before the next."""
        self._begun = perf_counter()
        if not self.turns.wave:
            self._started = self._begun
            self.turns.schedule(0.0)
        for event in () if self.over else self.flights.queue.until(self._limit):
            end = self._handle(event.what)
            if end is not None:
                yield end
                if self.over:
                    return
                self._begun = perf_counter()
        if self.over:
            return
        if self.pace == "barrier":  # time is up in mid-round, and nobody waits for the others any more
            self.flights.give_back(self.intake.arrived)
            self.intake.arrived = []
        self.over = True
        if self.server.close() or self.intake.arrived or not self._tested:
            yield self._end_round(final=True)

    def _handle(self, what: What) -> RoundEnd | None:
        """What an event leads to; the round, if that ends with it."""
        if isinstance(what, Begin):
            self._begin()
            return None
        if isinstance(what, Stray):
            self.intake.stray(what)
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
            self._arrive(flight)
        return self._after()

    def _after(self) -> RoundEnd | None:
        """What comes after a job's end: the round's end, or somebody else's turn."""
        enough = len(self.intake.arrived) >= self._wanted
        if self.turns.in_rounds:
            if not enough and len(self.flights):
                return None
            for flight in [*self.flights.by_client.values()]:
                self._lose(flight, NOT_NEEDED)
            return self._end_round()
        if self.pace == "concurrency":
            self.turns.schedule(self.flights.now)
        return self._end_round() if enough else None

    def _lose(self, flight: Flight, why: str | None = None) -> None:
        self.desk.drop(flight)
        self.flights.lose(flight, why)
        self.turns.lost_job()

    def _finished(self, end: RoundEnd) -> bool:
        if end.round >= self.experiment.rounds:
            return True
        target = self.experiment.target_accuracy
        reached = target is not None and end.evaluation is not None and end.evaluation.accuracy >= target
        return self.experiment.stop_at_target and reached

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
        launched, count = 0, self.turns.due()
        if count:
            clients, draws = self.turns.draw(count)
            launched = len(clients)
            if launched:
                self._launch(clients, draws, trial)
        self.turns.plan(launched, count)

    def _launch(self, clients: NDArray[np.int64], draws: NDArray[np.int64] | None, trial: bool) -> None:
        planned = self.experiment.rounds * self._wanted
        progress = Progress(self.server.version, self.ledger.updates, planned, self._wanted)
        for flight in self._dispatch(clients, draws, self.round, self.turns.wave, progress, trial):
            self.ledger.bytes_down += flight.bytes_down
            self.ledger.bytes_up += flight.bytes_up
            self.flights.launch(flight)
            if not flight.asks and self.pace != "barrier":
                self.desk.add(flight)

    # What devices ask for and send.

    def _answer(self, flight: Flight) -> None:
        """A device asks for a fresh model: it gets the newest, if that is newer than what it has."""
        order, server = flight.order, self.server
        if server.version > order.version:
            w, buffers, version = server.state.w, server.buffers, server.version
            flight.order = replace(order, fresh=w, fresh_buffers=buffers, fresh_version=version)
            fetch = self.flights.fleet.download_seconds(np.array([order.client]), server.down)
            flight.bytes_down += server.down
            self.ledger.bytes_down += server.down
            self.flights.refresh(flight, float(fetch[0]))
        else:
            flight.order = replace(order, slot=0)
        self.flights.plan(flight)
        self.desk.add(flight)

    def _arrive(self, flight: Flight) -> None:
        """An upload is there, or should be: it waits for the others, or is received at once."""
        if self.pace == "barrier":
            self.intake.land(flight, 0)
            return
        # Of a round, no more than the server waits for; else whatever is known, wherever the run will end.
        most = self._wanted - len(self.intake.arrived) - 1 if self.pace == "stream" else AT_ONCE
        here = self.intake.land(flight, most)
        receipt = self.intake.receive(flight, most) if here else None
        if receipt is None:
            self.turns.lost_job()
            return
        self.turns.worked()
        for client in receipt.interrupt:
            other = self.flights.by_client[client]
            if other.finished > self.flights.now and self.flights.interrupt(other) and not other.asks:
                self.desk.add(other)

    # Rounds.

    def _end_round(self, final: bool = False) -> RoundEnd:
        """What a round came to; `final` where time is up in the middle of it."""
        round, intake = self.round, self.intake
        last = final or round >= self.experiment.rounds
        told = intake.aggregate() if self.pace == "barrier" and intake.arrived else intake.told
        if last and not final:
            self.server.close()
        seconds = perf_counter() - self._begun
        self.ledger.end_round(seconds)
        columns = told.columns
        seen = np.array(columns["samples"], dtype=np.int64) * np.array(columns["epochs"], dtype=np.int64)
        train_loss = float(np.average(columns["train_loss"], weights=seen)) if told else None
        self._tested = last or round % self.experiment.evaluate_every == 0
        if not self.server.state.w.sum().isfinite() and not self.server.state.w.isfinite().all():
            raise self._divergence("the global model holds numbers that are infinite or none", told)
        end = RoundEnd(
            round=round,
            virtual_seconds=self.flights.now,
            seconds=seconds,
            train_loss=train_loss,
            arrivals=told,
            unfinished=self.flights.take_unfinished(),
            refused=intake.refused,
            report={name: tensor.tolist() for name, tensor in self.server.rule.report(self.server.state).items()},
            evaluation=self._evaluate(told, train_loss) if self._tested else None,
        )
        if intake.arrived:
            self.turns.worked()
        elif not final:
            self.turns.empty_round()
        self.round += 1
        intake.begin(self.round)
        if self.turns.in_rounds:
            self.turns.schedule(self.flights.now)
        self.over = self.over or self._finished(end)
        return end

    def _divergence(self, what: str, told: Arrivals) -> DivergenceError:
        """Names the round, the learning rate, and the client that was worst off."""
        worst = told[int(np.argmax(told.columns["train_loss"]))] if told else None
        who = (
            f"at learning rate {self.experiment.local.lr:g}"
            if worst is None
            else f"the highest training loss was {worst.train_loss:g}, of client {worst.client} at "
            f"learning rate {worst.learning_rates[0]:g}"
        )
        return DivergenceError(f"training diverged in round {self.round}: {what}; {who}; try a smaller one")

    def _evaluate(self, told: Arrivals, train_loss: float | None) -> Evaluation:
        assert self.executor is not None
        if self.server.client_rule.global_model:
            score = self.executor.evaluate(self.server.evaluated, self.server.buffers)
        else:
            score = mean_score(self.client_scores())
        if not score.loss <= self.experiment.gate.max_loss:
            raise self._divergence(f"the test loss is {score.loss}", told)
        models = self.intake.models
        return Evaluation(
            round=self.round,
            version=self.server.version,
            virtual_seconds=self.flights.now,
            wall_seconds=self.wall_seconds,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=train_loss,
            bytes_up=self.ledger.bytes_up,
            bytes_down=self.ledger.bytes_down,
            updates=self.ledger.updates,
            local_accuracy=local_accuracy(models, self.executor) if models else None,
        )

    # Checkpoints.

    def snapshot(self) -> dict[str, Any]:
        """Between two rounds, everything that the rest of the run depends on."""
        parts = {name: part.snapshot() for name, part in self._parts.items()}
        also = {"experiment": self.experiment.model_dump(), "wall_seconds": self.wall_seconds}
        return {**super().snapshot(), **parts, **also}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().restore(state)
        for name, part in self._parts.items():
            part.restore(state[name])
        self._started = perf_counter() - state["wall_seconds"]

    @property
    def _parts(self) -> dict[str, Stateful]:
        return {
            "server": self.server,
            "flights": self.flights,
            "turns": self.turns,
            "desk": self.desk,
            "intake": self.intake,
            "gate": self.intake.gate,
            "ledger": self.ledger,
            "dispatch": self._dispatch,
        }

    # What a run leaves.

    def standing(self) -> Standing:
        """In numbers."""
        server, ledger = self.server, self.ledger
        tensors = [server.state.w, server.buffers, *server.state.memory.values()]
        return Standing(
            virtual_seconds=self.flights.now,
            bytes_up=ledger.bytes_up,
            bytes_down=ledger.bytes_down,
            updates=ledger.updates,
            updates_refused=ledger.refused,
            uploads_turned_away=ledger.turned_away,
            jobs_lost=self.flights.lost,
            jobs_in_flight=self.flights.left,
            samples=ledger.samples,
            seconds=ledger.seconds,
            round_seconds=ledger.round_seconds,
            parameters=server.layout.size,
            global_model=server.client_rule.global_model,
            state_bytes=sum(tensor.nbytes for tensor in tensors),
        )

    def rest(self) -> Rest:
        """What came after the last round; jobs that are still on their way are given up, so ask once."""
        return Rest(self.flights.close(), self.intake.refused)

    @property
    def layout(self) -> Layout:
        """The parts of the model's flat vectors."""
        return self.server.layout

    @property
    def fleet(self) -> Fleet:
        """The devices."""
        return self.flights.fleet

    @property
    def evaluated(self) -> tuple[Tensor, Tensor]:
        """The model that is tested and handed to the user, (weights, buffers)."""
        return self.server.evaluated, self.server.buffers

    @property
    def wall_seconds(self) -> float:
        """Real ones since the run began, without those between its being stopped and its going on."""
        return perf_counter() - self._started

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""
        kept = self.desk.kept.get(client, self._dispatch.first)
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
