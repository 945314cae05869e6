"""One run, driven round by round: the server's core and a world, simulated or real."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.executor import Score
from fedkeel.methods.job import Fresh
from fedkeel.methods.server import ServerState
from fedkeel.params import Layout
from fedkeel.record.rows import Evaluation, Refused, RoundEnd, Unfinished
from fedkeel.record.standing import Rest, Standing
from fedkeel.runner.scores import columns, spreads
from fedkeel.runner.tuning import Tuning
from fedkeel.server import events as ev
from fedkeel.server.clients import Sent
from fedkeel.server.core import Core
from fedkeel.server.log import divergence
from fedkeel.server.stateful import Stateful
from fedkeel.task.task import describe
from fedkeel.wire.orders import Order

_ROUNDS = 1000
OUTPUTS = 200_000_000
"""Numbers that a model gives for a test set, beyond which they are not kept all at once."""
STATE = (Fresh, Order, Refused, Sent, ServerState, Unfinished)
"""What the snapshot of a server is made of, beside plain values and tensors."""
Models = Sequence[tuple[Tensor, Tensor]]


class World(Protocol):
    """Carries out commands and reports events; see `server/events.py`."""

    @property
    def now(self) -> float:
        """Its time in seconds."""
        ...

    def events(self, limit: float) -> Iterator[ev.Event]:
        """The events up to a time, one after the other; commands between two of them may lead to more."""
        ...

    def carry_out(self, command: ev.Command) -> list[ev.Event]:
        """Do what the server asks; returns the events that this causes at once."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Its state."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True)
class Tests:
    """What tests of the current model came to."""

    __test__ = False

    score: Score
    validation: Score | None = None
    clients: list[Score | None] | None = None
    """Client by client, where that was asked for."""
    by_class: dict[str, list[float | None]] | None = None
    local_accuracy: dict[str, float] | None = None
    """Of the participants' models as they came back."""
    by: list[int] | None = None
    """The clients that made the test, where the server does not."""


class Run(Stateful):
    """A generator of rounds, whose state is plain tensors and numbers."""

    saved: ClassVar[tuple[str, ...]] = ("over", "seconds", "round_seconds")
    parts = ("core", "world", "tuning")
    classes: ClassVar[tuple[type, ...]] = STATE
    """What a snapshot is made of, beside plain values and tensors."""
    world: World

    def __init__(self, experiment: Experiment, data: FederatedData, core: Core) -> None:
        """A subclass sets `world`."""
        self.experiment = experiment
        self.data = data
        self.task = experiment.objective
        self.tuning = Tuning(experiment)
        self.core = core
        self.over = False
        """Whether there is no round after the last one that was told."""
        self.seconds = 0.0
        """Real ones, of all rounds without evaluation."""
        self.round_seconds: list[float] = []
        """Of each of the last thousand rounds."""
        self._limit = inf if experiment.limit_seconds is None else experiment.limit_seconds
        self._started = self._begun = perf_counter()

    @abstractmethod
    def test(self, models: Models) -> Tests:
        """Test the current model; `models` are those that came back in this round, where they are to be tested."""

    @abstractmethod
    def identity(self) -> str:
        """A digest of the model, the clients and the data: only the same run can be resumed."""

    @abstractmethod
    def rest(self) -> Rest:
        """What came after the last round; jobs that are still on their way are given up, so ask once."""

    @abstractmethod
    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""

    @property
    @abstractmethod
    def took_part(self) -> list[int]:
        """The clients whose own models are known."""

    @abstractmethod
    def outputs(self) -> Tensor | None:
        """The global model's outputs for the whole test set, if there is one and they are not too many."""

    @abstractmethod
    def client_scores(self, outputs: Tensor | None = None, on: Held = "test") -> list[Score | None]:
        """Every client's own model on its own rows; `outputs` are the global model's for the test set."""

    @abstractmethod
    def client_rows(self) -> list[int]:
        """How many test rows each client has."""

    @property
    def clients_have_tests(self) -> bool:
        """Whether clients are tested on their own rows; otherwise that is estimated from a common test set."""
        return self.data.clients_have_tests

    def describe_labels(self) -> dict[str, Any]:
        """Who holds which labels, as far as that is known here."""
        return self.data.describe_labels()

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
        commands = self._tell(event)
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
            commands = self._tell(events.popleft())

    def _tell(self, event: ev.Event) -> list[ev.Command]:
        """Tell the server what happened."""
        return self.core.on(event)

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
        core, tests = self.core, self.test(told.models)
        if not tests.score.loss <= self.experiment.max_loss:
            what, lr = f"the test loss is {tests.score.loss}", self.experiment.local.lr
            raise divergence(told.round, what, told.arrivals, lr)
        validation = tests.validation
        return Evaluation(
            round=told.round,
            version=core.model.version,
            virtual_seconds=told.virtual_seconds,
            wall_seconds=self.wall_seconds,
            metrics=describe(tests.score.metrics),
            loss=tests.score.loss,
            train_loss=told.train_loss,
            bytes_up=core.ledger.bytes_up,
            bytes_down=core.ledger.bytes_down,
            updates=core.ledger.updates,
            local_accuracy=tests.local_accuracy,
            validation=None if validation is None else {"loss": validation.loss, **describe(validation.metrics)},
            **self._spreads(tests.clients),
            by_class=tests.by_class,
            tested_by=tests.by,
        )

    def _spreads(self, clients: list[Score | None] | None) -> dict[str, Any]:
        """Over clients, under the name that says whether they have test rows of their own."""
        name = "clients" if self.clients_have_tests else "clients_estimated"
        return {} if clients is None else {name: spreads(columns(clients, self.task), self.task)}

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
    def evaluated(self) -> tuple[Tensor, Tensor]:
        """The model that is tested and handed to the user, (weights, buffers)."""
        return self.core.model.evaluated, self.core.model.buffers
