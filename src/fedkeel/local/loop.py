"""The local training loop: the only one in the house.

The order inside a step is fixed: gradient of the loss, clipping, weight decay (all three in `oracle.grad`),
the rule's direction, momentum, update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.types import Message


@dataclass(slots=True)
class Step:
    """What the loop must know of the mini-batch that is current."""

    epochs: int | Tensor
    """The epoch, or that of each client [k]."""
    active: int | None = None
    """Of a stack, the first so many clients have a mini-batch; the others are done."""
    begins: bool = False
    """Whether an epoch begins with it, for any client."""


class TrainingOracle(Oracle, Protocol):
    """An oracle that the loop can walk through mini-batches."""

    def steps(self) -> Iterator[Step]:
        """Make one mini-batch after the other current, until the last client has finished its last epoch."""
        ...

    def restore(self, buffers: Tensor) -> None:
        """Go on with these batch-norm statistics."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What training came to; for a stack every tensor has the leading client axis."""

    job: Job
    """As the rule began it."""
    w: Tensor
    message: Message
    kept: Message


@torch.no_grad()
def train(
    job: Job,
    rule: ClientRule,
    oracle: TrainingOracle,
    limit: int | None = None,
    room: Tensor | None = None,
) -> Outcome:
    """Train a client, or a stack of them, for all steps or for `limit`; the weights may be put into `room`.

    Clients that are done leave the stack: rules and oracle see only those still at work. Momentum is PyTorch's
    (v <- m v + d, started at d) and begins anew with every job.
    """
    given, momentum = job, job.momentum
    begun = job = rule.begin(job, oracle)
    if begun.buffers is not given.buffers:
        oracle.restore(begun.buffers)
    # A rule that keeps to a course needs no gradient in its hands: an oracle may make the whole step at once.
    plain = (type(rule).step is ClientRule.step or rule.watches_epochs) and not momentum
    descend = getattr(oracle, "descend", None) if plain else None
    w = job.start
    velocity: Tensor | None = None
    done: list[dict[str, Tensor]] = []
    epoch: int | Tensor | None = None
    rate = job.lr
    for number, step in enumerate(islice(oracle.steps(), limit)):
        if step.active is not None and step.active < len(job.start):
            done.append({name: tensor[step.active :] for name, tensor in job.carry.items()})
            job = job.pick(slice(step.active))
            velocity = velocity if velocity is None else velocity[: step.active]
        old = new = w if step.active in (None, len(w)) else w[: step.active]
        if not number:  # the first step leaves the server's vector alone and makes the loop's own
            new = w = torch.empty_like(w, memory_format=torch.contiguous_format) if room is None else room
        if job.fresh is not None and step.begins:
            job = _refresh(job, old, rule, oracle)
        watched = descend is None or (rule.watches_epochs and step.begins)
        direction = rule.step(job, old, oracle) if watched else None
        if step.epochs is not epoch or (step.active or 1) != len(rate):  # after the rule, which may set an epoch's rate
            epoch, rate = step.epochs, _rate(job.lr, step.epochs)
        if direction is None:
            assert descend is not None
            descend(old, rate, new, job.course)
            continue
        if momentum:
            velocity = direction.clone() if velocity is None else velocity.mul_(momentum).add_(direction)
            direction = velocity
        torch.addcmul(old, rate, direction, value=-1, out=new)
    begun = replace(begun, carry=_joined([job.carry, *reversed(done)]))
    return Outcome(begun, w, *rule.end(begun, w, oracle))


def _refresh(job: Job, w: Tensor, rule: ClientRule, oracle: TrainingOracle) -> Job:
    """Let those whose slot it is take in a fresh global model; `w`, the loop's own, is changed in place."""
    assert job.fresh is not None
    due = (oracle.begins == job.slot) & (job.slot > 0)
    if not due.any():
        return job
    if w.dim() == 1:
        merge = rule.refresh(job, w, oracle, None)
        if job.fresh_buffers is not None and job.fresh_buffers.numel():
            oracle.restore(torch.lerp(oracle.buffers, job.fresh_buffers, merge.share.to(job.fresh_buffers.dtype)))
        w.copy_(torch.lerp(w, job.fresh, merge.share))
        return replace(job, carry={**job.carry, **merge.notes})
    rows = due[:, 0].nonzero()[:, 0]
    part = job.pick(rows)
    assert part.fresh is not None
    merge = rule.refresh(part, w[rows], oracle, rows)
    w[rows] = torch.lerp(w[rows], part.fresh, merge.share)
    carry = {name: job.carry[name].index_copy(0, rows, new) for name, new in merge.notes.items()}
    return replace(job, carry={**job.carry, **carry})


def _joined(carries: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """What those who stayed and those who left carried, as one stack again."""
    if len(carries) == 1:
        return carries[0]
    for carry in carries:
        if carry.keys() != carries[0].keys():
            late = ", ".join(sorted(carry.keys() ^ carries[0].keys()))
            raise FedkeelError(
                f"the client rule carries {late} only in some steps; accepted: from begin or the first on"
            )
    return {name: torch.cat([carry[name] for carry in carries]) for name in carries[0]}


def _rate(lr: Tensor, epochs: int | Tensor) -> Tensor:
    """[..., 1], that of the epoch which each client is in."""
    return lr[..., epochs, None] if isinstance(epochs, int) else lr.gather(-1, epochs[:, None])
