"""Updates that arrive at a server: one made by hand for `ServerRule.receive`, and the timeline of a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel import streams
from fedkeel.methods import Job, Message, Updates
from fedkeel.methods.server import View
from fedkeel.params import Layout
from tests.helpers.federation import EPOCHS, PER_ROUND, ROUNDS, SEED, SIZES, N


def vector(values: Sequence[float] | NDArray[Any] | Tensor) -> Tensor:
    """[D], in float64."""
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def layout_of(size: int) -> Layout:
    """Of a model with so many weights and nothing else."""
    return Layout.of(nn.Linear(size, 1, bias=False))


def arrival(
    w: Sequence[float] | NDArray[Any] | Tensor,
    start: Sequence[float] | NDArray[Any] | Tensor,
    samples: int = 1,
    epochs: int = 1,
    steps: int = 1,
    lr: float | Sequence[float] = 0.1,
    messages: Mapping[str, float] | None = None,
    layout: Layout | None = None,
    **others: Any,
) -> Updates:
    """The weights that come back and those that were sent, with a leading axis of one; `others` go into `Updates`.

    `messages` are numbers [1, 1]; one learning rate counts for all epochs.
    """
    back, sent = vector(w)[None], vector(start)[None]
    rates = [lr] * epochs if isinstance(lr, float) else lr
    return Updates(
        back,
        sent,
        torch.tensor([[samples]]),
        torch.tensor([[epochs]]),
        torch.tensor([[steps]]),
        vector(rates)[None],
        {name: vector([number])[None] for name, number in (messages or {}).items()},
        layout or layout_of(back.shape[1]),
        **others,
    )


def make_job(start: Tensor, kept: Message | None = None, received: Message | None = None) -> Job:
    """One epoch of one step at rate 1 from these weights [k, D], or [D] of a client alone."""
    if start.dim() == 1:
        kept, received = ({name: each[None] for name, each in (told or {}).items()} for told in (kept, received))
        start = start[None]
    one = torch.ones(len(start), 1, dtype=torch.int64)
    return Job(
        round=one, version=0 * one, start=start, buffers=start[:, :0], epochs=one, steps=one, lr=one.to(start.dtype),
        momentum=0.0, samples=one, layout=layout_of(start.shape[-1]), received=received or {}, kept=kept or {},
        slot=0 * one,
    )  # fmt: skip


def view(
    version: int = 0,
    start_version: int | None = None,
    client: int = 0,
    time: float = 0.0,
    round: int = 1,
    seconds: float = 10.0,
    fresh_version: int | None = None,
    busy: Mapping[int, int] | None = None,
) -> View:
    """What the server knows then; without a start version, the update is not stale at all."""
    start = version if start_version is None else start_version
    busy = busy or {}
    return View(time, version, round, client, start, fresh_version, seconds, busy, Counter(busy.values()))


class Event(NamedTuple):
    """Something that happens to a client's job."""

    time: float
    what: str
    """`sent` or `back`."""
    client: int
    wave: int
    """The number of its dispatch, which names its mini-batches."""


def job_seconds(client: int, epochs: int = EPOCHS, of: int = EPOCHS) -> float:
    """So many of a job's epochs on one of equal devices; a whole job of a client of average size takes 10 seconds."""
    return float(10.0 * (SIZES[client] * epochs / (np.mean(SIZES) * of)))


def timeline(
    most: int,
    every: float = inf,
    seconds: Callable[[int], float] = job_seconds,
    updates: int = ROUNDS * PER_ROUND,
    ends: dict[int, float] | None = None,
) -> Iterator[Event]:
    """An asynchronous run of the federation, event by event, up to so many updates.

    Every so many seconds, `PER_ROUND` of the idle clients are sent a job, as long as no more than `most` are at work;
    or, without `every`, always so many are. What comes back at an instant comes before what is sent. `ends` are the
    clients at work and when they will be back, which may be changed from outside.
    """
    ends = {} if ends is None else ends
    waves: dict[int, int] = {}
    due, wave = 0.0, 0
    while updates:
        time, client = min(((time, client) for client, time in ends.items()), default=(inf, -1))
        if time <= due:
            del ends[client]
            updates -= 1
            yield Event(time, "back", client, waves[client])
            due = time if every == inf else due
            continue
        count = most - len(ends) if every == inf else min(PER_ROUND, most - len(ends))
        if count > 0:
            wave += 1
            idle = [client for client in range(N) if client not in ends]
            drawn = streams.generator(SEED, "sampling", wave).choice(idle, min(count, len(idle)), replace=False)
            for client in sorted(drawn.tolist()):
                waves[client] = wave
                yield Event(due, "sent", client, wave)
                ends[client] = due + seconds(client)
        due += every
