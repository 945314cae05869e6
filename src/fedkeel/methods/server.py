"""How a server works: which clients it waits for, what it sends, and how it uses what comes back."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from pydantic import model_validator
from torch import Tensor

from fedkeel.config.section import Section
from fedkeel.errors import InputError, shown
from fedkeel.methods.job import Updates
from fedkeel.methods.types import Message, ScheduleOver, Weighting, mean_shares
from fedkeel.params import Layout

__all__ = [
    "Answers", "Brief", "Cohort", "Inheriting", "Message", "Pace", "Plan", "Progress", "Receipt", "ServerRule",
    "ServerState", "Updates", "View", "Weighting",
]  # fmt: skip


@dataclass(frozen=True)
class ServerState:
    """The global model and whatever else the server rule remembers."""

    w: Tensor
    memory: Message = field(default_factory=dict)
    log: Mapping[int, Message] = field(default_factory=dict)
    """What it remembers of versions of the model, by their numbers."""


Pace = Literal["barrier", "stream", "periodic", "concurrency"]
"""When a server dispatches clients, and when it takes in what comes back.

`barrier`: rounds; everything that came back is aggregated together. `stream`: the same rounds, but each update is
received as it arrives. `periodic`: a number of devices is dispatched every few seconds, and updates are received as
they arrive. `concurrency`: a fixed number of devices is always at work, and updates are received as they arrive.
"""


@dataclass(frozen=True)
class View:
    """What the server knows when an update arrives."""

    time: float
    """Virtual seconds now."""
    version: int
    """The number of the model as it is now, from 0."""
    round: int
    """The round in which it arrives, from 1."""
    client: int
    start_version: int
    """The version of the model that the job started from."""
    fresh_version: int | None
    """The version of the model that it merged, if it did."""
    seconds: float
    """Virtual seconds from the job's dispatch to now."""
    busy: Mapping[int, int]
    """The clients at work, and the versions they started from."""
    held: Mapping[int, int]
    """The versions that jobs at work started from, and how many started from each."""

    @property
    def staleness(self) -> int:
        """Versions published since the job was dispatched."""
        return self.version - self.start_version


@dataclass(frozen=True)
class Receipt:
    """What the server did with an update."""

    weight: float | None
    """Its share in the global model; None if that is not known yet."""
    published: bool = True
    """Whether the global model is a new version."""
    accepted: bool = True
    """Whether the update was used; a rule may discard one that is too stale."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the record of this arrival."""
    earlier: Sequence[float] = ()
    """The weights of earlier updates that had none yet, in their order."""
    interrupt: Sequence[int] = ()
    """Clients that shall send the model of their finished epochs; or of their first, if none is finished yet."""


@dataclass(frozen=True)
class Progress:
    """How far a run is when a job is dispatched."""

    version: int
    updates: int
    """Received so far."""
    planned: int
    """Updates of the whole run."""
    per_round: int


@dataclass(frozen=True)
class Cohort:
    """The m clients of a round before they train."""

    samples: Tensor
    """[m, 1]"""
    lr: Tensor
    """[E], the learning rates of a full job as the experiment has them."""
    draws: Tensor | None = None
    """As `Updates.draws`."""

    def shares(self, weighting: Weighting = "samples") -> Tensor:
        """[m], as `Updates.shares` will be."""
        return mean_shares(self.samples, self.draws, weighting)


@dataclass(frozen=True)
class Brief:
    """What goes down to the clients of a round beside the weights."""

    shared: Message = field(default_factory=dict)
    """The same for all."""
    each: Message = field(default_factory=dict)
    """[m, ...], one row per client."""


@dataclass(frozen=True)
class Answers:
    """What m clients say in a survey."""

    messages: Message
    """[m, ...]"""
    sums: Message
    """`Job.sums`, added up over all clients."""
    epochs: Tensor
    """[m, 1], the epochs of each client's job."""


Plan = Generator[Brief, Answers, tuple["ServerState", Brief]]
"""Yields what goes down for a survey and is sent the answers; returns the new state and what goes down for training."""


