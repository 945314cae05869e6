"""What a federated method is: a client rule and a server rule, pure functions on flat vectors.

Every vector may carry a leading client axis: `[D]` for one client, `[C, D]` for a stack. Numbers that belong
to a client have a last axis of length one (`[1]`, `[C, 1]`), so that `number * vector` fits both. Whatever a rule
sends, keeps or carries has the leading axis too (`torch.zeros_like(job.samples)`, not `torch.zeros(1)`). What a rule is
given is shared with others: it is read, never changed in place.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkeel.algorithms.job import Job, Updates
from fedkeel.algorithms.messages import Message, Weighting, mean_shares, nbytes
from fedkeel.algorithms.oracle import Oracle, Penalty
from fedkeel.params import Layout, Part
from fedkeel.settings import Section

__all__ = [
    "Answers",
    "Brief",
    "ClientRule",
    "Cohort",
    "Job",
    "Merge",
    "Message",
    "Oracle",
    "Pace",
    "Penalty",
    "Plan",
    "Progress",
    "Receipt",
    "ServerRule",
    "ServerState",
    "Updates",
    "View",
    "Weighting",
    "nbytes",
]


class ClientRule(Section):
    """How a client trains. The default is plain SGD."""

    pair: ClassVar[str | None] = None
    """Client and server rules with the same word here belong together and with nobody else."""
    downloads: ClassVar[Part] = "all"
    """Which weights the server sends; batch-norm statistics go with the body."""
    uploads: ClassVar[Part] = "all"
    """Which weights come back."""
    features: ClassVar[Literal["unused", "used", "logits"]] = "unused"
    """Whether it looks at what the head is given; with `logits`, the model must end with its head."""
    global_model: ClassVar[bool] = True
    """Whether the server has a whole model; if not, every client's own is tested on its own test share."""
    watches_epochs: ClassVar[bool] = False
    """Whether `step` matters only where an epoch begins (`Oracle.begins`): between, the job's course says it all."""
    limit: ClassVar[int | None] = None
    """Of a survey: how many steps it takes, unless it is the whole job."""
    ragged: ClassVar[bool] = False
    """Whether what it sends beside the weights is larger for some clients than for others."""
    recorded: ClassVar[tuple[str, ...]] = ()
    """Messages [m, 1] that are written down with the arrival of a job that got a fresh model."""
    finetune_epochs: ClassVar[int] = 0
    """Of each client's own model before it is tested, unless the experiment says otherwise."""

    @property
    def trains(self) -> Part:
        """Which weights move; the others have no gradient."""
        return "all"

    @property
    def survey(self) -> ClientRule | None:
        """How clients answer when the server asks before training (`ServerRule.plan`).

        They do it like a job that begins with the same weights, of which only messages and sums go up.
        """
        return None

    @property
    def whole(self) -> bool:
        """Of a survey that takes a few steps: whether it still goes through all the client's data, once."""
        return False

    @property
    def pull(self) -> float:
        """The factor of a pull `pull * (w - start)` in the direction, which shortens a client's path."""
        return 0.0

    def objection(self, layout: Layout, momentum: float) -> str | None:
        """Why this rule cannot train such a model or with such momentum, if there is a reason."""
        return None

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        """What a client keeps before its first job, given the first global model [D] and its buffers [B]."""
        return {}

    def own(self, w: Tensor, buffers: Tensor, kept: Message) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers), given the global one and what the client keeps."""
        return w, buffers

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Before the first step: may change start weights, buffers and learning rates, and set a course."""
        return job

    def asks_after(self, kept: Message, received: Message, epochs: int, draws: tuple[float, float]) -> int:
        """After how many of its epochs a job asks for a fresh global model; 0: never.

        Decided when it is dispatched, by one client alone, given two random numbers in [0, 1) of this job's own.
        """
        return 0

    def refresh(self, job: Job, w: Tensor, oracle: Oracle, rows: Tensor | None) -> Merge:
        """What becomes of a fresh global model `job.fresh`, which comes before the current mini-batch.

        `job` and `w` are those of the clients whose slot it is: their places in the stack are `rows`, for
        `oracle.peek`; nothing for a client by itself.
        """
        raise NotImplementedError

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The direction [..., D] of one mini-batch, before momentum; by default the job's course.

        `w` is the loop's own: it is only read, and it moves with every step, so what is to last is a clone of it.
        """
        return job.course.direction(oracle.grad(w), w)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """After the last step: (what goes up beside the weights, what the client keeps)."""
        return {}, job.kept

    def weigh(self, messages: Message, count: int) -> Tensor:
        """[m], bytes of what each of `count` clients sends beside its weights."""
        return torch.full((count,), nbytes(messages) // count)


@dataclass(frozen=True)
class Merge:
    """How a client takes in a fresh global model: w <- (1 - share) w + share w_fresh."""

    share: Tensor
    """[..., 1]"""
    notes: Message = field(default_factory=dict)
    """[..., k], what takes the place of `job.carry` of these names, which `begin` has set."""


@dataclass(frozen=True)
class ServerState:
    """The global model and whatever else the server rule remembers."""

    w: Tensor
    memory: Message = field(default_factory=dict)
    log: Mapping[int, Message] = field(default_factory=dict)
    """What it remembers of versions of the model, by their numbers."""


Pace = Literal["barrier", "stream", "periodic", "concurrency"]
"""Whom a server dispatches when, and when it takes in what comes back.

