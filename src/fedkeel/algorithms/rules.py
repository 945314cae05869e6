"""What a federated method is: a client rule and a server rule, pure functions on flat vectors.

Every vector may carry a leading client axis: `[D]` for one client, `[C, D]` for a stack. Numbers that belong
to a client have a last axis of length one (`[1]`, `[C, 1]`), so that `number * vector` fits both. Whatever a rule
sends, keeps or carries has the leading axis too (`torch.zeros_like(job.samples)`, not `torch.zeros(1)`). What a rule is
given is shared with others: it is read, never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedkeel.params import Layout
from fedkeel.settings import Section

Message = Mapping[str, Tensor]
"""Named tensors that travel, or that a client keeps; what travels is charged byte for byte."""


def nbytes(message: Message) -> int:
    """What a message weighs on the wire."""
    return sum(t.numel() * t.element_size() for t in message.values()) if message else 0


class Oracle(Protocol):
    """What a client's data says about weights `w`; one mini-batch is current at any time."""

    def grad(self, w: Tensor) -> Tensor:
        """Gradient of the current mini-batch's mean loss, clipped, plus weight decay: [..., D]."""
        ...


@dataclass(frozen=True)
class Job:
    """What a client, or a stack of clients, was asked to do."""

    round: Tensor
    """[..., 1], the round in which the server dispatched it."""
    start: Tensor
    """[..., D], the global model as it was sent."""
    epochs: Tensor
    """[..., 1], local epochs to train."""
    lr: Tensor
    """[..., E], the learning rate of each local epoch; E is the most epochs of any client in the stack."""
    samples: Tensor
    """[..., 1], the size of the client's training data."""
    received: Message
    """What the server sent along (`ServerRule.send`)."""
    kept: Message
    """The client's own state from its earlier jobs; empty the first time."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Scratch that a rule carries from step to step."""

    def first(self, count: int) -> Job:
        """The first so many clients of a stack, as views."""
        return Job(
            round=self.round[:count],
            start=self.start[:count],
            epochs=self.epochs[:count],
            lr=self.lr[:count],
            samples=self.samples[:count],
            received=_first(self.received, count),
            kept=_first(self.kept, count),
            carry=_first(self.carry, count),
        )


def _first(message: Message, count: int) -> dict[str, Tensor]:
    return {name: tensor[:count] for name, tensor in message.items()}


class ClientRule(Section):
    """How a client trains. The default is plain SGD."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        """Before the first step: may change start weights and learning rates."""
        return job

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The direction [..., D] of one mini-batch, before momentum.

        `w` is the loop's own: it is only read, and it moves with every step, so what is to last is a clone of it.
        """
        return oracle.grad(w)

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """After the last step: (what goes up beside the weights, what the client keeps)."""
        return {}, job.kept


@dataclass(frozen=True)
class ServerState:
    """The global model and whatever else the server rule remembers."""

    w: Tensor
    memory: Message = field(default_factory=dict)


@dataclass(frozen=True)
class Updates:
    """What arrived from m clients, stacked: every tensor has a leading axis m.

    They lie in memory that is used again when nobody refers to it any more: a rule clones the rows that it keeps.
    """

    w: Tensor
    """[m, D], the weights that came back."""
    start: Tensor
    """[m, D], the global model each started from."""
    samples: Tensor
    """[m, 1]"""
    steps: Tensor
    """[m, 1], local SGD steps really done."""
    messages: Message

    @property
    def delta(self) -> Tensor:
        """[m, D], new minus old."""
        return self.w - self.start

    @property
    def shares(self) -> Tensor:
        """[m], each client's share of the samples that arrived."""
        samples = self.samples[:, 0].double()
        return (samples / samples.sum()).to(self.w.dtype)


class ServerRule(Section):
    """What the server sends, and how it takes in what comes back."""

    def init(self, w: Tensor, layout: Layout, clients: int) -> ServerState:
        """The state before the first round."""
        return ServerState(w)

    def send(self, state: ServerState, client: int) -> Message:
        """What goes down beside the weights."""
        return {}

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The state after a barrier, and the weight [m] that each update was given."""
        raise NotImplementedError

    def evaluated(self, state: ServerState) -> Tensor:
        """The weights that are tested and handed to the user."""
        return state.w
