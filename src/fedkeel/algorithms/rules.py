"""What a federated method is: a client rule and a server rule, pure functions on flat vectors.

Every vector may carry a leading client axis: `[D]` for one client, `[C, D]` for a stack. Numbers that belong
to a client have a last axis of length one (`[1]`, `[C, 1]`), so that `number * vector` fits both. Whatever a rule
sends, keeps or carries has the leading axis too (`torch.zeros_like(job.samples)`, not `torch.zeros(1)`). What a rule is
given is shared with others: it is read, never changed in place.
"""

from __future__ import annotations

from collections.abc import Generator
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
    "Message",
    "Oracle",
    "Penalty",
    "Plan",
    "ServerRule",
    "ServerState",
    "Updates",
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
class ServerState:
    """The global model and whatever else the server rule remembers."""

    w: Tensor
    memory: Message = field(default_factory=dict)


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

    def evaluated(self, state: ServerState) -> Tensor:
        """The weights that are tested and handed to the user."""
        return state.w

    def report(self, state: ServerState) -> Message:
        """Numbers of the last round that a user wants to see: a row of `rounds.jsonl`."""
        return {}