class ServerRule(Section):
    """What the server sends, and how it takes in what comes back."""

    pace: ClassVar[Pace] = "barrier"
    """How it works. A rule that receives updates as they arrive can do so at any pace but `barrier`."""
    pair: ClassVar[str | None] = None
    """As `ClientRule.pair`."""

    @property
    def plans_ahead(self) -> str | None:
        """A rule whose `work` does not look at `progress.planned` may say None here."""
        own = type(self).work is not ServerRule.work
        return "the method's local work depends on how many updates are planned" if own else None

    @property
    def reports(self) -> tuple[str, ...]:
        """Numbers of its own that each client must report beside weights and messages, in the weights' type."""
        return ()

    @property
    def needs_sgd(self) -> str | None:
        """As `ClientRule.needs_sgd`; for example, it takes `Updates.delta / Updates.length` for a gradient."""
        return None

    @property
    def if_diverged(self) -> str | None:
        """As `ClientRule.if_diverged`."""
        return None

    def schedule_objection(self, over: ScheduleOver) -> str | None:
        """As `ClientRule.schedule_objection`."""
        return None

    @property
    def needs_only_mean(self) -> Weighting | None:
        """How clients count in the mean of their weights, for a rule whose `aggregate` looks at nothing else of them.

        Such a rule asks `Updates.mean` or `Updates.mean_delta`, and never `Updates.w` or `Updates.delta`. With
        `reduce`, the mean is then formed where clients train. A class that has an `aggregate` of its own must say so
        anew.
        """
        return None

    @property
    def looks_ahead(self) -> bool:
        """Whether `aggregate` is to be told what late clients would have sent (`Updates.completed`).

        A simulated world trains them once more for it; real machines cannot. It is for diagnosis: the model must not
        depend on it.
        """
        return False

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """The state before the first round; `samples` [N] is the size of every client's data."""
        return ServerState(w)

    def send(self, state: ServerState, client: int) -> Message:
        """What goes down beside the weights."""
        return {}

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        """Before a round's training: may ask its clients as often as it likes (`ClientRule.survey`).

        A rule that asks nothing may leave out `yield` and return the pair.
        """
        return state, Brief()
        yield

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The state after a barrier, and the weight [m] that each update was given."""
        raise NotImplementedError

    def work(self, epochs: int, lr: float, progress: Progress) -> tuple[int, float]:
        """Epochs and learning rate of jobs dispatched now, given those that the experiment asks for."""
        return epochs, lr

    def receive(self, state: ServerState, update: Updates, view: View) -> tuple[ServerState, Receipt]:
        """The state after one update (m = 1), taken in as it arrives."""
        raise NotImplementedError

    def close(self, state: ServerState) -> ServerState:
        """The state at the end of the run. Not called where a run stops at its target, which the model has reached."""
        return state

    def evaluated(self, state: ServerState) -> Tensor:
        """The weights that are tested and handed to the user."""
        return state.w

    def report(self, state: ServerState) -> Message:
        """Numbers of the last round that a user wants to see: a row of `rounds.jsonl`."""
        return {}


def only_mean(rule: ServerRule) -> Weighting | None:
    """`needs_only_mean`, unless the rule has an `aggregate` for which that was not said."""
    said, made = (
        next(place for place, kind in enumerate(type(rule).__mro__) if name in vars(kind))
        for name in ("needs_only_mean", "aggregate")
    )
    return rule.needs_only_mean if said <= made else None


class Inheriting(ServerRule):
    """A rule that may begin with what the server of an earlier run had learnt."""

    earlier_run: str | None = None
    """The folder of a finished run of the same method and model, whose server's knowledge this run starts with."""

    @property
    def inherits(self) -> tuple[str, ...]:
        """The names in `ServerState.memory` of what is taken over."""
        raise NotImplementedError

    @property
    def forgets(self) -> str | None:
        """Which settings leave no use for an earlier run, if any do: "with SETTING; REMEDY"."""
        return None

    @model_validator(mode="after")
    def _has_a_use(self) -> Self:
        if self.earlier_run is not None and self.forgets:
            raise InputError(f"algorithm.earlier_run: {shown(self.earlier_run)} has no use {self.forgets}")
        return self

    def inherit(self, state: ServerState, earlier: Message, epochs: int) -> ServerState:
        """The state before the first round, given what the earlier run remembered and the epochs of a full job."""
        raise NotImplementedError
