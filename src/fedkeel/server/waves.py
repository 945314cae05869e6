"""The jobs of a dispatch, from drawing the clients to what each of them is sent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.config.userdraw import Draw
from fedkeel.errors import FedkeelError
from fedkeel.methods.returned import check_message, check_plan, check_question
from fedkeel.methods.server import Answers, Brief, Cohort, Plan, Progress, ServerRule, ServerState
from fedkeel.methods.types import Message, Weighting, nbytes
from fedkeel.server.events import Survey
from fedkeel.server.model import GlobalModel
from fedkeel.server.stateful import Stateful
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Same
from fedkeel.wire.sizes import Sizes

Drawing = Callable[[int, int, NDArray[np.bool_] | None], Draw]
"""Which clients take part, given the wave's number, how many are wanted, and which are free."""
Seen = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""[m], how many samples clients go through, given the sizes of their data and their epochs."""


@dataclass(frozen=True)
class JobSettings:
    """What is asked of every job, and when a run is over."""

    epochs: int
    """With `local.steps`, these are mini-batches; so are all other epochs of a job in the server."""
    seen: Seen
    lr: float
    """That of the experiment, for messages."""
    rate: Callable[[int], float]
    """The learning rate of jobs that are dispatched in a round, from 1, whenever they arrive. Without a barrier, a
    round ends when as many updates have arrived as a round has clients."""
    rounds: int
    evaluate_every: int
    within: float | None
    """Seconds that a job of a round may take."""
    keep_models: bool
    """Whether models are to be tested as they come back."""
    mean: Weighting | None = None
    """How clients count in the mean of their weights, if the world is to form it; None: all weights come back."""
    persists: bool = False
    """Whether a round without any update is repeated; then the world decides when to give up. Otherwise it counts as a
    round, and the server gives up after many of them."""


@dataclass(eq=False)
class Wave:
    """Jobs that are dispatched together; the server may ask their clients first."""

    orders: Orders
    clients: NDArray[np.int64]
    draws: NDArray[np.int64] | None
    """[m], how often each was drawn, where that may be more than once."""
    due: int
    """How many clients were wanted."""
    plan: Plan
    down: NDArray[np.int64]
    """[m], bytes to each client: of surveys, and finally also of the job."""
    up: NDArray[np.int64]
    """[m], bytes of each client's answers."""
    uploads: NDArray[np.int64]
    """[m], bytes that each client's upload will have."""


