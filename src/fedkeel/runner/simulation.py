"""A simulated run: the server's core and the simulated world, driven round by round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.config.userdraw import Draw
from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.executor import Executor, Score
from fedkeel.local.work import seen, whole_jobs
from fedkeel.methods.job import Fresh
from fedkeel.methods.server import ServerState
from fedkeel.methods.types import Message
from fedkeel.params import FlatModel, Layout
from fedkeel.record.rows import Evaluation, Refused, RoundEnd, Unfinished
from fedkeel.record.standing import Rest, Standing
from fedkeel.runner.scores import client_scores, columns, global_scores, local_accuracy, mean_score, spreads
from fedkeel.runner.tuning import Tuning
from fedkeel.server import events as ev
from fedkeel.server.clients import Sent
from fedkeel.server.core import Core
from fedkeel.server.gate import Gate
from fedkeel.server.log import divergence
from fedkeel.server.model import GlobalModel
from fedkeel.server.paces import Barrier, Concurrency, Pace, Periodic, Stream
from fedkeel.server.sampling import draw
from fedkeel.server.stateful import Stateful
from fedkeel.server.waves import Drawing, JobSettings
from fedkeel.task.task import describe
from fedkeel.wire.orders import Order
from fedkeel.wire.sizes import Sizes
from fedkeel.wire.transform import Chain
from fedkeel.world.desk import Desk
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.flights import Begin, End, Flight, Request, Stray
from fedkeel.world.simulated import Simulated

_ROUNDS = 1000
_OUTPUTS = 200_000_000
"""Numbers that a model gives for a test set, beyond which they are not kept all at once."""


class Simulation(Stateful):
    """One run: a generator of rounds, whose state is plain tensors and numbers."""

    saved = ("over", "seconds", "round_seconds")
    parts = ("core", "world", "tuning")
    classes = (Begin, End, Flight, Fresh, Order, Refused, Request, Sent, ServerState, Stray, Unfinished)
    """What a snapshot is made of, beside plain values and tensors."""

    def __init__(self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor) -> None:
        self.experiment = experiment
        self.data = data
        self.task = experiment.objective
        self.tuning = Tuning(experiment)
        self.core = new_core(experiment, data, model)
        self.world = Simulated(
            self.core,
            Desk(executor, experiment.max_loss),
            Fleet.of(experiment.fleet, *whole_jobs(data.sizes, experiment.local), experiment.seed),
            data.sizes,
            experiment.faults,
            experiment.local,
            experiment.seed,
            first=first_kept(experiment, model),
        )
        self.over = False
        """Whether there is no round after the last one that was told."""
        self.seconds = 0.0
        """Real ones, of all rounds without evaluation."""
        self.round_seconds: list[float] = []
        """Of each of the last thousand rounds."""
        self._limit = inf if experiment.limit_seconds is None else experiment.limit_seconds
        self._started = self._begun = perf_counter()

    @property
    def executor(self) -> Executor:
        """Who trains and tests."""
        return self.world.desk.executor

    def release(self) -> None:
        """Let go of the executor: what is kept of a run needs no workers."""
        del self.world.desk.executor

    @property
    def round(self) -> int:
        """The one that is going on."""
        return self.core.round

    # The loop.

    def rounds(self) -> Iterator[RoundEnd]:
        """Run to the end, one item a round; whoever takes one may take a snapshot before the next."""
        self._begun = perf_counter()
        if not self.core.waves.number:
            self._started = self._begun
            self.world.carry_out(ev.WakeMe(ev.When.NOW))
        if self.over:
            return
        for event in self.world.events(self._limit):
            end = self._handle(event)
            if end is not None:
                yield end
                if self.over:
                    return
                self._begun = perf_counter()
        self.over = True
        end = self._handle(ev.TimeUp(self.world.now))
        if end is not None:
            yield end

    def _handle(self, event: ev.Event) -> RoundEnd | None:
        """What an event leads to; the round, if that ends with it."""
        commands = self.core.on(event)
        if not commands:
            return None
        events = deque[ev.Event]()
        while True:
            for command in commands:
                if isinstance(command, ev.RoundOver):
                    assert not events
                    return self._end_round(command)
                events.extend(self.world.carry_out(command))
            if not events:
                return None
            commands = self.core.on(events.popleft())

    def _end_round(self, told: ev.RoundOver) -> RoundEnd:
        seconds = perf_counter() - self._begun
        self.seconds += seconds
        self.round_seconds.append(seconds)
        del self.round_seconds[:-_ROUNDS]
        end = RoundEnd(
            round=told.round,
            virtual_seconds=told.virtual_seconds,
            seconds=seconds,
            train_loss=told.train_loss,
            arrivals=told.arrivals,
            unfinished=told.unfinished,
            refused=told.refused,
            report=dict(told.report),
            evaluation=self._evaluate(told) if told.evaluate else None,
        )
        enough = end.evaluation is not None and self.tuning.seen(end.evaluation, self._tested)
        self.over = self.core.over or enough
        return end

    def _tested(self) -> tuple[Tensor, Tensor] | None:
        """The global model as it is now, if there is one."""
        return self.evaluated if self.core.model.client_rule.global_model else None

    def _evaluate(self, told: ev.RoundOver) -> Evaluation:
        core, asked = self.core, self.experiment
        model = core.model.evaluated, core.model.buffers
        validation = outputs = clients = None
        if not core.model.client_rule.global_model:
            clients = self.client_scores()
            score = mean_score(clients)
            if self.data.validation is not None:
                validated = self.client_scores(on="validation")
                validation = mean_score(validated) if any(validated) else None
        else:
            if asked.evaluate_classes or asked.evaluate_clients:
                outputs = self.outputs()
            score = self.executor.evaluate(*model)
            if self.data.validation is not None:
                validation = self.executor.evaluate(*model, on="validation")
        if asked.evaluate_clients and clients is None:
            clients = self.client_scores(outputs)
        if not score.loss <= self.experiment.max_loss:
            what, lr = f"the test loss is {score.loss}", self.experiment.local.lr
            raise divergence(told.round, what, told.arrivals, lr)
        return Evaluation(
            round=told.round,
            version=core.model.version,
            virtual_seconds=told.virtual_seconds,
            wall_seconds=self.wall_seconds,
            metrics=describe(score.metrics),
            loss=score.loss,
            train_loss=told.train_loss,
            bytes_up=core.ledger.bytes_up,
            bytes_down=core.ledger.bytes_down,
            updates=core.ledger.updates,
            local_accuracy=local_accuracy(told.models, self.executor) if told.models else None,
            validation=None if validation is None else {"loss": validation.loss, **describe(validation.metrics)},
            **self._spreads(clients if asked.evaluate_clients else None),
            by_class=self.by_class(outputs) if asked.evaluate_classes and outputs is not None else None,
        )

    def _spreads(self, clients: list[Score | None] | None) -> dict[str, Any]:
        """Over clients, under the name that says whether they have test rows of their own."""
        name = "clients" if self.data.clients_have_tests else "clients_estimated"
        return {} if clients is None else {name: spreads(columns(clients, self.task), self.task)}

    def outputs(self) -> Tensor | None:
        """The global model's outputs for the whole test set, if there is one and they are not too many."""
        y = self.data.test.y
        if not self.core.model.client_rule.global_model or y.numel() * self.data.classes > _OUTPUTS:
            return None
        return self.executor.predict(*self.evaluated)

    def by_class(self, outputs: Tensor) -> dict[str, list[float | None]]:
        """Metrics of each class alone, from the outputs for the test set."""
        return self.task.by_class(outputs, self.data.test.y.to(outputs.device))

    # Checkpoints.

    def snapshot(self) -> dict[str, Any]:
        """Between two rounds, everything that the rest of the run depends on."""
        also = {"experiment": self.experiment.model_dump(), "wall_seconds": self.wall_seconds}
        return {**super().snapshot(), **also}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().restore(state)
        self._started = perf_counter() - state["wall_seconds"]

    # What a run leaves.

    @property
    def wall_seconds(self) -> float:
        """Real ones since the run began, without those between its being stopped and its going on."""
        return perf_counter() - self._started

    def standing(self) -> Standing:
        """What the run has come to so far, in numbers."""
        model, ledger = self.core.model, self.core.ledger
        tensors = [model.state.w, model.buffers, *model.state.memory.values()]
        return Standing(
            virtual_seconds=self.world.now,
            bytes_up=ledger.bytes_up,
            bytes_down=ledger.bytes_down,
            updates=ledger.updates,
            updates_refused=ledger.refused,
            uploads_turned_away=ledger.turned_away,
            jobs_lost=ledger.lost,
            jobs_in_flight=ledger.left,
            samples=ledger.samples,
            seconds=self.seconds,
            round_seconds=self.round_seconds,
            parameters=model.layout.size,
            global_model=model.client_rule.global_model,
            state_bytes=sum(tensor.nbytes for tensor in tensors),
        )

    @property
    def layout(self) -> Layout:
        """The parts of the model's flat vectors."""
        return self.core.model.layout

    @property
    def fleet(self) -> Fleet:
        """The devices."""
        return self.world.flights.fleet

    @property
    def evaluated(self) -> tuple[Tensor, Tensor]:
        """The model that is tested and handed to the user, (weights, buffers)."""
        return self.core.model.evaluated, self.core.model.buffers

    def rest(self) -> Rest:
        """What came after the last round; jobs that are still on their way are given up, so ask once."""
        self.world.flights.separate()
        core, flights = self.core, self.world.flights.by_client
        by_job = sorted(core.at_work.sent.values(), key=lambda sent: sent.order.job)
        core.leave([(sent, flights[sent.order.client]) for sent in by_job])
        return Rest(core.log.unfinished, core.log.refused)

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""
        model, kept = self.core.model, self.world.desk.kept.get(client, self.world.first)
        return model.client_rule.own(model.evaluated, model.buffers, kept)

    @property
    def took_part(self) -> list[int]:
        """The clients that keep something of an earlier job."""
        return sorted(self.world.desk.kept)

    def client_scores(self, outputs: Tensor | None = None, on: Held = "test") -> list[Score | None]:
        """Every client's own model on its own rows; `outputs` are the global model's for the test set."""
        clients, seed = range(len(self.data)), self.experiment.seed
        if outputs is not None:
            return global_scores(clients, outputs, self.task, self.data, seed)
        return client_scores(clients, map(self.own, clients), self.executor.evaluate, self.data, seed, on)


