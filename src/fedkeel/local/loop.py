"""The local training loop: the only one in the package.

The order inside a step is fixed: gradient of the loss, clipping, weight decay (all three in `oracle.grad`),
the rule's direction, optimiser (`optimizer.py`), update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.local.optimizer import Descent, Optimizer
from fedkeel.methods.client import ClientRule, Course
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.returned import check_advance, check_begin, check_end
from fedkeel.methods.types import Message


@dataclass(slots=True)
class Step:
    """What the loop must know of the mini-batches that are current."""

    epochs: int | Tensor
    """The epoch, or that of each client [k]."""
    active: int
    """The first so many clients of the stack have a mini-batch; the others are done."""
    begins: bool = False
    """Whether an epoch begins with it, for any client."""


class TrainingOracle(Oracle, Protocol):
    """An oracle that the loop can walk through mini-batches."""

    def steps(self) -> Iterator[Step]:
        """Make one mini-batch after the other current, until the last client has finished its last epoch."""
        ...

    def restore(self, buffers: Tensor) -> None:
        """Go on with these batch-norm statistics [k, B]."""
        ...


Between = Callable[[Job, int], Job | None]
"""Called with a job and its finished epochs where another epoch begins: returns the job to go on with, perhaps with a
fresh model whose slot is now, or None to end here. It is for stacks of one client on a real machine."""


@dataclass(frozen=True)
class Outcome:
    """What training came to; every tensor has the leading client axis."""

    job: Job
    """As the rule began it, with the learning rates, the carry and the trail of each client's last step."""
    w: Tensor
    message: Message
    kept: Message


@torch.no_grad()
def train(
    job: Job,
    rule: ClientRule,
    oracle: TrainingOracle,
    limit: int | None = None,
    out: Tensor | None = None,
    optimizer: Optimizer | None = None,
    between: Between | None = None,
) -> Outcome:
    """Train a stack of clients for all steps or for `limit`; the weights may be put into `out`.

    Clients that are done leave the stack: rules and oracle see only those still at work. Without another optimiser,
    which is to be a new one, it is SGD with the job's momentum.
    """
    given, momentum = job, job.momentum
    begun = job = rule.begin(job, oracle)
    check_begin(rule, begun)
    if begun.buffers is not given.buffers:
        oracle.restore(begun.buffers)
    # A rule that keeps to a course needs no gradient in its hands: an oracle may make a step at once, or all of them.
    known = job.fresh is None and between is None
    whole = getattr(oracle, "train", None) if keeps_to_course(rule) and known else None
    if whole is not None:
        w, begun = whole(begun, limit, out)
        return _ended(begun, rule, w, oracle)
    plain = (keeps_to_course(rule) or rule.watches_epochs) and not momentum and job.course.straight
    descend = getattr(oracle, "descend", None) if plain else None
    # Or, where a rule only watches epochs, all steps between.
    by_epoch = getattr(oracle, "by_epoch", None) if walks_by_epoch(rule, momentum) and known else None
    walk, finish = (by_epoch and by_epoch(limit)) or (islice(oracle.steps(), limit), None)
    w = job.start
    optimizer = optimizer or Descent(momentum, job.nesterov)
    done: list[Job] = []
    epoch: int | Tensor | None = None
    lr = rate = job.lr
    for number, step in enumerate(walk):
        if step.active < len(job.start):
            done.append(job.pick(slice(step.active, None)))
            job = job.pick(slice(step.active))
            optimizer.keep(step.active)
        if between is not None and number and step.begins:
            finished = int(oracle.begins[0, 0])
            goes_on = between(job, finished)
            if goes_on is None:
                begun = _shortened(begun, finished, number)
                job = replace(job, lr=job.lr[:, :finished])
                break
            job = goes_on
            begun = replace(begun, slot=job.slot, fresh=job.fresh)
        old = new = w if step.active == len(w) else w[: step.active]
        if not number:  # the first step leaves the server's vector alone and makes the loop's own
            new = w = torch.empty_like(w, memory_format=torch.contiguous_format) if out is None else out
        if job.fresh is not None and step.begins:
            job = _refresh(job, old, rule, oracle)
        direction: Tensor | None = None
        if descend is None or (rule.watches_epochs and step.begins):
            moved = rule.advance(job, old, oracle)
            if not number:
                check_advance(rule, moved, old)
            direction, job = moved
        if step.epochs is not epoch or job.lr is not lr:  # after the rule, which may set an epoch's rate
            epoch, lr = step.epochs, job.lr
            rate = lr[:, epoch, None] if isinstance(epoch, int) else lr.gather(1, epoch[:, None])
        timed = rate if job.curve is None else rate * job.factor(number)  # who is at work has made as many steps
        if direction is None:
            assert descend is not None
            descend(old, timed, new, job.course)
            continue
        optimizer.step(old, direction, timed, new)
        if finish is not None:
            finish(job, rate, new)
    left = [job, *reversed(done)]
    lr, carry = torch.cat([each.lr for each in left]), _joined([each.carry for each in left])
    begun = replace(begun, lr=lr, carry=carry, course=_followed(begun.course, left))
    return _ended(begun, rule, w, oracle)


