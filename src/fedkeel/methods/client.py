"""How clients train: a rule of pure functions on flat vectors.

Every vector has a leading client axis, `[k, D]`, and a rule is given a stack of k clients, of which there may be one.
A client's numbers have a last axis of length one, `[k, 1]`, so that `number * vector` fits. Whatever a rule sends,
keeps or carries has the leading axis too (`torch.zeros_like(job.samples)`, not `torch.zeros(1)`). What a rule is given
is shared with others: it is read, never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from fedkeel.config.section import Section
from fedkeel.methods.course import Course
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Oracle, Penalty
from fedkeel.methods.types import Message, ScheduleOver, Sends
from fedkeel.params import Layout, Part

__all__ = ["ClientRule", "Course", "Job", "Merge", "Message", "Oracle", "Penalty", "Sends", "body_objection"]


class ClientRule(Section):
    """How a client trains. The default is plain SGD."""

    pair: ClassVar[str | None] = None
    """Client and server rules with the same word here belong together and go with no others."""
    downloads: ClassVar[Part] = "all"
    """Which weights the server sends; batch-norm statistics go with the body."""
    uploads: ClassVar[Part] = "all"
    """Which weights come back."""
    features: ClassVar[Literal["unused", "used", "logits"]] = "unused"
    """Whether it looks at what the head is given; with `logits`, the model must end with its head."""
    needs_classes: ClassVar[str | None] = None
    """Why the method can only learn to tell classes apart, if that is so."""
    global_model: ClassVar[bool] = True
    """Whether the server has a whole model; if not, every client's own is tested on its own test share."""
    own_rates: ClassVar[bool] = False
    """Whether a job may train at other learning rates than those that it was sent; a server on real machines refuses
    what other rules' clients tell of such rates."""
    watches_epochs: ClassVar[bool] = False
    """Whether `advance` matters only where an epoch begins (`Oracle.begins`); in between, the job's course suffices."""
    limit: ClassVar[int | None] = None
    """How many steps a survey takes; None: those of the whole job."""
    recorded: ClassVar[tuple[str, ...]] = ()
    """Messages [m, 1] that are written down with the arrival of a job that got a fresh model."""
    finetune_epochs: ClassVar[int] = 0
    """Epochs of fine-tuning before each client's own model is tested, unless the experiment says otherwise."""

    @property
    def trains(self) -> Part:
        """Which weights move; the others have no gradient."""
        return "all"

    @property
    def survey(self) -> ClientRule | None:
        """How clients answer when the server asks before training (`ServerRule.plan`).

        A survey runs like a job that begins with the same weights, but only its messages and sums go up.
        """
        return None

    @property
    def whole(self) -> bool:
        """Whether a survey of a few steps still goes through all the client's data once."""
        return False

    @property
    def pull(self) -> float:
        """The factor of a pull `pull * (w - start)` in the direction, which shortens a client's path."""
        return 0.0

    @property
    def needs_sgd(self) -> str | None:
        """Why clients must take steps of SGD and of no other `local.optimizer`, if there is a reason."""
        return None

    @property
    def if_diverged(self) -> str | None:
        """What to try when training has diverged, beside a smaller `local.lr`: which of its settings to change."""
        return None

    def schedule_objection(self, over: ScheduleOver) -> str | None:
        """Why `local.schedule` must not change the learning rate over rounds, or over steps, if there is a reason."""
        return None

    def objection(self, layout: Layout, momentum: float) -> str | None:
        """Why this rule cannot train such a model or with such momentum, if there is a reason: "problem; remedy"."""
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

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        """How to merge a fresh global model `job.fresh`, which comes before the current mini-batch.

        All three arguments hold only the clients whose slot it is.
        """
        raise NotImplementedError

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        """The direction [k, D] of one mini-batch, before momentum or Adam; by default the job's course.

        `w` belongs to the loop: only read it. It changes with every step, so clone what is to last.
        """
        at = job.course.at(w, oracle)
        return job.course.direction(oracle.grad(w) if at is None else oracle.grad(w, at=at), w)

    def advance(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Tensor, Job]:
        """(The direction, the job that the next step is given), for a rule whose `carry` or `lr` change on the way."""
        direction, trail = self.step(job, w, oracle), job.course.trail
        if trail is None:
            return direction, job
        direction, trail = trail.next(direction)
        return direction, replace(job, course=replace(job.course, trail=trail))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        """After the last step: (what goes up beside the weights, what the client keeps)."""
        return {}, job.kept

    def sends(self, layout: Layout, received: Message) -> Mapping[str, Sends]:
        """What goes up beside the weights, by the names of `end`'s messages and of `job.sums`.

        It depends only on what one client received, so the bytes of an upload are known before training.
        """
        return {}


def body_objection(layout: Layout, why: str) -> str | None:
    """Why a rule that needs a body cannot train a model that is all head; `why` says what it needs it for."""
    return (
        f"{why}, and this model is all head; use a model with layers before its last one" if layout.head.all() else None
    )


@dataclass(frozen=True)
class Merge:
    """How a client takes in a fresh global model: w <- (1 - share) w + share w_fresh."""

    share: Tensor
    """[k, 1]"""
    notes: Message = field(default_factory=dict)
    """[k, ...], new values for the entries of `job.carry` with these names, which `begin` has set."""