`barrier`: rounds; all that came is aggregated together. `stream`: the same rounds, but every update is received at
once. `periodic`: so many devices every so many seconds, updates received at once. `concurrency`: always so many
devices at work, updates received at once.
"""


@dataclass(frozen=True)
class View:
    """What the server knows when an update arrives."""

    time: float
    """Virtual seconds now."""
    version: int
    """The number of the model as it is now, from 0."""
    round: int
    """In which it arrives, from 1."""
    client: int
    start_version: int
    """Of the model that the job started from."""
    fresh_version: int | None
    """Of the model that it merged, if it did."""
    seconds: float
    """From the job's dispatch to now."""
    busy: Mapping[int, int]
    """The clients at work, and the versions they started from."""
    held: Mapping[int, int]
    """The versions that jobs at work started from, and how many did."""

    @property
    def staleness(self) -> int:
        """Versions published since the job was dispatched."""
        return self.version - self.start_version


@dataclass(frozen=True)
class Receipt:
    """What the server did with an update."""

    weight: float | None
    """Its share in the global model; nothing if that is not known yet."""
    published: bool = True
    """Whether the global model is a new version."""
    accepted: bool = True
    notes: Mapping[str, float] = field(default_factory=dict)
    """For the record of this arrival."""
    earlier: Sequence[float] = ()
    """The weights of updates before it that had none yet, in their order."""
    interrupt: Sequence[int] = ()
    """Clients that are to send what they have after the epochs they have finished, or after their first."""


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
    """[m, ...], a row a client."""


@dataclass(frozen=True)
class Answers:
    """What m clients say in a survey."""

    messages: Message
    """[m, ...]"""
    sums: Message
    """`Job.sums`, added up over all clients."""
    epochs: Tensor
    """[m, 1], of a job of theirs."""


Plan = Generator[Brief, Answers, tuple["ServerState", Brief]]
"""Yields what goes down for a survey and is sent the answers; returns the new state and what goes down for training."""


class ServerRule(Section):
    """What the server sends, and how it takes in what comes back."""

    pace: ClassVar[Pace] = "barrier"
    """How it works; whoever receives updates at once can do so at any pace but a barrier."""
    pair: ClassVar[str | None] = None
    """As `ClientRule.pair`."""
    numbers: ClassVar[int] = 0
    """How many of its own numbers each client must report beside weights and messages, in the weights' type."""

    def init(self, w: Tensor, layout: Layout, samples: Tensor) -> ServerState:
        """The state before the first round; `samples` [N] is the size of every client's data."""
        return ServerState(w)

    def send(self, state: ServerState, client: int) -> Message:
        """What goes down beside the weights."""
        return {}

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        """Before a round's training: may ask its clients as often as it likes (`ClientRule.survey`)."""
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
        """The state at the end of the run; not asked for where a run stops at its target, which that model reached."""
        return state

    def evaluated(self, state: ServerState) -> Tensor:
        """The weights that are tested and handed to the user."""
        return state.w

    def report(self, state: ServerState) -> Message:
        """Numbers of the last round that a user wants to see: a row of `rounds.jsonl`."""
        return {}