class Waves(Stateful):
    """Numbers waves and jobs, and follows the server rule's plan for each."""

    saved = ("number", "jobs")

    def __init__(
        self,
        settings: JobSettings,
        wanted: int,
        model: GlobalModel,
        sizes: Sizes,
        samples: NDArray[np.int64],
        draw: Drawing,
    ) -> None:
        self._settings, self._wanted, self._model, self._sizes = settings, wanted, model, sizes
        self._samples, self._draw = samples, draw
        self.number = 0
        """Dispatches so far."""
        self.jobs = 0
        """Jobs so far."""
        self.asked: Wave | None = None
        """The wave whose clients are being asked."""

    def draw(self, count: int, free: NDArray[np.bool_] | None) -> Draw:
        """`count` of the clients that are free, or all of them if there are fewer."""
        self.number += 1
        return self._draw(self.number, count, free)

    def begin(
        self, clients: NDArray[np.int64], draws: NDArray[np.int64] | None, due: int, round: int, updates: int
    ) -> Survey | Wave:
        """The clients' jobs, or what they are asked first; `updates` were received before."""
        settings, model = self._settings, self._model
        progress = Progress(model.version, updates, settings.rounds * self._wanted, self._wanted)
        epochs, rate = model.rule.work(settings.epochs, settings.rate(round), progress)
        w = model.state.w
        lr = torch.full((epochs,), rate, dtype=w.dtype, device=w.device)
        orders = self._orders(clients, round, epochs, lr)
        check_message(model.rule, "send", orders.received[0])
        self.jobs += len(orders)
        return self._plan(orders, draws, due)

    @property
    def due(self) -> int:
        """How many clients were wanted for the wave that is being asked."""
        return 0 if self.asked is None else self.asked.due

    def without(self, lost: Sequence[int]) -> Survey | Wave | None:
        """Plan again for the clients of the wave that is being asked, but for these; None if nobody is left."""
        wave = self.asked
        assert wave is not None
        self.asked = None
        rows = np.flatnonzero(~np.isin(wave.clients, [*lost]))
        if not len(rows):
            return None
        return self._plan(wave.orders.pick(rows), None if wave.draws is None else wave.draws[rows], wave.due)

    def _plan(self, orders: Orders, draws: NDArray[np.int64] | None, due: int) -> Survey | Wave:
        """Begin the server rule's plan for these jobs."""
        model, clients, lr = self._model, orders.client, orders.lr[0]
        counted = None if draws is None else torch.from_numpy(draws).to(lr.device)
        cohort = Cohort(torch.from_numpy(self._samples[clients][:, None]).to(lr.device), lr, counted)
        nothing = np.zeros(len(orders), dtype=np.int64)
        asks: Plan | tuple[ServerState, Brief] = model.rule.plan(model.state, cohort)
        plan = asks if isinstance(asks, Generator) else _without_asking(asks)
        self.asked = Wave(orders, clients, draws, due, plan, nothing, nothing, nothing)
        return self.go_on(None)

    def _orders(self, clients: NDArray[np.int64], round: int, epochs: int, lr: Tensor) -> Orders:
        """Jobs from the newest model, before the rule's plan is known."""
        model, count = self._model, len(clients)
        zeros, nothing = np.zeros(count, dtype=np.int64), dict[str, Tensor]()
        sends = type(model.rule).send is not ServerRule.send
        received = [model.rule.send(model.state, client) for client in clients.tolist()] if sends else []
        return Orders(
            job=np.arange(self.jobs + 1, self.jobs + 1 + count),
            client=clients,
            round=zeros + round,
            epochs=zeros + epochs,
            start=Same(model.state.w, count),
            buffers=Same(model.buffers, count),
            lr=Same(lr, count),
            received=received or Same(nothing, count),
            kept=Same(nothing, count),
            survey=Same(False, count),
            wave=zeros + self.number,
            version=zeros + model.version,
            slot=zeros,
            fresh=Same(None, count),
        )

    def go_on(self, answers: Answers | None) -> Survey | Wave:
        """Continue the server rule's plan: with another survey, or with the jobs."""
        wave = self.asked
        assert wave is not None
        try:
            question = wave.plan.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            check_plan(self._model.rule, end.value, self._model.state.w)
            self._model.state, brief = end.value
            self.asked = None
            return self._complete(wave, brief)
        check_question(self._model.rule, question)
        if self._model.client_rule.survey is None:
            raise FedkeelError(
                "the server rule asks before training, but the client rule answers no survey; define survey in the "
                "client rule, or yield nothing in the server rule's plan"
            )
        told = _rows(question, len(wave.orders))
        up = self._sizes.answers(wave.clients, {**wave.orders.received[0], **told[0]})
        wave.down = wave.down + np.array([nbytes(each) for each in told])
        wave.up = wave.up + up
        return Survey(wave.orders, told, up)

    def _complete(self, wave: Wave, brief: Brief) -> Wave:
        """What goes down with the jobs."""
        if brief.shared or brief.each:
            told = zip(wave.orders.received, _rows(brief, len(wave.orders)), strict=True)
            wave.orders = wave.orders.but(received=[{**received, **more} for received, more in told])
        received = wave.orders.received
        more = nbytes(received.value) if isinstance(received, Same) else np.array([*map(nbytes, received)])
        wave.down = wave.down + (self._sizes.down + more)
        wave.uploads = self._sizes.uploads(wave.clients, received[0])
        return wave


def _without_asking(settled: tuple[ServerState, Brief]) -> Plan:
    """The plan of a rule whose `plan` has no `yield` in it and returns what others return at the end."""
    return settled
    yield


def _rows(brief: Brief, count: int) -> list[Message]:
    """What each of so many clients is told."""
    return [{**brief.shared, **{name: each[row] for name, each in brief.each.items()}} for row in range(count)]