def keeps_to_course(rule: ClientRule) -> bool:
    """Whether the job's course says all that the rule does in a step."""
    return type(rule).step is ClientRule.step and type(rule).advance is ClientRule.advance


def walks_by_epoch(rule: ClientRule, momentum: float) -> bool:
    """Whether the rule only needs to see the first step of each epoch; velocities would be lost between two of them."""
    return rule.watches_epochs and not momentum


def _ended(job: Job, rule: ClientRule, w: Tensor, oracle: TrainingOracle) -> Outcome:
    ended = rule.end(job, w, oracle)
    check_end(rule, ended)
    return Outcome(job, w, *ended)


def _shortened(job: Job, epochs: int, steps: int) -> Job:
    """The job as if it had been asked for so many epochs."""
    return replace(job, epochs=torch.full_like(job.epochs, epochs), steps=torch.full_like(job.steps, steps))


def _refresh(job: Job, w: Tensor, rule: ClientRule, oracle: TrainingOracle) -> Job:
    """Let those whose slot it is take in a fresh global model; `w`, the loop's own, is changed in place."""
    rows = ((oracle.begins == job.slot) & (job.slot > 0))[:, 0].nonzero()[:, 0]
    if not len(rows):
        return job
    part = job.pick(rows)
    assert part.fresh is not None
    merge = rule.refresh(part, w[rows], oracle.pick(rows))
    if part.fresh.buffers.numel():
        before = oracle.buffers
        merged = torch.lerp(before[rows], part.fresh.buffers, merge.share.to(before.dtype))
        oracle.restore(before.index_copy(0, rows, merged))
    w[rows] = torch.lerp(w[rows], part.fresh.w, merge.share)
    carry = {name: job.carry[name].index_copy(0, rows, new) for name, new in merge.notes.items()}
    return replace(job, carry={**job.carry, **carry})


def _followed(course: Course, left: list[Job]) -> Course:
    """With the trails of those who stayed and those who left, as one stack again."""
    trails = [each.course.trail for each in left if each.course.trail is not None]
    if not trails:
        return course
    last, past = (torch.cat([getattr(trail, name) for trail in trails]) for name in ("last", "past"))
    return replace(course, trail=replace(trails[0], last=last, past=past, gain=torch.cat([t.gain for t in trails])))


def _joined(carries: list[Message]) -> Message:
    """What those who stayed and those who left carried, as one stack again."""
    if len(carries) == 1:
        return carries[0]
    for carry in carries:
        if carry.keys() != carries[0].keys():
            late = ", ".join(sorted(carry.keys() ^ carries[0].keys()))
            raise FedkeelError(
                f"the client rule must carry {late} in every step, but carries it only in some; set it in begin or in "
                "the first step"
            )
    return {name: torch.cat([carry[name] for carry in carries]) for name in carries[0]}