def new_core(experiment: Experiment, data: FederatedData, model: FlatModel) -> Core:
    """The server as the experiment has it, before the first round."""
    local, rules, samples, wire = experiment.local, experiment.algorithm.rules(), data.sizes, Chain(experiment.wire)
    client_rule, rule = rules
    settings = JobSettings(
        epochs=local.units,
        seen=partial(seen, local=local),
        lr=local.lr,
        rate=partial(local.rate, rounds=experiment.rounds),
        rounds=experiment.rounds,
        evaluate_every=experiment.evaluate_every,
        within=experiment.schedule.deadline_seconds,
        keep_models=experiment.evaluate_local,
    )
    return Core(
        settings,
        new_pace(experiment),
        GlobalModel(rules, model, samples, local.units, local.momentum, local.nesterov, local.curve),
        Gate(experiment.gate, model.layout, client_rule.uploads, len(samples), altered=bool(wire)),
        Sizes(client_rule, rule, model.layout, model.w.element_size(), wire, lambda: (data.label_counts() > 0).sum(1)),
        samples,
        new_drawing(experiment, samples),
    )


def first_kept(experiment: Experiment, model: FlatModel) -> Message:
    """What every client keeps before its first job."""
    rule = experiment.algorithm.rules()[0]
    travels = model.w[model.layout.mask(rule.uploads).to(model.w.device)]
    return {**rule.initial(model.w.clone(), model.buffers), **Chain(experiment.wire).initial(travels)}


def new_drawing(experiment: Experiment, samples: NDArray[np.int64]) -> Drawing:
    """Of clients; how often each was drawn can count only where a round waits for all of them."""
    counted = experiment.pace == "barrier" and not experiment.schedule.over_select

    def of_wave(wave: int, count: int, free: NDArray[np.bool_] | None) -> Draw:
        return draw(experiment.seed, wave, experiment.sampling, samples, count, free, counted)

    return of_wave


def new_pace(experiment: Experiment) -> Pace:
    """The pace that the experiment asks for, or that of its method."""
    wanted, schedule = experiment.participants, experiment.schedule
    match experiment.pace:
        case "barrier":
            return Barrier(wanted, schedule.over_select)
        case "stream":
            return Stream(wanted, schedule.over_select)
        case "periodic":
            return Periodic(wanted, seconds=schedule.trigger_seconds, busy_limit=experiment.busy_limit)
        case "concurrency":
            return Concurrency(wanted, busy_limit=experiment.concurrency)
