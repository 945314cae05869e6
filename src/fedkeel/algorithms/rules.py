"""What a federated method is: a client rule and a server rule, pure functions on flat vectors.

Every vector may carry a leading client axis: `[D]` for one client, `[C, D]` for a stack. Numbers that belong
to a client have a last axis of length one (`[1]`, `[C, 1]`), so that `number * vector` fits both. Whatever a rule
sends, keeps or carries has the leading axis too (`torch.zeros_like(job.samples)`, not `torch.zeros(1)`). What a rule is
given is shared with others: it is read, never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedkeel.algorithms.course import Course
from fedkeel.algorithms.path import path_length
from fedkeel.params import Layout, Part
from fedkeel.settings import Section

Message = Mapping[str, Tensor]
"""Named tensors that travel, or that a client keeps; what travels is charged byte for byte."""

Weighting = Literal["samples", "uniform"]
"""Of clients in a mean: by their numbers of samples, or all alike."""

Penalty = Callable[..., Tensor]
"""`penalty(features, *given)` [b]: what is added to the loss of each of a mini-batch's samples."""


def nbytes(message: Message) -> int:
    """What a message weighs on the wire."""
    return sum(t.numel() * t.element_size() for t in message.values()) if message else 0


class Oracle(Protocol):
    """What a client's data says about weights `w`; in `step`, one mini-batch is current.

    Every answer is a new tensor that the rule may change.
    """

    def grad(self, w: Tensor, at: Tensor | None = None) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `at` (or `w`), clipped, plus weight decay of `w`."""
        ...

    def loss_grad(self, w: Tensor) -> Tensor:
        """The same at `w` as it is: neither clipped nor decayed."""
        ...

    def grad_with(self, w: Tensor, penalty: Penalty, *given: Tensor) -> Tensor:
        """As `grad`, with a penalty on the features that the head sees; `given` [..., b, F] has a row a sample."""
        ...

    def features(self, w: Tensor, buffers: Tensor) -> Tensor:
        """[..., b, F], what the head sees of the current mini-batch, in evaluation mode and without a gradient."""
        ...

    def full_grad(self, w: Tensor) -> Tensor:
        """Gradient of the mean loss of all the client's samples, clipped, plus weight decay; leaves statistics alone.

        Mini-batch by mini-batch in training mode, so that batch norm and dropout see what they see in training.
        """
        ...

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(Mean features [..., classes, F] of each class of the client's samples, how many they are [..., classes])."""
        ...

    @property
    def buffers(self) -> Tensor:
        """[..., B], the batch-norm statistics as they are now."""
        ...


@dataclass(frozen=True)
class Job:
    """What a client, or a stack of clients, was asked to do."""

    round: Tensor
    """[..., 1], the round in which the server dispatched it."""
    start: Tensor
    """[..., D], the weights that training starts from: the global model as sent, unless `begin` says otherwise."""
    buffers: Tensor
    """[..., B], the batch-norm statistics that it starts with."""
    epochs: Tensor
    """[..., 1], local epochs to train."""
    steps: Tensor
    """[..., 1], mini-batches in these epochs."""
    lr: Tensor
    """[..., E], the learning rate of each local epoch; E is the most epochs of any client in the stack."""
    momentum: float
    samples: Tensor
    """[..., 1], the size of the client's training data."""
    layout: Layout
    received: Message
    """What the server sent along (`ServerRule.send`)."""
    kept: Message
    """The client's own state: `ClientRule.initial`, then what its last job kept."""
    course: Course = field(default_factory=Course)
    """What the direction is made of beside the gradient; set in `begin`."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Scratch that a rule carries from step to step."""

    @property
    def length(self) -> Tensor:
        """[..., 1], how far a constant direction of length one would have led: learning rate times steps, and momentum.

        (start - w) / length is the mean direction, whatever the number of steps; a pull is part of that direction.
        """
        return path_length(self.lr, self.epochs, self.steps, self.momentum)

    def first(self, count: int) -> Job:
        """The first so many clients of a stack, as views."""
        return replace(
            self,
            round=self.round[:count],
            start=self.start[:count],
            buffers=self.buffers[:count],
            epochs=self.epochs[:count],
            steps=self.steps[:count],
            lr=self.lr[:count],
            samples=self.samples[:count],
            received=_first(self.received, count),
            kept=_first(self.kept, count),
            course=self.course.first(count),
            carry=_first(self.carry, count),
        )


def _first(message: Message, count: int) -> dict[str, Tensor]:
    return {name: tensor[:count] for name, tensor in message.items()}


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
    finetune_epochs: ClassVar[int] = 0
    """Of each client's own model before it is tested, unless the experiment says otherwise."""

    @property
    def trains(self) -> Part:
        """Which weights move; the others have no gradient."""
        return "all"

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
    epochs: Tensor
    """[m, 1], local epochs really done."""
    steps: Tensor
    """[m, 1], local SGD steps really done."""
    lr: Tensor
    """[m, E], the learning rates used; those behind a client's last epoch say nothing."""
    messages: Message
    layout: Layout
    momentum: float = 0.0
    """Of local training."""
    pull: float = 0.0
    """`ClientRule.pull`"""

    @property
    def delta(self) -> Tensor:
        """[m, D], new minus old."""
        return self.w - self.start

    @property
    def length(self) -> Tensor:
        """[m, 1], as `Job.length`, but of the gradients alone: a pull shortens the path."""
        return path_length(self.lr, self.epochs, self.steps, self.momentum, self.pull)

    def shares(self, weighting: Weighting = "samples") -> Tensor:
        """[m], each client's share in a mean over those that arrived."""
        samples = self.samples[:, 0].double()
        if weighting == "uniform":
            samples = torch.ones_like(samples)
        return (samples / samples.sum()).to(self.w.dtype)


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

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        """The state after a barrier, and the weight [m] that each update was given."""
        raise NotImplementedError

    def evaluated(self, state: ServerState) -> Tensor:
        """The weights that are tested and handed to the user."""
        return state.w
